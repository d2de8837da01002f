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
from ._fingerprint import fingerprint
from ._open_store import log
from ._refusal import PenstockError
from ._store import Store

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
        self.seen = {}  # by number: what the tensor was like after the last step
        self.shown = set()  # numbers of those in optimizer.state
        self.made = False  # the store, of the parameters as they were
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

    def check_store(self, asked):
        if self.store is None:
            self.refuse(f"{asked}: no store is open; resume() opens it")

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
        self.pid, self.lock = os.getpid(), threading.RLock()

    def give_up_early(self):
        """An early start is taken back, if there is one."""
        if self.early:
            self.early.give_up()

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
            existing = {"refuse": lib.OPEN_OR_CREATE, "resume": lib.OPEN_OR_CREATE, "replace": lib.REPLACE}[
                self.existing
            ]
            refuses = self.existing == "refuse" and self.is_there()
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
        self.made = made

    def make_store(self, folders, host_bytes, numbered, existing, initial_step=0):
        return Store(
            folders, host_bytes, self.kind, [p for p, _ in numbered], [g for _, g in numbered], existing,
            self.threads, self.clip_norm, self.durability, initial_step,
        )

    def take_store(self, store, numbered):
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
        except PenstockError as error:
            self.take_store(make(self.folders, self.host_bytes, False, lib.OPEN, 0), small)
            raise PenstockError(
                f"penstock.{self.kind}: a store for more parameters, beside the one that is there, with half the"
                f" budget for each: {error.message}", error.code, error.remedy
            ) from None
        self.take_store(store, numbered)

    def roll_back(self, reference):
        store = self.store
        kept = store.kept()
        if reference["store"] != store.id or (reference["step"] != store.steps() and reference["step"] not in kept):
            self.refuse(
                f"the checkpoint names step {reference['step']} of store {reference['store'][:8]}; this is store"
                f" {store.id[:8]} at step {store.steps()}, kept: {kept}"
            )
        if reference["step"] != store.steps():
            log.info("rolling the store back from step %d to step %d", store.steps(), reference["step"])
            store.roll_back(reference["step"])

    def forget(self, numbers):
        store = self.store
        if numbers:
            with store.writes():
                for number in numbers:
                    for role in self.states.values():
                        store.clear(number, role)
                    store.set_count(number, 0)

    def read_state(self, number, name):
        self.check_process()
        with self.lock:
            self.check_store(f"state[p][{name!r}]")
            if self.early and self.early.under_way:
                self.early.give_up()
            return self.store.read(number, self.states[name])

    def write_state(self, number, name, value, as_of=None):
        """One of a parameter's states, or "step". `as_of`: the step that the value was read at, if it was."""
        self.check_process()
        with self.lock:
            self.check_store(f"state[p][{name!r}]")
            if as_of not in (None, self.store.steps()):
                self.refuse(
                    f"state[p][{name!r}] was read at step {as_of}, and the store is at step {self.store.steps()}; read"
                    " it again before writing it"
                )
            self.check_entry({name: value}, self.parameters[number], number)
            self.give_up_early()
            with self.store.writes():
                self.put({name: value}, number)

    def check_entry(self, entry, p, called):
        """Whether states, as torch has them, are of p."""
        for name, value in entry.items():
            if name == "step" and not (float(value) >= 0 and float(value).is_integer()):
                self.refuse(f"step={float(value)} of parameter {called}: a whole number expected")
            if name in self.states and value is not None and value.shape != p.shape:
                self.refuse(f"{name} of parameter {called} is of shape {tuple(value.shape)}; {tuple(p.shape)} expected")

    def put(self, entry, number):
        """A parameter's states, as torch has them, into the store, which is open for writes()."""
        for name, role in self.states.items():
            if name in entry:
                if entry[name] is None:
                    self.store.clear(number, role)
                else:
                    self.store.write(number, role, entry[name])
        if "step" in entry and int(entry["step"]) != self.store.count(number):
            self.store.set_count(number, int(entry["step"]))

    def mark(self, p):
        """Changes when somebody else writes the weights; writes through .data change the fingerprint alone."""
        return p._version, p.data_ptr(), fingerprint(p) if self.fingerprint else 0

    def adopt_weights(self, state):
        """Weights that somebody else has written since the last step go into the store. `state`: optimizer.state."""
        marks = {number: self.mark(p) for number, p in enumerate(self.parameters)}
        if self.made and not self.seen and self.store.steps() == 0 and not state:
            self.seen = marks
            return  # the store was made of these very weights
        edited = [number for number, mark in marks.items() if self.seen.get(number) != mark]
        if edited:
            with self.store.writes():
                for number in edited:
                    if changed := self.store.adopt(number):
                        log.debug("parameter %d: %d weights were written by somebody else", number, changed)
        self.seen = marks


def verb(function: _Method) -> _Method:
    """In the process that has the store, one at a time."""

    @functools.wraps(function)
    def called(self, *arguments, **more):
        self._penstock.check_process()
        with self._penstock.lock:
            return function(self, *arguments, **more)

    return cast(_Method, called)
