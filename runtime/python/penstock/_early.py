"""begin="backward": a parameter's gradient goes to the engine when backward has finished it, and its update runs beside
the rest of backward. Nothing of it is seen before step(): gradients stay in .grad, weights are written by step() alone.

An early start is never the truth. step() publishes it if every gradient that was handed over is still the very tensor,
unchanged, and rates, scale and weights are what they were; otherwise the engine takes the step back, and does it as
with begin="step". So whatever users do with .grad, the result is that of begin="step".
"""

import sys
import weakref

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to the EarlyStart that takes its gradients


class EarlyStart:
    # A clip that strikes each time would have every step done twice.
    STRIKES = 2
    PAUSE = 50  # steps

    def __init__(self, optimizer, accumulation=None):
        self._optimizer = weakref.ref(optimizer)
        self._accumulation = accumulation
        self._watched = WeakTensorKeyDictionary()
        self.counts = {}  # by parameter: contributions in this step
        self.learned = {}  # and in the last one
        self.given = {}  # by number: the tensor that was handed over, and what it was like
        self.settings = None  # rates and scale of the step that has begun; None: none has
        self.spoilt = False
        self.strikes = self.pause = 0
        self.published = self.redone = 0  # steps

    def watch(self, p):
        if p.requires_grad and p not in self._watched:
            self._watched[p] = True
            _owners[p] = me = weakref.ref(self)

            def arrived(p):
                early = me()
                if early is not None and _owners.get(p) is me:  # the newest optimizer owns a parameter
                    early._arrived(p)

            p.register_post_accumulate_grad_hook(arrived)

    @property
    def under_way(self):
        return self.settings is not None

    @torch.no_grad()
    def _arrived(self, p):
        optimizer = self._optimizer()
        if optimizer is None:
            return
        self.counts[p] = self.counts.get(p, 0) + 1
        engine = optimizer._penstock
        number = engine.numbers.get(p)
        if engine.store is None or number is None:  # the first step begins in step()
            return
        if number in self.given:
            self.spoilt = True  # there is more of it: too early
        if self.spoilt or self.pause > 0 or p.grad is None or p.grad.requires_grad or p.grad.is_sparse:
            return
        if self.counts[p] != (self._accumulation or self.learned.get(p)) or not _is_last_micro_batch():
            return
        if not self.under_way:
            optimizer._adopt_weights()
            self.settings = optimizer._settings()
            engine.store.begin(*self.settings, publishes=False)
        engine.store.gradient(number, p.grad)
        self.given[number] = p.grad, optimizer._mark(p.grad)

    def agrees(self, optimizer, gradients):
        """Whether what was handed over is what step() wants."""
        if not self.under_way or self.spoilt or self.settings != optimizer._settings():
            return False
        engine = optimizer._penstock
        for number, (tensor, mark) in self.given.items():
            if gradients[number] is not tensor or optimizer._mark(tensor) != mark:
                return False
        return all(engine.seen.get(number) == optimizer._mark(p) for number, p in enumerate(engine.parameters))

    def give_up(self):
        """Takes back what has begun; the step is done in step()."""
        if self.under_way:
            self._optimizer()._penstock.store.discard()
            self.redone += 1
            self.strikes += 1
            if self.strikes >= self.STRIKES:
                self.pause, self.strikes = self.PAUSE, 0
        self.settings, self.spoilt = None, True
        self.given.clear()

    def skipped(self):
        """There is no step after all."""
        self.give_up()
        self.counts.clear()
        self.spoilt = False

    def ended(self, published):
        if published:
            self.published += 1
            self.strikes = 0
        self.pause = max(0, self.pause - 1)
        self.learned, self.counts = self.counts, {}
        self.settings, self.spoilt = None, False
        self.given.clear()


def _is_last_micro_batch():
    """What Accelerate, and so Trainer, know of accumulation; a hint."""
    state = sys.modules.get("accelerate.state")
    return state is None or not state.GradientState._shared_state or state.GradientState().sync_gradients
