"""A store for more parameters in the place of a smaller one: made beside it, in `growing`, and put in its place when it
is whole and durable. After a crash there is the smaller one, or the larger one.

Where the smaller one keeps steps, it stays with them, as a store of its own in `before-ID`.
"""

import contextlib
import os
import shutil
from pathlib import Path

from . import _library as lib
from ._open_store import log
from ._refusal import PenstockError

FILE = "rank0.tiles"  # of a store, on each drive
_MADE = {FILE, "new." + FILE, "kept", "undecided", "decided"}  # what a larger store's folder has until it takes the smaller one's place


def grown(folders, small, make, budget, roles):
    """The larger store, open, as of the step of `small`, which is open. make(folders, host_bytes, larger, existing,
    initial_step) opens a store. Where that fails, what was is there as it was, closed."""
    step, before = small.steps(), _name_of(small.id) if small.kept() else ""
    small.close()
    places = [os.path.join(folder, "growing") for folder in folders]
    log.info("step %d: the store is written anew, for more parameters", step)
    for place in filter(os.path.lexists, places):  # finish() has left it
        raise PenstockError(f"{place}: is there already, and is not of a store", remedy="move it away")
    try:
        # The two share the budget.
        with contextlib.closing(make(folders, budget // 2, False, lib.OPEN, 0)) as small:
            with contextlib.closing(make(places, budget // 2, True, lib.REPLACE, step)) as large:
                with large.writes():
                    small.copy_into(large, roles)
        for folder in folders:
            _flush(folder)
        _decide(places[0], before)
    except BaseException:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
        raise
    finish(folders)
    return make(folders, budget, True, lib.OPEN, 0)


def smaller_of(folder, store_id):
    """Where the smaller one that had the id is, if it has stayed."""
    place = Path(folder, _name_of(store_id))
    return place if (place / FILE).exists() else None


def _name_of(store_id):
    return f"before-{store_id[:8]}"


def finish(folders):
    """What a crash has left of it: from when on it is decided, the larger store takes its place; until then it goes."""
    places = [Path(folder, "growing") for folder in folders]
    decided = places[0] / "decided"
    if decided.exists():
        before = decided.read_text()
        for folder, place in zip(map(Path, folders), places, strict=True):
            if (place / FILE).exists():
                _take_place(folder, place, before and folder / before)
                _flush(folder)
    for place in reversed(places):  # the decision last
        if _is_ours(place):
            shutil.rmtree(place, ignore_errors=True)


def _is_ours(place):
    return place.is_dir() and not place.is_symlink() and set(os.listdir(place)) <= _MADE


def _decide(place, before):
    undecided = os.path.join(place, "undecided")
    with open(undecided, "w", encoding="utf-8") as file:
        file.write(before)
        file.flush()
        os.fsync(file.fileno())
    os.rename(undecided, os.path.join(place, "decided"))
    _flush(place)


def _take_place(folder, place, before):
    if before:
        before.mkdir(exist_ok=True)
        if (folder / "kept").exists():
            os.rename(folder / "kept", before / "kept")
        if not (before / FILE).exists():
            os.link(folder / FILE, before / FILE)
        _flush(before)
    os.replace(place / FILE, folder / FILE)


def _flush(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
