"""What optimizers are asked for besides their rates, and which of it they can do."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, Literal

import torch
from typing_extensions import Required, TypedDict  # torch itself needs it

from ._early import several_ranks
from ._refusal import ENVIRONMENT, PenstockError

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]  # as torch's


class StoreOptions(TypedDict, total=False):
    """What each optimizer takes besides its rates. AdamW tells what it means."""

    store: Required[str | os.PathLike[str] | Iterable[str | os.PathLike[str]]]
    budget: Required[int | str]
    begin: Literal["step", "backward"]
    weights: Literal["version", "fingerprint"]
    state_dict: Literal["reference", "full"]
    existing: Literal["refuse", "resume", "replace"]
    threads: int
    clip_norm: float
    durability: int | Literal["step", "exit"]
    accumulation: int | None
    gradients: Literal["kept", "taken"]
    # Of torch's optimizers. Those that would change what an update gives have the one value that the engine can do.
    foreach: bool | None
    fused: bool | None
    capturable: bool | None
    amsgrad: Literal[False] | None
    maximize: Literal[False] | None
    differentiable: Literal[False] | None
    decoupled_weight_decay: bool | None
    initial_accumulator_value: float | None


# Arguments of torch's optimizers that say how an update is computed, and those that would change what it gives.
OF_NO_EFFECT = {"foreach", "fused", "capturable"}
NOT_DONE = {"amsgrad": False, "maximize": False, "differentiable": False, "initial_accumulator_value": 0}
BEFORE_THE_RANKS = 'begin="backward" would take gradients before the ranks have averaged them; use begin="step"'


def check_told(kind, store, budget):
    """Nobody but the user knows these two."""
    if store is None:
        raise PenstockError(f"penstock.{kind}: store= is missing, a folder for the state, or one on each drive",
                            remedy='store="/mnt/nvme0/run"')
    if budget is None:
        raise PenstockError(f"penstock.{kind}: budget= is missing, the host memory that the engine may take",
                            remedy='budget="host=4GiB"')


def folders_of(store):
    """As absolute paths, one or several."""
    named = [store] if isinstance(store, (str, bytes, os.PathLike)) else store
    try:
        folders = [os.fsdecode(one) for one in named]
    except TypeError:
        folders = []
    if not folders or not all(folders) or any("\0" in one for one in folders):
        raise PenstockError(f"store={store!r}: a folder, or one on each drive, expected")
    if len({os.path.realpath(one) for one in folders}) < len(folders):
        raise PenstockError(f"store={store!r}: the same folder twice; one on each drive expected")
    folders = [os.path.abspath(one) for one in folders]
    for folder in folders:
        _check_place(folder)
    return folders


def _check_place(folder):
    """That a store can be there, or be made there, as far as can be said without making it."""
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise PenstockError(f"store: {there}: is not a folder", remedy="name another place, or move it away")
    if not os.access(there, os.W_OK | os.X_OK):
        what = "may not be written to" if there == folder else f"may not be written to, so {folder} cannot be made"
        raise PenstockError(f"store: {there}: {what}", ENVIRONMENT, "name another place, or let this user write there")


def number(group, name, least=0.0):
    """What a group has for a rate."""
    try:
        value = float(group[name])
    except (KeyError, TypeError, ValueError, RuntimeError):  # the last from tensors
        value = math.nan
    if not least <= value < math.inf:
        expected = "a number" if least == -math.inf else f"a number of at least {least:g}"
        raise PenstockError(f"{name}={group.get(name)!r}: {expected} expected")
    return value


def epsilon(group):
    """The engine divides by it where a gradient has always been zero."""
    return number(group, "eps", torch.finfo(torch.float32).tiny)


def two_betas(group):
    try:
        first, second = map(float, group["betas"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        first = second = math.nan
    if not (0 <= first < 1 and 0 <= second < 1):
        raise PenstockError(f"betas={group.get('betas')!r}: two numbers from 0 to below 1 expected")
    return first, second


def check_choices(refuse, *, begin, weights, state_dict, existing, gradients, durability, accumulation, clip_norm,
                  threads):
    """refuse(what) is called for the first that is not among those that an optimizer knows, or that does not go with
    another."""
    for name, value, known in (
        ("begin", begin, ("step", "backward")),
        ("weights", weights, ("version", "fingerprint")),
        ("state_dict", state_dict, ("reference", "full")),
        ("existing", existing, ("refuse", "resume", "replace")),
        ("gradients", gradients, ("kept", "taken")),
    ):
        if value not in known:
            refuse(f"{name}={value!r}: one of {', '.join(map(repr, known))} expected")
    if durability not in ("step", "exit") and not (isinstance(durability, int) and durability > 0):
        refuse(f"durability={durability!r}: 'step', 'exit' or a number of steps expected")
    if not isinstance(clip_norm, (int, float)) or not 0 <= clip_norm < math.inf:
        refuse(f"clip_norm={clip_norm!r}: a number of at least 0 expected")
    if not isinstance(threads, int) or threads < 0:
        refuse(f"threads={threads!r}: 0 or more expected")
    if accumulation is not None:
        if begin != "backward":
            refuse(f'accumulation={accumulation!r}: only begin="backward" asks for the micro-batches of a step')
        if not isinstance(accumulation, int) or accumulation < 1:
            refuse(f"accumulation={accumulation!r}: 1 or more micro-batches expected")
    if gradients == "taken" and begin != "backward":
        refuse('gradients="taken": only begin="backward" takes them')
    if begin == "backward":
        if durability != "step" and clip_norm == 0:
            refuse('begin="backward" takes updates back, which needs durability="step" or a clip_norm')
        if several_ranks():
            refuse(BEFORE_THE_RANKS)
