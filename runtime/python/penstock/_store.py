"""Store: one engine, opened over parameters, by their numbers. Knows tensors' addresses, and nothing of optimizers."""

import contextlib
import ctypes as c
import logging
import os
import re

import torch

from . import _library as lib
from ._library import call, text
from ._refusal import PenstockError

log = logging.getLogger("penstock")
DTYPES = {torch.float32: lib.FP32, torch.bfloat16: lib.BF16, torch.float16: lib.FP16}
_RUN_ELEMENTS = 1 << 22  # copied at once
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {unit + "i": 1024**power for power, unit in enumerate("KMGT", 1)}


def bytes_of(budget):
    """4294967296, "4GiB" or "host=4GiB".

    >>> bytes_of("host=4GiB") == bytes_of("4GiB") == bytes_of(4 << 30)
    True
    """
    if isinstance(budget, int):
        return budget
    found = re.fullmatch(r"(?:host=)?(\d+(?:\.\d+)?) ?([KMGT]?i?)B?", str(budget))
    if not found or found[2] not in _UNITS:
        raise PenstockError(f"budget {budget!r}: a number of bytes or a size such as \"host=4GiB\" expected")
    return int(float(found[1]) * _UNITS[found[2]])


@c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
def _listener(_, level, line):
    log.log(logging.WARNING if level else logging.INFO, "%s", line.decode(errors="replace").strip())


def on_host(tensor):
    """The values, one after another, in memory that the engine can read. May be the tensor itself."""
    tensor = tensor.detach()
    if tensor.dtype not in DTYPES:
        tensor = tensor.float()
    return tensor.cpu().contiguous()


class Store:
    """`tensors`: the parameters, whose values a new store begins with. `groups`: the number of each one's group."""

    def __init__(self, folders, host_bytes, optimizer, tensors, groups, existing=lib.OPEN_OR_CREATE, threads=0,
                 clip_norm=0.0, durability="step", initial_step=0):
        self.pid = os.getpid()
        self._engine = c.c_void_p()
        self._tensors = list(tensors)
        self._publishes = True
        self._staging = {}  # where the engine's weights go if it cannot write the tensor itself
        keep_alive = [on_host(tensor) for tensor in self._tensors]
        parameters = (lib.Parameter * len(keep_alive))()
        for number, values in enumerate(keep_alive):
            parameters[number] = lib.Parameter(
                name=str(number).encode(),
                elements=values.numel(),
                group=groups[number],
                dtype=DTYPES[values.dtype],
                initial=values.data_ptr(),
                weights_into=values.data_ptr(),  # set_targets() says it anew before every step
                unit=lib.UNIT_AUTO,
            )
        drives = (c.c_char_p * len(folders))(*(os.fsencode(folder) for folder in folders))
        options = lib.Options(
            size=c.sizeof(lib.Options),
            drives=drives,
            drive_count=len(folders),
            threads=threads,
            host_bytes=host_bytes,
            optimizer=lib.OPTIMIZERS[optimizer],
            existing=existing,
            durability={"step": lib.EACH_STEP, "exit": lib.AT_EXIT}.get(durability, lib.EVERY),
            durable_every=durability if isinstance(durability, int) else 0,
            clip_norm=clip_norm,
            log=_listener,
            initial_step=initial_step,
        )
        call("penstock_open", c.byref(options), parameters, len(keep_alive), c.byref(self._engine))

    def close(self):
        engine, self._engine = self._engine, c.c_void_p()
        if engine:
            call("penstock_close", engine)

    def __del__(self):
        if getattr(self, "_engine", None):
            lib._library.penstock_close(self._engine)

    # -- a step ---------------------------------------------------------------------------------------------------

    def begin(self, rates, loss_scale, publishes=True):
        """`publishes`: the engine writes the new weights into the tensors as updates end; otherwise step() does it."""
        for number in range(len(self._tensors)):
            self._set_target(number, publishes)
        groups = (lib.Rates * len(rates))(*(lib.Rates(**dict(group)) for group in rates))
        call("penstock_begin", self._engine, groups, len(rates), 1, loss_scale)
        self._publishes = publishes

    def gradient(self, number, gradient):
        values = on_host(gradient)
        call("penstock_gradient", self._engine, number, 0, DTYPES[values.dtype], values.data_ptr())

    def step(self, gradients, given=()):
        """The rest of the step that has begun: `gradients` by parameter, None where there is none; those `given` are
        there already. Afterwards the tensors have the new weights."""
        report = lib.Report()
        try:
            for number, gradient in enumerate(gradients):
                if gradient is None:
                    call("penstock_absent", self._engine, number)
                elif number not in given:
                    self.gradient(number, gradient)
            call("penstock_step", self._engine, None, 0, c.byref(report))
        except BaseException:
            lib._library.penstock_discard(self._engine)  # refused where the step has failed for good
            raise
        updated = [number for number, gradient in enumerate(gradients) if gradient is not None]
        for number in updated:
            if not self._publishes:
                self._read_weights(number)
            elif number in self._staging:
                self._tensors[number].detach().copy_(self._staging[number])
        torch.autograd.graph.increment_version([self._tensors[number] for number in updated])
        return report

    def discard(self):
        call("penstock_discard", self._engine)

    def _read_weights(self, number):
        tensor = self._tensors[number].detach()
        if self._is_direct(tensor):
            dtype, count = DTYPES[tensor.dtype], tensor.numel()
            call("penstock_read", self._engine, number, lib.WEIGHT, 0, count, dtype, tensor.data_ptr())
        else:
            tensor.copy_(self.read(number, lib.WEIGHT, tensor.dtype))

    @staticmethod
    def _is_direct(tensor):
        return tensor.device.type == "cpu" and tensor.is_contiguous()

    def _set_target(self, number, publishes):
        tensor = self._tensors[number]
        if not publishes:
            call("penstock_set_weights_into", self._engine, number, DTYPES[tensor.dtype], None)
            return
        if self._is_direct(tensor):
            self._staging.pop(number, None)
            target = tensor
        else:
            target = self._staging.get(number)
            if target is None:
                target = self._staging[number] = torch.empty(tensor.shape, dtype=tensor.dtype)
        call("penstock_set_weights_into", self._engine, number, DTYPES[tensor.dtype], target.data_ptr())

    # -- between steps --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writes(self):
        """What is written within becomes durable together. After an exception the store is closed, and has nothing of
        it."""
        call("penstock_begin_writes", self._engine)
        try:
            yield
            call("penstock_end_writes", self._engine)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self):
        return bool(self._engine)

    def adopt(self, number):
        """Takes the tensor's values where they are not those that its master rounds to. How many that were."""
        values, changed = on_host(self._tensors[number]), c.c_uint64()
        call("penstock_adopt", self._engine, number, DTYPES[values.dtype], values.data_ptr(), c.byref(changed))
        return changed.value

    def copy_into(self, other, roles):
        """The parameters' state, to those of the same numbers there, which the caller has open for writes()."""
        run = torch.empty(_RUN_ELEMENTS)
        for number, tensor in enumerate(self._tensors):
            for role in roles:
                for first in range(0, tensor.numel(), _RUN_ELEMENTS):
                    count = min(_RUN_ELEMENTS, tensor.numel() - first)
                    for engine, verb in ((self._engine, "penstock_read"), (other._engine, "penstock_write")):
                        call(verb, engine, number, role, first, count, lib.FP32, run.data_ptr())
            other.set_count(number, self.count(number))

    def read(self, number, role, dtype=torch.float32):
        values = torch.empty(self._tensors[number].shape, dtype=dtype)
        call("penstock_read", self._engine, number, role, 0, values.numel(), DTYPES[dtype], values.data_ptr())
        return values

    def write(self, number, role, values):
        values = on_host(values)
        call("penstock_write", self._engine, number, role, 0, values.numel(), DTYPES[values.dtype], values.data_ptr())

    def restore_weights(self):
        """The tensors get the store's weights."""
        for number in range(len(self._tensors)):
            self._read_weights(number)
        torch.autograd.graph.increment_version(self._tensors)

    def count(self, number):
        count = c.c_uint64()
        call("penstock_count", self._engine, number, c.byref(count))
        return count.value

    def set_count(self, number, count):
        call("penstock_set_count", self._engine, number, count)

    def steps(self):
        steps = c.c_uint64()
        call("penstock_steps", self._engine, c.byref(steps))
        return steps.value

    @property
    def id(self):
        return text("penstock_store_id", self._engine)

    def description(self):
        return text("penstock_description", self._engine)

    def statistics(self):
        statistics = lib.Statistics()
        call("penstock_get_statistics", self._engine, c.byref(statistics))
        return {name: getattr(statistics, name) for name, _ in statistics._fields_}

    def keep(self):
        call("penstock_keep", self._engine, None)

    def kept(self):
        steps, count = (c.c_uint64 * 4096)(), c.c_size_t()
        call("penstock_kept", self._engine, steps, len(steps), c.byref(count))
        return list(steps[: count.value])

    def roll_back(self, step):
        call("penstock_roll_back", self._engine, step)

    def drop(self, step):
        call("penstock_drop", self._engine, step)
