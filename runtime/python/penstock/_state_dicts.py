"""State dicts in torch's own layout: whether one suits an optimizer, and how its states get into the store.

`ours` are an optimizer's groups, `theirs` the dict's. Parameters are known by their places in the groups, whatever they
are called in the dict.
"""

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
