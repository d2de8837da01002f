"""State dicts in torch's own layout: whether one suits an optimizer, and how its states get into the store.

`ours` are an optimizer's groups, `theirs` the dict's. Parameters are known by their places in the groups, whatever they
are called in the dict.
"""

import zlib

from ._states import check_entry, needed_states, put


def check_groups(ours, theirs):
    """What torch says later, when the store would have gone back already."""
    sizes, sizes_there = ([len(group["params"]) for group in groups] for groups in (ours, theirs))
    if len(sizes) != len(sizes_there):
        raise ValueError("loaded state dict has a different number of parameter groups")
    if sizes != sizes_there:
        raise ValueError(
            "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
        )


def has_needed_states(engine, theirs, state):
    entries = [state[name] for group in theirs for name in group["params"] if name in state]
    if not entries and any(isinstance(name, int) for name in state):
        return False  # they are of no parameter
    return all(name in entry for entry in entries for name in needed_states(engine, entry))


def digest_of_counts(groups, state):
    """Of how many updates each parameter has had; groups that were added since have had none."""
    names = [name for group in groups for name in group["params"]]
    counts = {place: int((state.get(name) or {}).get("step", 0)) for place, name in enumerate(names)}
    return zlib.crc32(str({place: count for place, count in counts.items() if count > 0}).encode())


def check_reference(engine, reference, groups, state):
    """A dict that names a step of a store has no other state: it would have to be that step's, or the step another."""
    given = any(entry.get(name) is not None for entry in state.values() if isinstance(entry, dict) for name in engine.states)
    if given or reference.get("counts") not in (None, digest_of_counts(groups, state)):
        engine.refuse(
            f"the state dict names step {reference['step']} of a store, and its \"state\" is not what state_dict() gave with"
            ' that name; to load the states that it has, or none, delete "penstock" from it and from its first group'
        )


def others_of(engine, ours, theirs, state):
    """What a state dict has that is none of the engine's: by parameter, and by whatever else the dict names."""
    by_name = {name: p for p, name in _pairs(ours, theirs)}
    for name, entry in state.items():
        p = by_name.get(name)
        if p is None:
            yield name, entry
        elif others := {key: value for key, value in entry.items() if key not in ("step", *engine.states)}:
            yield p, others


def check_state(engine, ours, theirs, state):
    for p, name in _pairs(ours, theirs):
        check_entry(engine, state.get(name, {}), p, name)


def write_state(engine, ours, theirs, state):
    with engine.store.writes():
        for p, name in _pairs(ours, theirs):
            number, entry = engine.numbers.get(p), state.get(name, {})
            if number is None:
                continue
            states = {key: entry.get(key) for key in engine.states}
            put(engine, {"step": 1 if entry else 0, **entry, **states}, number)


def _pairs(ours, theirs):
    return zip(
        (p for group in ours for p in group["params"]), (name for group in theirs for name in group["params"]),
        strict=True,
    )
