"""Engine: what an optimizer knows besides torch's own, its store above all, which is opened, made and made larger as
needed."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from . import _growth
from . import _library as lib
from ._arguments import NOT_DONE
from ._fingerprint import Storages, fingerprint
from ._open_store import log
from ._refusal import PenstockError
from ._states import check_entry, put
from ._store import Store
from ._values import check_memory

_Method = TypeVar("_Method", bound=Callable[..., Any])

STATES = {
    "AdamW": {"exp_avg": lib.MOMENTUM, "exp_avg_sq": lib.VARIANCE},
    "Adam": {"exp_avg": lib.MOMENTUM, "exp_avg_sq": lib.VARIANCE},
    "Adagrad": {"sum": lib.VARIANCE},
    "Lion": {"exp_avg": lib.MOMENTUM},
    "SGD": {"momentum_buffer": lib.MOMENTUM},
}


class Engine:
    """One object that is never replaced, for wrappers copy attributes."""

    def __init__(self, kind, folders, host_bytes, existing, threads, clip_norm, durability):
        self.clip_norm, self.durability, self.report = clip_norm, durability, None
        self.prefix = f"penstock.{kind}: "
        self.kind, self.folders, self.host_bytes, self.existing = kind, folders, host_bytes, existing
        self.threads, self.pid, self.states = threads, os.getpid(), STATES[kind]
        self.store = None
        self.parameters = []  # in the store's order
        self.placed = []  # each with the number of its group
        self.numbers = {}  # of them
        self.fingerprint = self.full = False  # what weights= and state_dict= have asked for
        self.early = None  # an EarlyStart
        self.seen = {}  # by number: what the tensor was like when the store had its values
        self.storages = Storages()
        self.shown = {}  # by number: what optimizer.state has of it
        self.busy = False  # within a step, or a hook of backward's
        self.opened = False  # has had its store open
        self.rounds = False  # a state without masters was loaded: those of weights that were edited become the weights
        self.failed = False  # the last step: weights may be of two steps
        # A verb has it, and a hook of backward's; which may be on several threads.
        self.lock = threading.RLock()

    def refuse(self, what):
        raise PenstockError(f"{self.prefix}{what}")

    @contextlib.contextmanager
    def speaks(self):
        """Refusals from within begin with the optimizer's name."""
        try:
            yield
        except PenstockError as error:
            if error.message.startswith(self.prefix):
                raise
            raise PenstockError(self.prefix + error.message, error.code, error.remedy) from error.__cause__

    @contextlib.contextmanager
    def turn(self, asked):
        """One at a time; and what a signal's handler asks for in the middle of a step is refused."""
        self.check_process()
        with self.lock:
            self.check_idle(asked)
            yield

    def check_idle(self, asked):
        if self.busy:
            self.refuse(f"{asked}: called in the middle of a step")

    def at_work(self):
        """Within a turn: a step, or a part of one, which nothing of this thread's may come into."""
        return self._while_busy(True)

    def at_rest(self):
        """Within a step: states may be read."""
        return self._while_busy(False)

    @contextlib.contextmanager
    def _while_busy(self, busy):
        before = self.busy
        try:  # an interrupt may come behind any line
            self.busy = busy
            yield
        finally:
            self.busy = before

    def leave_parent(self):
        """In a forked child: the lock may be another thread's of the parent."""
        if os.getpid() != self.pid:
            self.lock, self.busy = threading.RLock(), False

    def check_store(self, asked):
        if self.store is None:
            self.refuse(f"{asked}: no store is open; resume() opens it")
        if not self.store.is_open:
            self.refuse(f"{asked}: the last step failed; resume() goes on from the store's last one")

    def not_done(self):
        """What alone may be asked for, by argument."""
        return {**NOT_DONE, "decoupled_weight_decay": self.kind == "AdamW"}

    def check_asked(self, arguments):
        for name, usual in self.not_done().items():
            if arguments.get(name) not in (None, usual):
                self.refuse(f"{name}={arguments[name]!r} is not among what the engine can do")

    def check_process(self):
        if os.getpid() == self.pid:
            return
        if self.store is not None:
            self.refuse("this process was forked; the store belongs to its parent")
        self.leave_parent()
        self.pid = os.getpid()

    def give_up_early(self):
        """An early start is taken back, if there is one."""
        if self.early:
            self.early.give_up()

    def skipped(self):
        """There is no step after all."""
        if self.early:
            self.early.skipped()

    def give_up_early_unless_taken(self, asked):
        """What takes gradients has nothing left to begin anew with."""
        if self.early and self.early.under_way and self.early.takes:
            self.refuse(f"{asked}: between backward and step(), when the store alone has the gradients; ask behind step()")
        self.give_up_early()

    def is_there(self, some=any):
        return some(os.path.exists(os.path.join(folder, _growth.FILE)) for folder in self.folders)

    def open(self, param_groups, existing=None):
        """The store for the parameters of these groups is open: it is opened, made or made larger."""
        numbered = [(p, g) for g, group in enumerate(param_groups) for p in group["params"] if p.numel() > 0]
        if not numbered:
            self.refuse("no parameter has elements; one with some expected")
        if self.store is not None and self.store.is_open:
            if not self.is_there(all):
                self.refuse(
                    f"the store is no longer in {', '.join(self.folders)}, so no step would last; put it back, or"
                    " close() and begin anew"
                )
            same = [p is q and g == h for (p, g), (q, h) in zip(numbered, self.placed, strict=False)]
            if not all(same) or len(numbered) < len(self.placed):
                self.refuse(
                    "the parameters are not those that the store was made for, in their order; add_param_group() brings"
                    " more, and for others make an optimizer with another store"
                )
            if len(numbered) > len(self.placed):
                self.grow(numbered)
            return
        if existing is None:
            mode = "refuse" if self.opened and self.existing == "replace" else self.existing
            existing = {"refuse": lib.OPEN_OR_CREATE, "resume": lib.OPEN_OR_CREATE, "replace": lib.REPLACE}[
                mode
            ]
            refuses = mode == "refuse" and self.is_there()
        else:
            refuses = False
        _growth.finish(self.folders)
        made = existing == lib.REPLACE or not self.is_there()
        store = self.make_store(self.folders, self.host_bytes, numbered, existing)
        if refuses and (store.steps() > 0 or any(store.count(number) for number in range(len(numbered)))):
            steps = store.steps()
            store.close()
            self.refuse(
                f"{self.folders[0]} holds step {steps} of an earlier run; call resume() to go on from it, or pass"
                ' existing="replace"'
            )
        self.take_store(store, numbered)
        self.seen = self.marks() if made else {}

    def make_store(self, folders, host_bytes, numbered, existing, initial_step=0):
        return Store(
            folders, host_bytes, self.kind, [p for p, _ in numbered], [g for _, g in numbered], existing,
            self.threads, self.clip_norm, self.durability, initial_step,
        )

    def take_store(self, store, numbered):
        self.opened = True
        self.store, self.placed, self.parameters = store, numbered, [p for p, _ in numbered]
        self.numbers = {p: number for number, p in enumerate(self.parameters)}

    def grow(self, numbered):
        """The store, which is open, becomes one for the parameters that groups have brought since."""
        self.give_up_early()
        small = numbered[: len(self.parameters)]

        def make(folders, host_bytes, larger, existing, initial_step):
            return self.make_store(folders, host_bytes, numbered if larger else small, existing, initial_step)

        try:
            roles = (lib.WEIGHT, *self.states.values())
            store = _growth.grown(self.folders, self.store, make, self.host_bytes, roles)
        except BaseException as error:
            self.take_store(make(self.folders, self.host_bytes, False, lib.OPEN, 0), small)
            if not isinstance(error, PenstockError):
                raise
            raise PenstockError(
                f"penstock.{self.kind}: a store for more parameters, beside the one that is there, with half the"
                f" budget for each: {error.message}", error.code, error.remedy
            ) from None
        self.take_store(store, numbered)

    def roll_back(self, reference):
        store, step = self.store, reference["step"]
        kept = store.kept()
        if reference["store"] != store.id or (step != store.steps() and step not in kept):
            smaller = _growth.smaller_of(self.folders[0], reference["store"])
            self.refuse(
                f"the checkpoint names step {step} of store {reference['store'][:8]}; this is store"
                f" {store.id[:8]} at step {store.steps()}, kept: {kept}"
                + (f"; the store as it was before parameters were added is in {smaller}" if smaller else "")
            )
        if reference.get("mark") not in (None, store.mark(step)):
            self.refuse(
                f"the checkpoint names another step {step} of store {reference['store'][:8]} than the one that is kept: the"
                " store has gone back since, or was written to between steps, and what was kept then has given way to"
                " what was kept later"
            )
        if step in kept:
            if step != store.steps():
                log.info("rolling the store back from step %d to step %d", store.steps(), step)
            store.roll_back(step)  # not where it is that step already, and not written to since

    def read_state(self, number, name):
        """One of a parameter's states, or "step", as torch has it."""
        with self.turn(f"state[p][{name!r}]"):
            self.check_store(f"state[p][{name!r}]")
            self.give_up_early_unless_taken(f"state[p][{name!r}]")
            if name == "step":
                return torch.tensor(float(self.store.count(number)), dtype=torch.float32, device="cpu")
            return self.store.read(number, self.states[name])

    def write_state(self, number, name, value):
        with self.turn(f"state[p][{name!r}]"):
            self.check_store(f"state[p][{name!r}]")
            check_entry(self, {name: value}, self.parameters[number], number)
            self.give_up_early_unless_taken(f"state[p][{name!r}]")
            with self.store.writes():
                put(self, {name: value}, number)

    def mark(self, number):
        """Changes when somebody else writes the weights; writes through .data change the fingerprint alone."""
        p = self.parameters[number]
        place = p.data_ptr(), self.storages.count(number, p)
        return p._version, place, fingerprint(p) if self.fingerprint else 0

    def marks(self):
        return {number: self.mark(number) for number in range(len(self.parameters))}

    def adopt_weights(self):
        """Weights that somebody else has written since the store had their values go into it."""
        marks = self.marks()
        if any(number in self.seen and self.seen[number][1] != mark[1] for number, mark in marks.items()):
            check_memory(self.parameters)  # some have moved
        edited = [number for number, mark in marks.items() if self.seen.get(number) != mark]
        if edited:
            with self.store.writes():
                for number in edited:
                    p = self.parameters[number]
                    if self.rounds and p.element_size() == 2:
                        self.store.write(number, lib.WEIGHT, p)
                    elif changed := self.store.adopt(number):
                        log.debug("parameter %d: %d weights were written by somebody else", number, changed)
        self.seen, self.rounds = marks, False


def verb(function: _Method) -> _Method:
    """In the process that has the store, one at a time."""

    @functools.wraps(function)
    def called(self, *arguments, **more):
        with self._penstock.turn(f"{function.__name__}()"):
            return function(self, *arguments, **more)

    return cast(_Method, called)
