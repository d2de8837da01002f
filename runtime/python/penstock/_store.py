"""Store: an OpenStore, and the steps that are done with it.

Where a parameter is on a device, gradients are handed over by a thread of the store's, so that backward need not wait
for them to arrive, and weights come back by way of _device.
"""

import contextlib
import ctypes as c
import os

import torch

from . import _library as lib
from ._library import call
from ._open_store import OpenStore
from ._refusal import USAGE, PenstockError
from ._values import DTYPES, in_a_row, on_host


class Store(OpenStore):
    def __init__(self, *arguments, **options):
        self._begun = False  # a step has, perhaps: an interrupt may have come in between
        super().__init__(*arguments, **options)

    def begin(self, rates, loss_scale):
        """Gradients may come from here on; the tensors keep their weights until step()."""
        self.discard()
        self.check()
        for number in range(len(self._tensors)):
            self._set_target(number)
        groups = (lib.Rates * len(rates))(*(lib.Rates(**dict(group)) for group in rates))
        self._begun = True
        call("penstock_begin", self._engine, groups, len(rates), 1, loss_scale)

    def gradient(self, number, gradient):
        """It must not change before step() or discard(), if a parameter is on a device."""
        self._check(number, gradient)
        link = self._link[number]
        if link is None:
            self._telling.tell(self._give, number, gradient)
        else:
            values = in_a_row(gradient)
            self._telling.tell(self._give_from_device, number, link, values, link.streams.caller())

    def _give(self, number, gradient):
        values = on_host(gradient)
        call("penstock_gradient", self._engine, number, 0, DTYPES[values.dtype], values.data_ptr())

    def _give_from_device(self, number, link, values, ready):
        for first, piece in link.pieces(values, ready):
            run = first, piece.numel(), DTYPES[piece.dtype], piece.data_ptr()
            call("penstock_gradient_part", self._engine, number, 0, *run)

    def step(self, gradients, given, report):
        """The rest of the step that has begun: `gradients` by parameter, None where there is none; those `given` are
        there already. Afterwards the tensors have the new weights, or the old ones if it is refused. After any other
        failure the store is closed. Where an interrupt was noticed too late, the step is done, which `report` has."""
        interrupt = None
        for link in self._links:
            link.begin_up()
        try:
            with self._reason():
                self._telling.tell(call, "penstock_publish", self._engine)  # backward is over
                # From the last to the first, as backward makes them: the engine reads ahead in that order.
                for number, gradient in reversed(list(enumerate(gradients))):
                    if gradient is None:
                        self._telling.tell(call, "penstock_absent", self._engine, number)
                    elif number not in given:
                        self.gradient(number, gradient)
                self._telling.hear_out()
                call("penstock_step", self._engine, None, 0, c.byref(report))
        except BaseException as error:
            if not report.step:
                refusal = self._take_back()
                is_over = refusal is not None or self._failed is not None or getattr(error, "code", USAGE) != USAGE
                if is_over:  # it can only be opened again
                    with contextlib.suppress(PenstockError):
                        self.close()
                raise
            interrupt = error
        finally:
            for link in self._links:
                link.end_up()
        self._begun = False
        updated = [number for number, gradient in enumerate(gradients) if gradient is not None]
        for number in updated:
            if number in self._staging:
                self._tensors[number].detach().copy_(self._staging[number])
        torch.autograd.graph.increment_version([self._tensors[number] for number in updated])
        if interrupt is not None:
            raise interrupt

    def discard(self):
        """Gives up the step that has begun, if one has."""
        if self._begun and (refusal := self._take_back()):
            raise refusal

    def _take_back(self):
        """What was refused, but for that no step has begun."""
        self._telling.fall_silent()
        try:
            call("penstock_discard", self._engine)
        except PenstockError as error:
            if error.code != USAGE or os.getpid() != self.pid:
                return error
        self._begun = False
        return None

    def _set_target(self, number):
        tensor = self._tensors[number]
        if self._link[number] is not None:
            self._row_on_device(number)
            call("penstock_set_weights_into", self._engine, number, DTYPES[tensor.dtype], lib.OUT)
            return
        if self._is_direct(tensor):
            self._staging.pop(number, None)
            target = tensor
        else:
            target = self._staging.get(number)
            if target is None:
                target = self._staging[number] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        call("penstock_set_weights_into", self._engine, number, DTYPES[tensor.dtype], target.data_ptr())
