"""What optimizer.state shows of an engine's parameters, and what somebody has written there, which goes into the store.
`state` is optimizer.state, `number` a parameter's."""

import math

from ._live import in_memory, states_of
from ._values import is_plain, kind_of


def show(engine, number, state):
    """In optimizer.state, beside what others have put there."""
    if number not in engine.shown:
        engine.shown[number] = states_of(engine, number)
    state.setdefault(engine.parameters[number], {}).update(engine.shown[number])


def hide(engine, numbers):
    """What they had is no longer theirs."""
    for number in numbers:
        for live in engine.shown.pop(number).values():
            live.cut()


def shows_all(engine, state):
    """Whether optimizer.state has what is shown there, and nothing else."""
    return not replaced(engine, state) and all(state.get(engine.parameters[number]) for number in engine.shown)


def replaced(engine, state):
    """What somebody has put into optimizer.state in place of what was there, by number. Emptied ones are not
    among them: with torch that is how a state begins anew."""
    found = {}
    for number, p in enumerate(engine.parameters):
        entry = state.get(p)
        if entry and (number not in engine.shown or any(entry.get(k) is not v for k, v in engine.shown[number].items())):
            found[number] = entry
    return found


def adopt_states(engine, state):
    """What replaced() finds, and what is missing, goes into the store."""
    emptied = [number for number in engine.shown if not state.get(engine.parameters[number])]
    forget(engine, emptied)
    hide(engine, emptied)
    adopt_replaced(engine, state)


def adopt_replaced(engine, state):
    with engine.at_rest():
        entries = {number: in_memory(entry) for number, entry in replaced(engine, state).items()}
    for number, entry in entries.items():
        check_entry(engine, entry, engine.parameters[number], number)
        lacking = [name for name in needed_states(engine, entry) if name not in entry]
        if lacking:
            engine.refuse(f"state of parameter {number} has no {lacking[0]}; all of it expected, or none")
    if entries:
        with engine.store.writes():
            for number, entry in entries.items():
                put(engine, entry, number)
    for number in entries:
        given = state[engine.parameters[number]]
        shown = engine.shown.setdefault(number, {})
        for name, live in states_of(engine, number).items():
            if name in shown and given.get(name) is shown[name]:
                continue
            if name in shown:
                shown[name].cut()
            shown[name] = live
        show(engine, number, state)


def check_entry(engine, entry, p, called):
    """Whether states, as torch has them, are of p."""
    for name, value in entry.items():
        if name == "step":
            try:
                step = float(value)
            except (TypeError, ValueError, RuntimeError):
                step = math.nan
            if not (0 <= step <= 2**52 and step.is_integer()):
                engine.refuse(f"step={value!r} of parameter {called}: a whole number up to 2^52 expected")
        if name not in engine.states or value is None:
            continue
        if not is_plain(value):
            engine.refuse(f"{name} of parameter {called} is {kind_of(value)}; a dense tensor of numbers expected")
        if value.shape != p.shape:
            engine.refuse(f"{name} of parameter {called} is of shape {tuple(value.shape)}; {tuple(p.shape)} expected")


def needed_states(engine, entry):
    if engine.kind == "SGD" and entry.get("momentum_buffer") is None:
        return ()  # torch's, without momentum
    return engine.states


def put(engine, entry, number):
    """A parameter's states, as torch has them, into the store, which is open for writes()."""
    for name, role in engine.states.items():
        if name in entry:
            if entry[name] is None:
                engine.store.clear(number, role)
            else:
                engine.store.write(number, role, entry[name])
    count = int(entry["step"]) if "step" in entry else engine.store.count(number)
    if engine.kind == "SGD" and "momentum_buffer" in entry:
        # torch's counts no steps: what it has no momentum of begins with the gradient, as in a first step.
        count = 0 if entry["momentum_buffer"] is None else max(1, count)
    if count != engine.store.count(number):
        engine.store.set_count(number, count)


def forget(engine, numbers):
    store = engine.store
    if numbers:
        with store.writes():
            for number in numbers:
                for role in engine.states.values():
                    store.clear(number, role)
                store.set_count(number, 0)
