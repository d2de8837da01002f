"""begin="backward": a parameter's gradient goes to the engine when backward has finished it, and its update runs beside
the rest of backward. Nothing of it is seen before step(): gradients stay in .grad, weights are written by step() alone.

An early start is never the truth. step() publishes it if every gradient that was handed over is still the very tensor
with the same values, and rates, scale and weights are what they were; otherwise the engine takes the step back, and does it as
with begin="step". So whatever users do with .grad, the result is that of begin="step".

gradients="taken": the store alone has what it was handed over, and .grad keeps a TakenGradient, which refuses whoever
wants its values. What would have to be done again, step() refuses too.
"""

import contextlib
import os
import sys
import weakref

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from ._fingerprint import sums
from ._refusal import PenstockError

_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to the EarlyStart that has its hook


class TakenGradient(torch.Tensor):
    """What .grad keeps of a gradient that is with the store: shape, dtype, device, and its norm, for trainers that log
    it and clip to infinity.

    Clipping and scaling change gradients that updates were begun with, so step() would have to do these again. The
    store can take an update back, but not do it with another factor: the gradient's memory was given up to it, and what
    it retains, where clip_norm= is set, serves its own clipping alone. Hence the refusal; gradients="kept" leaves them
    in .grad, from where step() hands them over once more."""

    @staticmethod
    def __new__(cls, gradient, kind):
        made = torch.Tensor._make_wrapper_subclass(
            cls, gradient.shape, strides=gradient.stride(), dtype=gradient.dtype, device=gradient.device
        )
        made.kind, made.norm_of_values = kind, torch.linalg.vector_norm(gradient, 2.0)
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if function is aten.detach.default:
            return args[0]
        if function is aten.linalg_vector_norm.default and args[1:] in ((), (2,)) and not kwargs:
            return args[0].norm_of_values
        if function is aten.mul_.Tensor and not isinstance(args[1], cls) and torch.all(torch.as_tensor(args[1]) == 1):
            return args[0]
        next(one for one in tree_leaves((args, kwargs)) if isinstance(one, cls))._refuse(function)

    def _refuse(self, what):
        raise PenstockError(
            f'penstock.{self.kind}: {what} wants a gradient that the store has taken (gradients="taken")',
            remedy="zero_grad() before each step's backward; accumulation= where several make a step; clip_norm= to clip;"
            ' or gradients="kept"',
        )

    @property
    def data(self):
        return self

    @data.setter
    def data(self, values):
        self._refuse(".data =")

    def share_memory_(self):
        self._refuse("share_memory_()")

    def untyped_storage(self):
        self._refuse("untyped_storage()")

    def __reduce_ex__(self, protocol):
        self._refuse("pickling")

    def __repr__(self, **_):
        return f"TakenGradient({tuple(self.shape)}, {self.dtype}, {self.device})"


class EarlyStart:
    # A clip that strikes each time would have every step done twice.
    STRIKES = 2
    PAUSE = 50  # steps

    def __init__(self, optimizer, accumulation=None, takes=False):
        self._optimizer = weakref.ref(optimizer)
        self._accumulation, self.takes = accumulation, takes
        self._watched = WeakTensorKeyDictionary()  # parameter -> its hook; None: another has it now
        weakref.finalize(self, _unhook, self._watched).atexit = False
        self.counts = {}  # by parameter: contributions in this step
        self.learned = {}  # and in the last one
        self.given = {}  # by number: the tensor that was handed over, and what it was like
        self.settings = None  # rates and scale of the step that has begun; None: none has
        self.spoilt = False
        self.strikes = self.pause = 0
        self.published = self.redone = 0  # steps

    def watch(self, p):
        if p.requires_grad and p not in self._watched:
            me = weakref.ref(self)

            def arrived(p):
                early = me()
                optimizer = early and early._optimizer()
                if optimizer is None or _owners.get(p) is not me:  # the newest optimizer has a parameter
                    return
                if os.getpid() == optimizer._penstock.pid:  # a forked child's gradients are its own
                    engine = optimizer._penstock
                    with engine.lock:  # hooks come from threads of autograd, one for each device
                        if not engine.busy:
                            with engine.at_work():
                                early._arrived(p, optimizer)

            self._watched[p] = p.register_post_accumulate_grad_hook(arrived)
            before = _owners[p]() if p in _owners else None
            if before is not None and (hook := before._watched.get(p)):
                hook.remove()
                before._watched[p] = None
            _owners[p] = me

    @property
    def under_way(self):
        return self.settings is not None

    @torch.no_grad()
    def _arrived(self, p, optimizer):
        self.counts[p] = self.counts.get(p, 0) + 1
        engine = optimizer._penstock
        if engine.numbers.get(p) in self.given:
            self.spoilt = True  # there is more of it: too early
        paused = self.pause > 0 and not self.takes
        if self.spoilt or paused or p.grad is None or p.grad.requires_grad or p.grad.is_sparse:
            return
        if not self._is_whole(p) or several_ranks() or engine.failed:  # step() refuses the last two
            return
        if self.takes and not self.under_way:
            engine.open(optimizer.param_groups)  # the first step begins here
            engine.store.check()
        number = engine.numbers.get(p)
        if engine.store is None or not engine.store.is_open or number is None:  # the first step begins in step()
            return
        try:
            self._hand_over(number, p, optimizer)
        except BaseException:  # an interrupt, too
            with contextlib.suppress(PenstockError):
                self.give_up()
            raise

    def _hand_over(self, number, p, optimizer):
        engine = optimizer._penstock
        if not self.under_way:
            self.settings = optimizer._begin()
        engine.store.gradient(number, p.grad)
        if self.takes:
            p.grad = TakenGradient(p.grad, engine.kind)
            self.given[number] = p.grad, 0, None
        else:
            self.given[number] = p.grad, p.grad.data_ptr(), sums(p.grad)

    def _is_whole(self, p):
        """Whether the gradient is that of all micro-batches, as far as one can know."""
        if self.takes and self._accumulation is None:
            known = _is_last_micro_batch()
            return self.counts[p] == 1 if known is None else known
        return self.counts[p] == (self._accumulation or self.learned.get(p)) and _is_last_micro_batch() is not False

    def agrees(self, optimizer, gradients):
        """Whether what was handed over is what step() wants."""
        if not self.under_way or self.spoilt or self.settings != optimizer._settings():
            return False
        engine = optimizer._penstock
        for number, (tensor, place, added_up) in self.given.items():
            if gradients[number] is not tensor:
                return False
            # Versions would say less and more: writes through .data have none, and a clip that does not strike, or
            # measures the norm alone, as Trainer's without max_grad_norm, multiplies by 1.
            if not self.takes and (tensor.data_ptr() != place or not torch.equal(sums(tensor), added_up)):
                return False
        return engine.seen == engine.marks()

    def give_up(self):
        """Takes back what has begun; the step is done in step()."""
        under_way, self.settings = self.under_way, None
        self.given.clear()
        if under_way:
            self.redone += 1
            self.strikes += 1
            if self.strikes >= self.STRIKES:
                self.pause, self.strikes = self.PAUSE, 0
            self.spoilt = True
        store = self._optimizer()._penstock.store
        if store is not None and store.is_open:  # it may have begun when an interrupt came
            store.discard()

    def forget(self):
        """The store goes, and with it what has begun."""
        self.settings, self.spoilt = None, False
        self.given.clear()
        self.counts.clear()

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


def _unhook(watched):
    for hook in watched.values():
        if hook is not None:
            hook.remove()


def several_ranks():
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _is_last_micro_batch():
    """What Accelerate, and so Trainer, know of accumulation; a hint. None: they are not there."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.GradientState._shared_state:
        return None
    return state.GradientState().sync_gradients
