"""What the optimizers have in common: torch's verbs over a store, which is opened, made and made larger as needed."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, TypeVar, cast, overload

import torch
from typing_extensions import Required, TypedDict  # torch itself needs it

from . import _device, _growth
from . import _library as lib
from ._early import EarlyStart, TakenGradient, several_ranks
from ._fingerprint import fingerprint
from ._open_store import log
from ._refusal import PenstockError
from ._sizes import bytes_of
from ._store import Store
from ._values import DTYPES

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]  # as torch's
_Loss = TypeVar("_Loss")
_Method = TypeVar("_Method", bound=Callable[..., Any])


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


_STATES = {
    "AdamW": {"exp_avg": lib.MOMENTUM, "exp_avg_sq": lib.VARIANCE},
    "Adam": {"exp_avg": lib.MOMENTUM, "exp_avg_sq": lib.VARIANCE},
    "Adagrad": {"sum": lib.VARIANCE},
    "Lion": {"exp_avg": lib.MOMENTUM},
    "SGD": {"momentum_buffer": lib.MOMENTUM},
}


_BEFORE_THE_RANKS = 'begin="backward" would take gradients before the ranks have averaged them; use begin="step"'


class _View(dict):
    """optimizer.state[p]: "step" is in it; moments are read from the store when somebody asks, as copies."""

    def __init__(self, engine, number):
        super().__init__(step=torch.tensor(float(engine.store.count(number))))
        self._engine, self._number = engine, number

    def __missing__(self, name):
        engine = self._engine
        if name not in engine.states:
            raise KeyError(name)
        engine.check_process()
        with engine.lock:
            if engine.early and engine.early.under_way:
                engine.early.give_up()
            return engine.store.read(self._number, engine.states[name])

    def __setitem__(self, name, value):
        if name in self._engine.states:
            self._engine.refuse(f"{name} is in the store, and this is a copy; load_state_dict() changes it")
        super().__setitem__(name, value)


class _Engine:
    """What the optimizer knows besides torch's own: one object that is never replaced, for wrappers copy attributes."""

    def __init__(self, kind, folders, host_bytes, existing, threads, clip_norm, durability):
        self.clip_norm, self.durability, self.report = clip_norm, durability, None
        self.kind, self.folders, self.host_bytes, self.existing = kind, folders, host_bytes, existing
        self.threads, self.pid, self.states = threads, os.getpid(), _STATES[kind]
        self.store = None
        self.parameters = []  # in the store's order
        self.placed = []  # each with the number of its group
        self.numbers = {}  # of them
        self.fingerprint = self.full = False  # what weights= and state_dict= have asked for
        self.early = None  # an EarlyStart
        self.seen = {}  # by number: what the tensor was like after the last step
        self.shown = set()  # numbers of those in optimizer.state
        self.made = False  # the store, of the parameters as they were
        self.failed = False  # the last step: weights may be of two steps
        # A verb has it, and a hook of backward's; which may be on several threads.
        self.lock = threading.RLock()

    def refuse(self, what):
        raise PenstockError(f"penstock.{self.kind}: {what}")

    def not_done(self):
        """What alone may be asked for, by argument."""
        return {**_NOT_DONE, "decoupled_weight_decay": self.kind == "AdamW"}

    def check_asked(self, arguments):
        for name, usual in self.not_done().items():
            if arguments.get(name) not in (None, usual):
                self.refuse(f"{name}={arguments[name]!r} is not among what the engine can do")

    def check_process(self):
        if os.getpid() == self.pid:
            return
        if self.store is not None:
            self.refuse("this process was forked; the store belongs to its parent")
        self.pid, self.lock = os.getpid(), threading.RLock()


def _verb(function: _Method) -> _Method:
    """In the process that has the store, one at a time."""

    @functools.wraps(function)
    def called(self, *arguments, **more):
        self._penstock.check_process()
        with self._penstock.lock:
            return function(self, *arguments, **more)

    return cast(_Method, called)


# Arguments of torch's optimizers that say how an update is computed, and those that would change what it gives.
_OF_NO_EFFECT = {"foreach", "fused", "capturable"}
_NOT_DONE = {"amsgrad": False, "maximize": False, "differentiable": False, "initial_accumulator_value": 0}


class Tiered(torch.optim.Optimizer):
    def __init__(
        self,
        params: Params,
        defaults: dict[str, Any],
        *,
        store: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        budget: int | str,
        begin: Literal["step", "backward"] = "step",
        weights: Literal["version", "fingerprint"] = "version",
        state_dict: Literal["reference", "full"] = "reference",
        existing: Literal["refuse", "resume", "replace"] = "refuse",
        threads: int = 0,
        clip_norm: float = 0.0,
        durability: int | Literal["step", "exit"] = "step",
        accumulation: int | None = None,
        gradients: Literal["kept", "taken"] = "kept",
        **of_torch: object,
    ) -> None:
        kind = next(base.__name__ for base in type(self).__mro__ if base.__name__ in _STATES)
        folders = [os.fspath(store)] if isinstance(store, (str, os.PathLike)) else [os.fspath(one) for one in store]
        self._penstock = engine = _Engine(
            kind, folders, bytes_of(budget), existing, threads, clip_norm, durability
        )
        for name in of_torch:
            if name not in _OF_NO_EFFECT | engine.not_done().keys():
                raise TypeError(f"penstock.{kind}() got an unexpected keyword argument {name!r}")
        engine.check_asked(of_torch)
        for name, value, known in (
            ("begin", begin, ("step", "backward")),
            ("weights", weights, ("version", "fingerprint")),
            ("state_dict", state_dict, ("reference", "full")),
            ("existing", existing, ("refuse", "resume", "replace")),
            ("gradients", gradients, ("kept", "taken")),
        ):
            if value not in known:
                engine.refuse(f"{name}={value!r}: one of {', '.join(map(repr, known))} expected")
        engine.fingerprint, engine.full = weights == "fingerprint", state_dict == "full"
        if durability not in ("step", "exit") and not (isinstance(durability, int) and durability > 0):
            engine.refuse(f"durability={durability!r}: 'step', 'exit' or a number of steps expected")
        if accumulation is not None:
            if begin != "backward":
                engine.refuse(f'accumulation={accumulation!r}: only begin="backward" asks for the micro-batches of a step')
            if not isinstance(accumulation, int) or accumulation < 1:
                engine.refuse(f"accumulation={accumulation!r}: 1 or more micro-batches expected")
        if gradients == "taken" and begin != "backward":
            engine.refuse('gradients="taken": only begin="backward" takes them')
        if begin == "backward":
            if durability != "step" and clip_norm == 0:
                engine.refuse('begin="backward" takes updates back, which needs durability="step" or a clip_norm')
            if several_ranks():
                engine.refuse(_BEFORE_THE_RANKS)
            engine.early = EarlyStart(self, accumulation, gradients == "taken")
        super().__init__(params, defaults)

    # -- torch's verbs --------------------------------------------------------------------------------------------

    @_verb
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. A store that is there already is written anew for all parameters in the next step; the new ones
        begin without state. Another process adds the group before its resume() or load_state_dict()."""
        engine = self._penstock
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        for i, p in enumerate(params):
            try:
                if any(p is q for q in params[:i]):
                    raise PenstockError("a parameter is twice in a group; once expected")
                if p.dtype not in DTYPES:
                    raise PenstockError(f"a parameter of {p.dtype}; float32, bfloat16 or float16 expected")
                _device.place_of(p)
            except PenstockError as error:
                del self.param_groups[-1]
                engine.refuse(error.message)
        if engine.early:
            for p in self.param_groups[-1]["params"]:
                engine.early.watch(p)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        self._penstock.check_process()
        loss = None
        if closure is not None:  # its backward may be on other threads, so the lock is free
            with torch.enable_grad():
                loss = closure()
        with self._penstock.lock:
            self._step()
        return loss

    def _step(self):
        engine = self._penstock
        parameters = [p for group in self.param_groups for p in group["params"]]
        found_inf = float(getattr(self, "found_inf", None) or 0)  # GradScaler's, with fp16 weights
        if found_inf or all(p.grad is None for p in parameters):
            if engine.early:
                engine.early.skipped()
            return
        if engine.failed:
            engine.refuse("the last step failed, and left weights of two steps; resume() goes on from the store's last one")
        if engine.early and several_ranks():
            engine.refuse(_BEFORE_THE_RANKS)
        if any(p.grad is not None and p.grad.is_sparse for p in parameters):
            engine.refuse("a gradient is sparse; dense ones expected")
        self._open()
        engine.store.check()
        gradients = [p.grad for p in engine.parameters]
        early, report, emptied = engine.early, lib.Report(), self._emptied()
        published = early is not None and not emptied and early.agrees(self, gradients)
        if not published and any(isinstance(gradient, TakenGradient) for gradient in gradients):
            early.skipped()
            engine.refuse(
                "rates, weights, parameters or gradients have changed between backward and step(), and the store alone had"
                ' the gradients (gradients="taken"): nothing was done; change them before backward'
            )
        try:
            if not published:
                self._give_up_early()
                self._forget(emptied)
                self._adopt_weights()
                engine.store.begin(*self._settings())
            engine.store.step(gradients, early.given if published else (), report)
        except BaseException:
            engine.failed = not engine.store.is_open
            raise
        finally:
            if early:
                early.ended(published)
            if report.step:  # an interrupt that comes while the engine is at work is noticed afterwards
                engine.report = report
                self._note(gradients)

    def _note(self, gradients):
        """What the step that has ended was given, and what it has left."""
        engine, early = self._penstock, self._penstock.early
        for number, p in enumerate(engine.parameters):
            engine.seen[number] = self._mark(p)
            if early:
                early.watch(p)  # it may have been unfrozen since
            if gradients[number] is not None:
                self._show(number)

    @_verb
    def state_dict(self) -> dict[str, Any]:
        """With state_dict="reference" a few kilobytes that name store and step, and the store keeps that step, as a copy
        beside it, until drop(). Where the few kilobytes went, and whether they are still there, nobody tells the store:
        who deletes a checkpoint, or has it deleted as Trainer's save_total_limit does, must call drop() for its step,
        or the drive fills up. kept() lists the steps, in later processes too. With "full" torch's own layout, and
        nothing is kept."""
        engine = self._penstock
        self._give_up_early()
        if engine.store is not None:
            self._open()
        packed = super().state_dict()
        names = ("step", *engine.states) if engine.full else ("step",)
        packed["state"] = {i: {name: view[name] for name in names} for i, view in packed["state"].items()}
        if not engine.full and engine.store is not None:
            step = engine.store.steps()
            engine.store.keep()
            packed["penstock"] = {"store": engine.store.id, "step": step}
            # torch.distributed.checkpoint keeps state and groups alone.
            packed["param_groups"][0]["penstock"] = dict(packed["penstock"])
        return packed

    @_verb
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict() gave, or torch's own layout. A store that is ahead of the step rolls back to it."""
        engine = self._penstock
        self._give_up_early()
        groups, state = state_dict["param_groups"], state_dict["state"]
        reference = state_dict.get("penstock") or groups[0].get("penstock")
        if reference:
            self._check_groups(groups)
            self._open(existing=lib.OPEN)
            self._roll_back(reference)
        elif state and not all(name in entry for entry in state.values() for name in self._needed_states(entry)):
            engine.refuse("the state dict has neither moments nor the name of a store")
        else:
            self._check_groups(groups)
            self._check_state(groups, state)
        ours = [{key: value for key, value in group.items() if key != "penstock"} for group in groups]
        # torch would cast the state to the weights' dtype.
        super().load_state_dict({"param_groups": ours, "state": {}})
        if not reference and state:
            self._open(existing=lib.OPEN_OR_CREATE)
            # Parameters are known by their places in the groups, whatever they are called there.
            self._write_state([state.get(name, {}) for group in groups for name in group["params"]])
        engine.seen.clear()
        engine.failed = False
        self._show_state()

    def _check_groups(self, groups):
        """What torch says later, when the store would have gone back already."""
        ours, theirs = ([len(group["params"]) for group in of] for of in (self.param_groups, groups))
        if len(ours) != len(theirs):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if ours != theirs:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
            )

    def _check_state(self, groups, state):
        parameters = (p for group in self.param_groups for p in group["params"])
        for p, name in zip(parameters, (name for group in groups for name in group["params"]), strict=True):
            for key in self._penstock.states:
                value = state.get(name, {}).get(key)
                if value is not None and value.shape != p.shape:
                    self._penstock.refuse(
                        f"{key} of parameter {name} is of shape {tuple(value.shape)}; {tuple(p.shape)} expected"
                    )

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"penstock.{self._penstock.kind}: owns a store and cannot be copied or pickled; use state_dict()"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler refuses fp16 gradients otherwise. Lightning then refuses to clip.
        return any(p.dtype == torch.float16 for group in self.param_groups for p in group["params"])

    # -- besides torch's ------------------------------------------------------------------------------------------

    @_verb
    @torch.no_grad()
    def resume(self) -> int:
        """Goes on from the store's last step, if there is one: the parameters get its weights. How many steps were
        done, 0 where there is no store."""
        engine = self._penstock
        self._give_up_early()
        if engine.store is not None and engine.store.has_failed():
            with contextlib.suppress(PenstockError):
                engine.store.close()
        if engine.store is None or not engine.store.is_open:
            if not self._is_there():
                engine.failed = False
                return 0
            self._open(existing=lib.OPEN)
        engine.store.check()
        engine.store.restore_weights()
        engine.failed = False
        engine.seen = {number: self._mark(p) for number, p in enumerate(engine.parameters)}
        self._show_state()
        return engine.store.steps()

    @property
    def gradient_norm(self) -> float | None:
        """Of all gradients of the last step together, before clip_norm; None before the first step."""
        return self._penstock.report and self._penstock.report.gradient_norm

    @_verb
    def statistics(self) -> dict[str, int]:
        """Parameters, elements, host_bytes that are planned of the budget, read_bytes and written_bytes of the drives
        since the store was opened. Empty before the first step."""
        return self._penstock.store.statistics() if self._penstock.store else {}

    @_verb
    def kept(self) -> list[int]:
        """The steps that state_dict() has had kept, in this process and before, ascending. Needs resume() or a step
        first, which open the store."""
        return self._penstock.store.kept() if self._penstock.store else []

    @_verb
    def drop(self, step: int) -> None:
        """The store need not keep the step any longer."""
        if self._penstock.store is None:
            self._penstock.refuse(f"drop({step}): no store is open; resume() opens it")
        self._penstock.store.drop(step)

    def close(self) -> None:
        """Makes the last step durable and gives the store back. It is done at exit, too."""
        with self._penstock.lock:
            store, self._penstock.store = self._penstock.store, None
            if self._penstock.early:
                self._penstock.early.forget()
            if store is not None:
                store.close()

    # -- within ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _hypers(group: dict[str, Any]) -> dict[str, float]:
        """The fields of penstock_rates that a group has."""
        raise NotImplementedError

    def _settings(self):
        """What an update is made with: rates by group, as they can be compared, and the scale of the gradients."""
        rates = [tuple(sorted(self._rates(group).items())) for group in self.param_groups]
        return rates, float(getattr(self, "grad_scale", None) or 1.0)

    def _give_up_early(self):
        if self._penstock.early:
            self._penstock.early.give_up()

    def _is_there(self, some=any):
        return some(os.path.exists(os.path.join(folder, "rank0.tiles")) for folder in self._penstock.folders)

    def _open(self, existing=None):
        engine = self._penstock
        numbered = [(p, g) for g, group in enumerate(self.param_groups) for p in group["params"] if p.numel() > 0]
        if engine.store is not None and engine.store.is_open:
            if not self._is_there(all):
                engine.refuse(
                    f"the store is no longer in {', '.join(engine.folders)}, so no step would last; put it back, or"
                    " close() and begin anew"
                )
            same = [p is q and g == h for (p, g), (q, h) in zip(numbered, engine.placed, strict=False)]
            if not all(same) or len(numbered) < len(engine.placed):
                engine.refuse(
                    "the parameters are not those that the store was made for, in their order; add_param_group() brings"
                    " more, and for others make an optimizer with another store"
                )
            if len(numbered) > len(engine.placed):
                self._grow(numbered)
            return
        if existing is None:
            existing = {"refuse": lib.OPEN_OR_CREATE, "resume": lib.OPEN_OR_CREATE, "replace": lib.REPLACE}[
                engine.existing
            ]
            refuses = engine.existing == "refuse" and self._is_there()
        else:
            refuses = False
        _growth.finish(engine.folders)
        made = existing == lib.REPLACE or not self._is_there()
        store = self._make_store(engine.folders, engine.host_bytes, numbered, existing)
        if refuses and (store.steps() > 0 or any(store.count(number) for number in range(len(numbered)))):
            steps = store.steps()
            store.close()
            engine.refuse(
                f"{engine.folders[0]} holds step {steps} of an earlier run; call resume() to go on from it, or pass"
                ' existing="replace"'
            )
        self._take_store(store, numbered)
        engine.made = made

    def _make_store(self, folders, host_bytes, numbered, existing, initial_step=0):
        engine = self._penstock
        return Store(
            folders, host_bytes, engine.kind, [p for p, _ in numbered], [g for _, g in numbered], existing,
            engine.threads, engine.clip_norm, engine.durability, initial_step,
        )

    def _take_store(self, store, numbered):
        engine = self._penstock
        engine.store, engine.placed, engine.parameters = store, numbered, [p for p, _ in numbered]
        engine.numbers = {p: number for number, p in enumerate(engine.parameters)}

    def _grow(self, numbered):
        """The store, which is open, becomes one for the parameters that groups have brought since."""
        engine = self._penstock
        self._give_up_early()
        small = numbered[: len(engine.parameters)]

        def make(folders, host_bytes, larger, existing, initial_step):
            return self._make_store(folders, host_bytes, numbered if larger else small, existing, initial_step)

        try:
            roles = (lib.WEIGHT, *engine.states.values())
            store = _growth.grown(engine.folders, engine.store, make, engine.host_bytes, roles)
        except PenstockError as error:
            self._take_store(make(engine.folders, engine.host_bytes, False, lib.OPEN, 0), small)
            raise PenstockError(
                f"penstock.{engine.kind}: a store for more parameters, beside the one that is there, with half the"
                f" budget for each: {error.message}", error.code, error.remedy
            ) from None
        self._take_store(store, numbered)

    def _roll_back(self, reference):
        engine, store = self._penstock, self._penstock.store
        kept = store.kept()
        if reference["store"] != store.id or (reference["step"] != store.steps() and reference["step"] not in kept):
            engine.refuse(
                f"the checkpoint names step {reference['step']} of store {reference['store'][:8]}; this is store"
                f" {store.id[:8]} at step {store.steps()}, kept: {kept}"
            )
        if reference["step"] != store.steps():
            log.info("rolling the store back from step %d to step %d", store.steps(), reference["step"])
            store.roll_back(reference["step"])

    def _needed_states(self, entry):
        if self._penstock.kind == "SGD" and entry.get("momentum_buffer") is None:
            return ()  # torch's, without momentum
        return self._penstock.states

    def _write_state(self, entries):
        store, numbers = self._penstock.store, self._penstock.numbers
        with store.writes():
            parameters = (p for group in self.param_groups for p in group["params"])
            for p, entry in zip(parameters, entries, strict=True):
                if p not in numbers:
                    continue
                for name, role in self._penstock.states.items():
                    value = entry.get(name)
                    if value is None:
                        store.clear(numbers[p], role)
                    else:
                        store.write(numbers[p], role, value)
                store.set_count(numbers[p], int(entry.get("step", 1 if entry else 0)))

    def _emptied(self):
        """Parameters whose state somebody has taken out of optimizer.state: with torch that is how it begins anew."""
        engine = self._penstock
        return [n for n, p in enumerate(engine.parameters) if n in engine.shown and p not in self.state]

    def _forget(self, numbers):
        store = self._penstock.store
        if numbers:
            with store.writes():
                for number in numbers:
                    for role in self._penstock.states.values():
                        store.clear(number, role)
                    store.set_count(number, 0)

    def _show_state(self):
        """state[p] of every parameter that has been updated."""
        engine = self._penstock
        self.state.clear()
        engine.shown.clear()
        for number in range(len(engine.parameters) if engine.store else 0):
            if engine.store.count(number) > 0:
                self._show(number)

    def _show(self, number):
        engine = self._penstock
        self.state[engine.parameters[number]] = _View(engine, number)
        engine.shown.add(number)

    def _mark(self, p):
        """Changes when somebody else writes the weights; writes through .data change the fingerprint alone."""
        return p._version, p.data_ptr(), fingerprint(p) if self._penstock.fingerprint else 0

    def _adopt_weights(self):
        engine = self._penstock
        marks = {number: self._mark(p) for number, p in enumerate(engine.parameters)}
        if engine.made and not engine.seen and engine.store.steps() == 0 and not self.state:
            engine.seen = marks
            return  # the store was made of these very weights
        edited = [number for number, mark in marks.items() if engine.seen.get(number) != mark]
        if edited:
            with engine.store.writes():
                for number in edited:
                    if changed := engine.store.adopt(number):
                        log.debug("parameter %d: %d weights were written by somebody else", number, changed)
        engine.seen = marks

    def _rates(self, group):
        self._penstock.check_asked(group)
        return self._hypers(group)
