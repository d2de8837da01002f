"""OpenStore: one engine, opened over parameters, by their numbers, and what rests in it between steps. Knows tensors'
addresses, and nothing of optimizers."""

import contextlib
import ctypes as c
import gc
import logging
import os
import weakref

import torch

from . import _device
from . import _library as lib
from ._library import call, text
from ._refusal import USAGE, PenstockError
from ._telling import Telling
from ._values import DTYPES, check_memory, dtype_of, in_a_row, on_host

log = logging.getLogger("penstock")
_RUN_ELEMENTS = 1 << 22  # copied at once
_open_stores = weakref.WeakValueDictionary()  # by where they are; others, that have been closed, too


def _is_open(place):
    store = _open_stores.get(place)
    return store is not None and store.is_open and store.pid == os.getpid()


@c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
def _listener(_, level, line):
    with lib.holding_back_interrupts():
        log.log(logging.WARNING if level else logging.INFO, "%s", line.decode(errors="replace").strip())


class OpenStore:
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
        self._telling = Telling(by_thread=bool(links))
        self._failed = None  # an exception within a callback
        self._elements = [tensor.numel() for tensor in self._tensors]
        dtypes = [dtype_of(number, tensor) for number, tensor in enumerate(self._tensors)]
        check_memory(self._tensors)
        self._callbacks = _callbacks_of(weakref.ref(self)) if links else (lib.INITIAL(), lib.WEIGHTS_OUT())
        keep_alive = []
        parameters = (lib.Parameter * len(self._tensors))()
        for number, tensor in enumerate(self._tensors):
            parameters[number] = lib.Parameter(
                name=f"{number} {list(tensor.shape)}".encode(),
                elements=tensor.numel(),
                group=groups[number],
                dtype=dtypes[number],
                unit=lib.UNIT_AUTO,
            )
            if self._link[number] is None:
                keep_alive.append(on_host(tensor))
                parameters[number].initial = keep_alive[-1].data_ptr()
        self._claim(folders)
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
        with self._reason(), _no_folder_left(folders):
            call("penstock_open", c.byref(options), parameters, len(parameters), c.byref(self._engine))

    def _claim(self, folders):
        """Another store of this process in the same place would be waited for in vain."""
        for place in map(os.path.realpath, folders):
            if _is_open(place):
                gc.collect()  # perhaps nobody holds it but itself
            if _is_open(place):
                raise PenstockError(
                    f"the store in {place} is open in this process already, in another optimizer", USAGE,
                    "close() that one first"
                )
            _open_stores[place] = self

    def close(self):
        self._telling.leave()
        engine, self._engine = self._engine, c.c_void_p()
        if engine:
            call("penstock_close", engine)

    def __del__(self):
        if getattr(self, "_engine", None):
            self._telling.leave()
            lib._library.penstock_close(self._engine)

    @property
    def is_open(self):
        return bool(self._engine)

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

    def check(self):
        """The tensors are still those that the store can write."""
        for number, tensor in enumerate(self._tensors):
            self._check(number, tensor)

    def _check(self, number, values):
        """The engine reads and writes memory by the sizes that it was opened with."""
        whole = self._elements[number]
        for now in (self._tensors[number].numel(), values.numel()):
            if now != whole:
                raise PenstockError(
                    f"parameter {number} has {whole} values in the store, and {now} in its tensor", USAGE,
                    "give it its size again, or make an optimizer with another store for it"
                )
        dtype_of(number, self._tensors[number])

    def _give_initial(self, number, first, count, address):
        link, values = self._link[number], in_a_row(self._tensors[number])
        into = torch.frombuffer((c.c_float * count).from_address(address), dtype=torch.float32)
        for begins, piece in link.pieces(values.view(-1)[first : first + count], link.streams.caller()):
            into[begins : begins + piece.numel()].copy_(piece)

    def _take_weights(self, number, first, count, address):
        into = self._staging.get(number, self._tensors[number]).detach().view(-1)
        self._link[number].up(into[first : first + count], _device.fill_from(address))

    # -- between steps --------------------------------------------------------------------------------------------

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

    @contextlib.contextmanager
    def writes(self):
        """What is written within becomes durable together. After an exception the store is closed, and has nothing of
        it."""
        begun = False
        try:
            call("penstock_begin_writes", self._engine)
            begun = True
            yield
            call("penstock_end_writes", self._engine)
        except BaseException as error:
            if begun or not isinstance(error, PenstockError):  # an interrupt may come behind the call
                self.close()
            raise

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
        run = torch.empty(_RUN_ELEMENTS, dtype=torch.float32, device="cpu")
        for number, tensor in enumerate(self._tensors):
            for role in roles:
                for first in range(0, tensor.numel(), _RUN_ELEMENTS):
                    count = min(_RUN_ELEMENTS, tensor.numel() - first)
                    for engine, verb in ((self._engine, "penstock_read"), (other._engine, "penstock_write")):
                        call(verb, engine, number, role, first, count, lib.FP32, run.data_ptr())
            other.set_count(number, self.count(number))

    def read(self, number, role, dtype=torch.float32):
        values = torch.empty(self._tensors[number].shape, dtype=dtype, device="cpu")
        self._check(number, values)
        call("penstock_read", self._engine, number, role, 0, values.numel(), DTYPES[dtype], values.data_ptr())
        return values

    def clear(self, number, role):
        zeros = torch.zeros(min(_RUN_ELEMENTS, self._elements[number]), dtype=torch.float32, device="cpu")
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
        self._telling.wait()
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
        self._telling.wait()
        statistics = lib.Statistics()
        call("penstock_get_statistics", self._engine, c.byref(statistics))
        found = {name: getattr(statistics, name) for name, _ in statistics._fields_}
        return {**found, "host_bytes": found["host_bytes"] + self._pinned_bytes}

    def keep(self):
        call("penstock_keep", self._engine, None)

    def kept(self):
        self._telling.wait()
        count = c.c_size_t()
        call("penstock_kept", self._engine, None, 0, c.byref(count))
        steps = (c.c_uint64 * count.value)()
        call("penstock_kept", self._engine, steps, len(steps), c.byref(count))
        return list(steps)

    def mark(self, step):
        """Of the state that is kept as that step, or that the store is at: digits that no other has."""
        self._telling.wait()
        mark = c.c_uint64()
        call("penstock_mark", self._engine, step, c.byref(mark))
        return f"{mark.value:016x}"

    def roll_back(self, step):
        call("penstock_roll_back", self._engine, step)

    def drop(self, step):
        call("penstock_drop", self._engine, step)


@contextlib.contextmanager
def _no_folder_left(folders):
    """Folders that are made within, and are empty when it fails, are taken away again."""
    missing = []
    for folder in folders:
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
    try:
        yield
    except BaseException:
        for folder in sorted(set(missing), key=len, reverse=True):
            with contextlib.suppress(OSError):  # it has something, or was never made
                os.rmdir(folder)
        raise


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
