"""Store: one engine, opened over parameters, by their numbers. Knows tensors' addresses, and nothing of optimizers.

Where a parameter is on a device, gradients are handed over by a thread of the store's, so that backward need not wait
for them to arrive, and weights come back by way of _device.
"""

import contextlib
import ctypes as c
import logging
import os
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from . import _device
from . import _library as lib
from ._library import call, text
from ._refusal import USAGE, PenstockError

log = logging.getLogger("penstock")
DTYPES = {torch.float32: lib.FP32, torch.bfloat16: lib.BF16, torch.float16: lib.FP16}
_RUN_ELEMENTS = 1 << 22  # copied at once
_UNITS = {"": 1, "B": 1}
for _power, _unit in enumerate("KMGT", 1):  # as the command reads them: 4G is 4GiB, and 4GB is less
    _UNITS |= {_unit: 1024**_power, _unit + "i": 1024**_power, _unit + "iB": 1024**_power, _unit + "B": 1000**_power}


def bytes_of(budget):
    """4294967296, "4GiB" or "host=4GiB".

    >>> bytes_of("host=4GiB") == bytes_of("4GiB") == bytes_of("4G") == bytes_of("4g") == bytes_of(4 << 30)
    True
    >>> bytes_of("4GB") == bytes_of("4000000kB") == 4 * 10**9
    True
    """
    if isinstance(budget, int):
        return budget
    found = re.fullmatch(r"(?:host=)?(\d+(?:\.\d+)?) ?([kmgtKMGT]?(?:i?B)?|[KMGT]i)", str(budget))
    unit = found[2][:1].upper() + found[2][1:] if found else None
    if unit not in _UNITS:
        raise PenstockError(f"budget {budget!r}: a number of bytes or a size such as \"host=4GiB\" expected")
    return int(float(found[1]) * _UNITS[unit])


@c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
def _listener(_, level, line):
    log.log(logging.WARNING if level else logging.INFO, "%s", line.decode(errors="replace").strip())


def on_host(tensor):
    """The values, one after another, in memory that the engine can read. May be the tensor itself."""
    return in_a_row(tensor).cpu()


def in_a_row(tensor):
    """The same where the tensor is."""
    tensor = tensor.detach()
    if tensor.dtype not in DTYPES:
        tensor = tensor.float()
    return tensor.contiguous()


class Store:
    """`tensors`: the parameters, whose values a new store begins with. `groups`: the number of each one's group."""

    def __init__(self, folders, host_bytes, optimizer, tensors, groups, existing=lib.OPEN_OR_CREATE, threads=0,
                 clip_norm=0.0, durability="step", initial_step=0):
        self.pid = os.getpid()
        self._engine = c.c_void_p()
        self._tensors = list(tensors)
        self._staging = {}  # where the engine's weights go if it cannot write the tensor itself
        places = [_device.place_of(tensor) for tensor in self._tensors]
        links = _device.links_of(places, host_bytes)
        self._link = [links.get(place) for place in places]  # by number; None: in host memory
        self._links = list(links.values())
        self._pinned_bytes = sum(link.host_bytes for link in self._links)
        # What the engine is told besides, one after another: it takes one call at a time.
        self._thread = ThreadPoolExecutor(1, "penstock") if links else None
        self._told = []
        self._begun = False  # a step has, perhaps: an interrupt may have come in between
        self._failed = None  # an exception within a callback
        self._elements = [tensor.numel() for tensor in self._tensors]
        _check_memory(self._tensors)
        self._callbacks = _callbacks_of(weakref.ref(self)) if links else (lib.INITIAL(), lib.WEIGHTS_OUT())
        keep_alive = []
        parameters = (lib.Parameter * len(self._tensors))()
        for number, tensor in enumerate(self._tensors):
            parameters[number] = lib.Parameter(
                name=str(number).encode(),
                elements=tensor.numel(),
                group=groups[number],
                dtype=DTYPES[tensor.dtype],
                unit=lib.UNIT_AUTO,
            )
            if self._link[number] is None:
                keep_alive.append(on_host(tensor))
                parameters[number].initial = keep_alive[-1].data_ptr()
        drives = (c.c_char_p * len(folders))(*(os.fsencode(folder) for folder in folders))
        options = lib.Options(
            size=c.sizeof(lib.Options),
            drives=drives,
            drive_count=len(folders),
            threads=threads,
            host_bytes=host_bytes - self._pinned_bytes,
            optimizer=lib.OPTIMIZERS[optimizer],
            existing=existing,
            durability={"step": lib.EACH_STEP, "exit": lib.AT_EXIT}.get(durability, lib.EVERY),
            durable_every=durability if isinstance(durability, int) else 0,
            clip_norm=clip_norm,
            log=_listener,
            initial_step=initial_step,
            initial=self._callbacks[0],
            weights_out=self._callbacks[1],
        )
        with self._reason():
            call("penstock_open", c.byref(options), parameters, len(parameters), c.byref(self._engine))

    def close(self):
        self._leave()
        engine, self._engine = self._engine, c.c_void_p()
        if engine:
            call("penstock_close", engine)

    def __del__(self):
        if getattr(self, "_engine", None):
            self._leave()
            lib._library.penstock_close(self._engine)

    def _leave(self):
        """What has not been told is not told any more."""
        if self._thread is not None and os.getpid() == self.pid:
            if threading.current_thread() not in self._thread._threads:  # the last reference may end there
                self._fall_silent()
            self._thread.shutdown(wait=False)

    # -- a step ---------------------------------------------------------------------------------------------------

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
            self._tell(self._give, number, gradient)
        else:
            values = in_a_row(gradient)
            self._tell(self._give_from_device, number, link, values, link.streams.caller())

    def _give(self, number, gradient):
        values = on_host(gradient)
        call("penstock_gradient", self._engine, number, 0, DTYPES[values.dtype], values.data_ptr())

    def _give_from_device(self, number, link, values, ready):
        for first, piece in link.pieces(values, ready):
            run = first, piece.numel(), DTYPES[piece.dtype], piece.data_ptr()
            call("penstock_gradient_part", self._engine, number, 0, *run)

    def _tell(self, verb, *arguments):
        if self._thread is None:
            verb(*arguments)
            return
        if os.getpid() != self.pid:  # the thread is the parent's
            raise PenstockError("this process was forked; the store belongs to its parent")
        self._told.append(self._thread.submit(verb, *arguments))

    def _hear_out(self):
        """All has been told, or the first refusal is raised."""
        wait(self._told)  # an interrupt leaves them to discard()
        told, self._told = self._told, []
        for one in told:
            one.result()

    @contextlib.contextmanager
    def _reason(self):
        """Of a refusal that began in a callback."""
        self._failed = None
        try:
            yield
        except PenstockError as error:
            if self._failed is None:
                raise
            raise error from self._failed

    def step(self, gradients, given, report):
        """The rest of the step that has begun: `gradients` by parameter, None where there is none; those `given` are
        there already. Afterwards the tensors have the new weights, or the old ones if it is refused. After any other
        failure the store is closed. Where an interrupt was noticed too late, the step is done, which `report` has."""
        interrupt = None
        for link in self._links:
            link.begin_up()
        try:
            with self._reason():
                self._tell(call, "penstock_publish", self._engine)  # backward is over
                # From the last to the first, as backward makes them: the engine reads ahead in that order.
                for number, gradient in reversed(list(enumerate(gradients))):
                    if gradient is None:
                        self._tell(call, "penstock_absent", self._engine, number)
                    elif number not in given:
                        self.gradient(number, gradient)
                self._hear_out()
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
        self._fall_silent()
        try:
            call("penstock_discard", self._engine)
        except PenstockError as error:
            if error.code != USAGE or os.getpid() != self.pid:
                return error
        self._begun = False
        return None

    def _fall_silent(self):
        """What has not been told need not be."""
        if os.getpid() != self.pid:
            return
        told, self._told = self._told, []
        for one in told:
            one.cancel()
        wait(told)

    def check(self):
        """The tensors are still those that the store can write."""
        for number, tensor in enumerate(self._tensors):
            self._check(number, tensor)

    def _check(self, number, values):
        """The engine reads and writes memory by the sizes that it was opened with."""
        whole, dtype = self._elements[number], self._tensors[number].dtype
        for now in (self._tensors[number].numel(), values.numel()):
            if now != whole:
                raise PenstockError(
                    f"parameter {number} has {whole} values in the store, and {now} in its tensor", USAGE,
                    "give it its size again, or make an optimizer with another store for it"
                )
        if dtype not in DTYPES:
            raise PenstockError(f"parameter {number} is of {dtype} now; float32, bfloat16 or float16 expected")

    def _read_weights(self, number):
        tensor = self._tensors[number].detach()
        if self._link[number] is not None:
            into = self._row_on_device(number)

            def fill(first, piece):
                run = first, piece.numel(), DTYPES[piece.dtype], piece.data_ptr()
                call("penstock_read", self._engine, number, lib.WEIGHT, *run)

            self._link[number].begin_up()
            self._link[number].up(into, fill)
            self._link[number].end_up()
            if number in self._staging:
                tensor.copy_(into)
        elif self._is_direct(tensor):
            dtype, count = DTYPES[tensor.dtype], tensor.numel()
            call("penstock_read", self._engine, number, lib.WEIGHT, 0, count, dtype, tensor.data_ptr())
        else:
            tensor.copy_(self.read(number, lib.WEIGHT, tensor.dtype))

    @staticmethod
    def _is_direct(tensor):
        return tensor.device.type == "cpu" and tensor.is_contiguous()

    def _row_on_device(self, number):
        """What the weights are copied to: the tensor, or, if its elements do not lie in a row, a place beside it."""
        tensor = self._tensors[number].detach()
        if tensor.is_contiguous():
            self._staging.pop(number, None)
            return tensor
        if number not in self._staging:
            self._staging[number] = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return self._staging[number]

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
                target = self._staging[number] = torch.empty(tensor.shape, dtype=tensor.dtype)
        call("penstock_set_weights_into", self._engine, number, DTYPES[tensor.dtype], target.data_ptr())

    # -- what the engine asks for, and hands out --------------------------------------------------------------------

    def _give_initial(self, number, first, count, address):
        link, values = self._link[number], in_a_row(self._tensors[number])
        into = torch.frombuffer((c.c_float * count).from_address(address), dtype=torch.float32)
        for begins, piece in link.pieces(values.view(-1)[first : first + count], link.streams.caller()):
            into[begins : begins + piece.numel()].copy_(piece)

    def _take_weights(self, number, first, count, address):
        into = self._staging.get(number, self._tensors[number]).detach().view(-1)
        self._link[number].up(into[first : first + count], _device.fill_from(address))

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
        changed, sum_of_changed = c.c_uint64(), 0
        for first, piece in self._pieces_of(number, self._tensors[number]):
            run = first, piece.numel(), DTYPES[piece.dtype], piece.data_ptr()
            call("penstock_adopt", self._engine, number, *run, c.byref(changed))
            sum_of_changed += changed.value
        return sum_of_changed

    def _pieces_of(self, number, values):
        """(first, values in host memory) of what is where the parameter is, or there already."""
        link = self._link[number]
        if link is None or _device.place_of(values) is None:
            return [(0, on_host(values))]
        return link.pieces(in_a_row(values), link.streams.caller())

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
        self._check(number, values)
        call("penstock_read", self._engine, number, role, 0, values.numel(), DTYPES[dtype], values.data_ptr())
        return values

    def clear(self, number, role):
        zeros = torch.zeros(min(_RUN_ELEMENTS, self._elements[number]))
        for first in range(0, self._elements[number], _RUN_ELEMENTS):
            count = min(_RUN_ELEMENTS, self._elements[number] - first)
            call("penstock_write", self._engine, number, role, first, count, lib.FP32, zeros.data_ptr())

    def write(self, number, role, values):
        for first, piece in self._pieces_of(number, values):
            run = first, piece.numel(), DTYPES[piece.dtype], piece.data_ptr()
            call("penstock_write", self._engine, number, role, *run)

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
        wait(self._told)
        steps = c.c_uint64()
        call("penstock_steps", self._engine, c.byref(steps))
        return steps.value

    @property
    def id(self):
        return text("penstock_store_id", self._engine)

    def has_failed(self):
        """Nothing but closing it is left to do."""
        try:
            self.steps()
            call("penstock_settle", self._engine)  # of the engine, penstock_steps() does not ask
        except PenstockError as error:
            return error.code != USAGE
        return False

    def description(self):
        return text("penstock_description", self._engine)

    def statistics(self):
        wait(self._told)
        statistics = lib.Statistics()
        call("penstock_get_statistics", self._engine, c.byref(statistics))
        found = {name: getattr(statistics, name) for name, _ in statistics._fields_}
        return {**found, "host_bytes": found["host_bytes"] + self._pinned_bytes}

    def keep(self):
        call("penstock_keep", self._engine, None)

    def kept(self):
        wait(self._told)
        steps, count = (c.c_uint64 * 4096)(), c.c_size_t()
        call("penstock_kept", self._engine, steps, len(steps), c.byref(count))
        return list(steps[: count.value])

    def roll_back(self, step):
        call("penstock_roll_back", self._engine, step)

    def drop(self, step):
        call("penstock_drop", self._engine, step)


def _check_memory(tensors):
    """Each tensor gets weights of its own, so none may lie where another does."""
    places = []
    for number, tensor in enumerate(tensors):
        if 0 in tensor.stride() and not tensor.is_contiguous():
            raise PenstockError(f"parameter {number} is expanded: several of its elements are one; a whole one expected")
        if tensor.is_contiguous():
            places.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, number))
    places.sort()
    for (device, _, end, one), (other_device, begin, _, other) in zip(places, places[1:], strict=False):
        if device == other_device and begin < end:
            raise PenstockError(
                f"parameters {min(one, other)} and {max(one, other)} share memory; memory of its own expected for each",
                USAGE, "tie them, as one nn.Parameter in both places, or make a copy of one"
            )


def _callbacks_of(store):
    """penstock_options.initial and weights_out, by a weak reference: the engine's callbacks must not keep it alive."""

    def guarded(name):
        def called(_, number, first, count, *rest):
            me = store()
            if me is None:
                return 0  # nobody is left to look at it
            try:
                getattr(me, name)(number, first, count, rest[-1])
                return 0
            except BaseException as error:
                me._failed = error
                return 1

        return called

    return lib.INITIAL(guarded("_give_initial")), lib.WEIGHTS_OUT(guarded("_take_weights"))
