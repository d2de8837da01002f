"""Tiered: what the optimizers have in common, torch's verbs over a store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, NoReturn, TypeVar, overload

import torch

from . import _device
from . import _library as lib
from ._arguments import BEFORE_THE_RANKS, OF_NO_EFFECT, Params, check_choices, check_told, folders_of
from ._early import EarlyStart, TakenGradient, several_ranks
from ._engine import STATES, Engine, verb
from ._live import Live, in_memory
from ._refusal import PenstockError
from ._sizes import bytes_of
from ._state_dicts import (
    check_groups, check_reference, check_state, digest_of_counts, has_needed_states, others_of, write_state,
)
from ._states import adopt_replaced, adopt_states, hide, show, shows_all
from ._values import DTYPES

_Loss = TypeVar("_Loss")


@contextlib.contextmanager
def _without(*registries):
    """torch's own verb runs none of these hooks within."""
    theirs = [list(hooks.items()) for hooks in registries]
    for hooks in registries:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, those in zip(registries, theirs, strict=True):
            hooks.update(those)


def _or(result, before):
    return before if result is None else result


class Tiered(torch.optim.Optimizer):
    def __init__(
        self,
        params: Params,
        defaults: dict[str, Any],
        *,
        store: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
        budget: int | str | None = None,
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
        kind = next(base.__name__ for base in type(self).__mro__ if base.__name__ in STATES)
        check_told(kind, store, budget)
        self._penstock = engine = Engine(
            kind, folders_of(store), bytes_of(budget), existing, threads, clip_norm, durability
        )
        for name in of_torch:
            if name not in OF_NO_EFFECT | engine.not_done().keys():
                raise TypeError(f"penstock.{kind}() got an unexpected keyword argument {name!r}")
        engine.check_asked(of_torch)
        check_choices(
            engine.refuse, begin=begin, weights=weights, state_dict=state_dict, existing=existing, gradients=gradients,
            durability=durability, accumulation=accumulation, clip_norm=clip_norm, threads=threads,
        )
        engine.fingerprint, engine.full = weights == "fingerprint", state_dict == "full"
        if begin == "backward":
            engine.early = EarlyStart(self, accumulation, gradients == "taken")
        super().__init__(params, defaults)

    # -- torch's verbs --------------------------------------------------------------------------------------------

    @verb
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. A store that is there already is written anew for all parameters in the next step; the new ones
        begin without state. Another process adds the group before its resume() or load_state_dict()."""
        engine = self._penstock
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            with engine.speaks():
                self._rates(added)
                for p in added["params"]:
                    if p.dtype not in DTYPES:
                        raise PenstockError(f"a parameter of {p.dtype}; float32, bfloat16 or float16 expected")
                    if isinstance(p, Live):
                        raise PenstockError("a parameter is a state that is in the store; its clone() expected")
                    _device.place_of(p)
                if len(set(map(id, added["params"]))) < len(added["params"]):
                    raise PenstockError("a parameter is twice in a group; once expected")
        except PenstockError:
            del self.param_groups[-1]
            raise
        if engine.early:
            for p in added["params"]:
                engine.early.watch(p)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        self._penstock.check_process()  # before a closure's backward
        loss = None
        if closure is not None:  # its backward may be on other threads, so the lock is free
            with torch.enable_grad():
                loss = closure()
        with self._penstock.turn("step()"), self._penstock.at_work():
            self._step()
        return loss

    def _step(self):
        engine = self._penstock
        parameters = [p for group in self.param_groups for p in group["params"]]
        found_inf = float(getattr(self, "found_inf", None) or 0)  # GradScaler's, with fp16 weights
        if found_inf or all(p.grad is None for p in parameters):
            engine.skipped()
            return
        if engine.failed:
            engine.refuse("the last step failed, and left weights of two steps; resume() goes on from the store's last one")
        if engine.early and several_ranks():
            engine.refuse(BEFORE_THE_RANKS)
        if any(p.grad is not None and p.grad.is_sparse for p in parameters):
            engine.refuse("a gradient is sparse; dense ones expected")
        if any(isinstance(p.grad, Live) for p in parameters):
            engine.refuse("a gradient is a state that is in the store; its clone() expected")
        engine.open(self.param_groups)
        engine.store.check()
        gradients = [p.grad for p in engine.parameters]
        early, report = engine.early, lib.Report()
        taken = {number for number, gradient in enumerate(gradients) if isinstance(gradient, TakenGradient)}
        if lost := taken - (early.given.keys() if early else set()):
            engine.skipped()
            engine.refuse(
                f"parameter {min(lost)}: its gradient was taken by a step that is over or was given up, or by another"
                " optimizer: nothing was done; zero_grad() and another backward come before step()"
            )
        published = early is not None and shows_all(engine, self.state) and early.agrees(self, gradients)
        if taken and not published:
            engine.skipped()
            engine.refuse(
                "rates, weights, parameters or gradients have changed between backward and step(), and the store alone had"
                ' the gradients (gradients="taken"): nothing was done; change them before backward'
            )
        try:
            if not published:
                engine.give_up_early()
                self._begin()
            engine.store.step(gradients, early.given if published else (), report)
        except BaseException:
            engine.failed = not engine.store.is_open
            if engine.store.is_open:  # an interrupt may have come when the step had begun
                with contextlib.suppress(PenstockError):
                    engine.store.discard()
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
            engine.seen[number] = engine.mark(number)
            if early:
                early.watch(p)  # it may have been unfrozen since
            if gradients[number] is not None and number not in engine.shown:
                show(engine, number, self.state)
        torch.autograd.graph.increment_version(
            [live for number, states in engine.shown.items() if gradients[number] is not None for live in states.values()]
        )

    @verb
    def state_dict(self) -> dict[str, Any]:
        """With state_dict="reference" a few kilobytes that name store and step, and the store keeps that step, as a copy
        beside it, until drop(). Where the few kilobytes went, and whether they are still there, nobody tells the store:
        who deletes a checkpoint, or has it deleted as Trainer's save_total_limit does, must call drop() for its step,
        or the drive fills up. kept() lists the steps, in later processes too. With "full" torch's own layout, and
        nothing is kept."""
        engine = self._penstock
        engine.give_up_early_unless_taken("state_dict()")
        for hook in list(self._optimizer_state_dict_pre_hooks.values()):
            hook(self)
        if engine.store is not None:
            engine.check_store("state_dict()")
            engine.open(self.param_groups)
            adopt_states(engine, self.state)
            if engine.rounds:
                engine.adopt_weights()
        elif self.state:
            engine.check_store("state_dict()")
        with _without(self._optimizer_state_dict_pre_hooks, self._optimizer_state_dict_post_hooks):
            packed = super().state_dict()
        left_out = () if engine.full else engine.states
        packed["state"] = {
            place: in_memory({name: value for name, value in entry.items() if name not in left_out})
            if isinstance(entry, dict) else entry for place, entry in packed["state"].items()
        }
        if not engine.full and engine.store is not None:
            step = engine.store.steps()
            engine.store.keep()
            packed["penstock"] = {
                "store": engine.store.id,
                "step": step,
                "mark": engine.store.mark(step),
                "counts": digest_of_counts(packed["param_groups"], packed["state"]),
            }
            # torch.distributed.checkpoint keeps state and groups alone.
            packed["param_groups"][0]["penstock"] = dict(packed["penstock"])
        for hook in list(self._optimizer_state_dict_post_hooks.values()):
            packed = _or(hook(self, packed), packed)
        return packed

    @verb
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict() gave, or torch's own layout. A store that is ahead of the step rolls back to it."""
        engine = self._penstock
        engine.give_up_early()
        state_dict = dict(state_dict)
        for hook in list(self._optimizer_load_state_dict_pre_hooks.values()):
            state_dict = _or(hook(self, state_dict), state_dict)
        groups, state = state_dict["param_groups"], state_dict["state"]
        state = {name: in_memory(entry) if isinstance(entry, dict) else entry for name, entry in state.items()}
        check_groups(self.param_groups, groups)
        ours = [{key: value for key, value in group.items() if key != "penstock"} for group in groups]
        with engine.speaks():
            for group in ours:
                self._rates({**self.defaults, **group})
        reference = state_dict.get("penstock") or groups[0].get("penstock")
        check_state(engine, self.param_groups, groups, state)
        if reference:
            check_reference(engine, reference, groups, state)
            engine.open(self.param_groups, lib.OPEN)
            engine.roll_back(reference)
            engine.seen.clear()
            engine.rounds = False
        elif state and not has_needed_states(engine, groups, state):
            engine.refuse("the state dict has neither moments nor the name of a store")
        elif state or engine.store is not None:  # without state all begins anew
            engine.open(self.param_groups, lib.OPEN_OR_CREATE)
            write_state(engine, self.param_groups, groups, state)
            engine.rounds = True  # as torch has no masters, none are in its layout
        with _without(self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks):
            # torch would cast the state to the weights' dtype.
            super().load_state_dict({"param_groups": ours, "state": {}})
        engine.failed = False
        self._show_state()
        for whose, others in others_of(engine, self.param_groups, groups, state):
            if not torch.is_tensor(whose):
                self.state[whose] = others
            elif whose in self.state:
                self.state[whose].update(others)
        for hook in list(self._optimizer_load_state_dict_post_hooks.values()):
            hook(self)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"penstock.{self._penstock.kind}: owns a store and cannot be copied or pickled; use state_dict()"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler refuses fp16 gradients otherwise. Lightning then refuses to clip.
        return any(p.dtype == torch.float16 for group in self.param_groups for p in group["params"])

    # -- besides torch's ------------------------------------------------------------------------------------------

    @verb
    @torch.no_grad()
    def resume(self) -> int:
        """Goes on from the store's last step, if there is one: the parameters get its weights. How many steps were
        done, 0 where there is no store."""
        engine = self._penstock
        engine.give_up_early()
        if engine.store is not None and engine.store.has_failed():
            with contextlib.suppress(PenstockError):
                engine.store.close()
        if engine.store is None or not engine.store.is_open:
            if not engine.is_there():
                engine.failed = False
                return 0
            engine.open(self.param_groups, lib.OPEN)
        engine.store.check()
        engine.store.restore_weights()
        engine.failed = False
        engine.seen, engine.rounds = engine.marks(), False
        self._show_state()
        return engine.store.steps()

    @property
    def gradient_norm(self) -> float | None:
        """Of all gradients of the last step together, before clip_norm; None before the first step."""
        return self._penstock.report and self._penstock.report.gradient_norm

    @verb
    def statistics(self) -> dict[str, int]:
        """Parameters, elements, host_bytes that are planned of the budget, read_bytes and written_bytes of the drives
        since the store was opened. Empty before the first step."""
        return self._opened_store("statistics()").statistics() if self._penstock.store else {}

    @verb
    def kept(self) -> list[int]:
        """The steps that state_dict() has had kept, in this process and before, ascending. Needs resume() or a step
        first, which open the store."""
        return self._opened_store("kept()").kept() if self._penstock.store else []

    @verb
    def drop(self, step: int) -> None:
        """The store need not keep the step any longer."""
        self._opened_store(f"drop({step})").drop(step)

    def _opened_store(self, asked):
        self._penstock.check_store(asked)
        return self._penstock.store

    def close(self) -> None:
        """Makes the last step durable and gives the store back. What was put into optimizer.state since goes along; what
        was taken out of it, and weights that were edited, do not. It is done at exit, too, of the last step alone."""
        engine = self._penstock
        is_child = os.getpid() != engine.pid
        engine.leave_parent()
        with engine.lock:
            engine.check_idle("close()")
            try:
                if engine.store is not None and engine.store.is_open and not (is_child or engine.failed):
                    engine.give_up_early()
                    adopt_replaced(engine, self.state)
            finally:
                store, engine.store = engine.store, None
                if engine.early:
                    engine.early.forget()
                if store is not None:
                    store.close()

    # -- within ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _hypers(group: dict[str, Any]) -> dict[str, float]:
        """The fields of penstock_rates that a group has."""
        raise NotImplementedError

    def _settings(self):
        """What an update is made with: rates by group, as they can be compared, and the scale of the gradients."""
        with self._penstock.speaks():
            rates = [tuple(sorted(self._rates(group).items())) for group in self.param_groups]
        return rates, float(getattr(self, "grad_scale", None) or 1.0)

    def _begin(self):
        """A step, of what somebody else has written since the last one too, states or weights. The settings."""
        engine = self._penstock
        adopt_states(engine, self.state)
        engine.adopt_weights()
        settings = self._settings()
        with engine.speaks():
            engine.store.begin(*settings)
        return settings

    def _show_state(self):
        """state[p] of every parameter that has been updated."""
        engine = self._penstock
        self.state.clear()
        hide(engine, list(engine.shown))
        for number in range(len(engine.parameters) if engine.store else 0):
            if engine.store.count(number) > 0:
                show(engine, number, self.state)

    def _rates(self, group):
        self._penstock.check_asked(group)
        return self._hypers(group)
