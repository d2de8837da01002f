"""Parameters in a device's memory: gradients come to the host, and weights go back, in chunks of pinned memory, by copy
streams of ours. A stream waits for the caller's where it must, and the caller's for ours; the host waits only for what
it reads itself.

The engine knows nothing of it: it takes gradients piece by piece, and hands weights out piece by piece.
"""

import ctypes as c
from collections import deque

import torch

from ._refusal import ENVIRONMENT, PenstockError

CHUNK_BYTES = 4 << 20
CHUNKS = 4  # each way
_SHARE = 4  # of the host budget at most one part in so many


def place_of(tensor):
    """The device that has the tensor; None: host memory."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise PenstockError(f"a parameter on {tensor.device}; the CPU or a CUDA device expected")
    return tensor.device if tensor.device.type == "cuda" else None


def links_of(places, host_bytes):
    """A Link for each of them, by place: together they take at most a quarter of the budget."""
    places = dict.fromkeys(place for place in places if place is not None)
    if not places:
        return {}
    chunk_bytes = min(CHUNK_BYTES, host_bytes // (_SHARE * 2 * CHUNKS * len(places)))
    return {place: Link(CudaStreams(place), max(512, chunk_bytes // 512 * 512)) for place in places}


class CudaStreams:
    """One stream for each way, "down" to the host and "up" to the device, beside the caller's. Alone in naming
    torch.cuda."""

    def __init__(self, device):
        if not torch.cuda.is_available():
            raise PenstockError(
                f"a parameter on {device}, and torch sees no CUDA device", ENVIRONMENT,
                "torch.cuda.is_available() must be True; `nvidia-smi` shows whether the driver is there",
            )
        self._device = device
        self._ways = {way: torch.cuda.Stream(device) for way in ("down", "up")}

    def pinned(self, size):
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def caller(self):
        """Where the caller's stream is now: an event."""
        return torch.cuda.current_stream(self._device).record_event()

    def caller_waits(self, event):
        torch.cuda.current_stream(self._device).wait_event(event)

    def wait(self, way, event):
        self._ways[way].wait_event(event)

    def copy(self, way, target, source):
        """Returns at once; the event is when the values are there."""
        with torch.cuda.stream(self._ways[way]):
            target.copy_(source, non_blocking=True)
        return self._ways[way].record_event()

    def end(self, event):
        """The host waits."""
        event.synchronize()


class _Chunks:
    """Pinned memory that is used in turn. A chunk may be used again when its last copy has ended."""

    def __init__(self, streams, size):
        self._streams = streams
        self._memory = [streams.pinned(size) for _ in range(CHUNKS)]
        self._copied = [None] * CHUNKS  # events
        self._next = 0

    def take(self):
        """Its number, and the memory."""
        number, self._next = self._next, (self._next + 1) % CHUNKS
        if self._copied[number] is not None:
            self._streams.end(self._copied[number])
            self._copied[number] = None
        return number, self._memory[number]

    def copies(self, number, event):
        self._copied[number] = event


class Link:
    """To one device. Used by one thread at a time each way."""

    def __init__(self, streams, chunk_bytes):
        self.streams = streams
        self.chunk_bytes = chunk_bytes
        self._down, self._up = _Chunks(streams, chunk_bytes), _Chunks(streams, chunk_bytes)
        self._last_up = None  # the event behind all that has gone up

    @property
    def host_bytes(self):
        return 2 * CHUNKS * self.chunk_bytes

    def pieces(self, values, ready):
        """(first, values on the host) of all that `values` has, which lies contiguously on the device and is complete
        with the event `ready`. Each piece until the next is asked for, while others are under way."""
        values = values.detach().view(-1)
        step = self.chunk_bytes // values.element_size()
        self.streams.wait("down", ready)
        under_way, first = deque(), 0
        while under_way or first < values.numel():
            while first < values.numel() and len(under_way) < CHUNKS:
                source = values[first : first + step]
                number, memory = self._down.take()
                piece = memory[: source.numel() * source.element_size()].view(source.dtype)
                event = self.streams.copy("down", piece, source)
                self._down.copies(number, event)
                under_way.append((first, piece, event))
                first += source.numel()
            begins, piece, event = under_way.popleft()
            self.streams.end(event)
            yield begins, piece

    def begin_up(self):
        """The caller looks no more at what is to be overwritten."""
        self.streams.wait("up", self.streams.caller())

    def up(self, target, fill):
        """`target`, which lies contiguously on the device, gets what fill(first, piece) writes into each piece."""
        target = target.detach().view(-1)
        step = self.chunk_bytes // target.element_size()
        for first in range(0, target.numel(), step):
            to = target[first : first + step]
            number, memory = self._up.take()
            piece = memory[: to.numel() * to.element_size()].view(to.dtype)
            fill(first, piece)
            self._last_up = self.streams.copy("up", to, piece)
            self._up.copies(number, self._last_up)

    def end_up(self):
        """The caller may look at it: its stream waits."""
        if self._last_up is not None:
            self.streams.caller_waits(self._last_up)


def fill_from(address):
    """For up(): from host memory of somebody else's."""
    return lambda first, piece: c.memmove(
        piece.data_ptr(), address + first * piece.element_size(), piece.numel() * piece.element_size()
    )
