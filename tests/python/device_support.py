"""Parameters that pretend to be on a device, for machines without one.

Their memory is the host's, and what the caller computes with them happens at once. What penstock copies happens late, in
a thread for each way, after a random delay; until then the target holds no numbers. Every copy is checked for what its
stream has been told to wait for: what was computed before it (the clock ticks with each gradient) must be among it.
"""
import queue
import random
import threading
import time

from optimizer_support import SEED, torch

from penstock import _device

DELAY_MOST_S = 0.002


class World:
    """The devices of a test, and the caller's clock. Used as a context: penstock takes these devices for CUDA's."""

    def __init__(self, chunk_bytes=4096):
        self.clock = 0
        self.made = {}  # by address: when the caller's stream made it
        self.streams = []
        self.chunk_bytes = chunk_bytes
        self.faults = {}  # by way: how many copies go well before one fails

    def place(self, p, device):
        """Before the optimizer is made, so that this hook comes first."""
        p.pretends = device
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(self.tick)
        return p

    def tick(self, p):
        self.clock += 1
        self.made[p.grad.untyped_storage().data_ptr()] = self.clock

    def __enter__(self):
        self.kept = _device.place_of, _device.CudaStreams, _device.CHUNK_BYTES
        _device.place_of = lambda tensor: getattr(tensor, "pretends", None)
        _device.CudaStreams = lambda device: DelayedStreams(self, device)
        _device.CHUNK_BYTES = self.chunk_bytes
        return self

    def __exit__(self, *_):
        _device.place_of, _device.CudaStreams, _device.CHUNK_BYTES = self.kept
        for streams in self.streams:
            streams.leave()

    def pinned_bytes(self):
        return sum(streams.pinned_bytes for streams in self.streams)

    def copies(self, way):
        return sum(streams.copies[way] for streams in self.streams)


class Event:
    def __init__(self, clock=0):
        self.clock = clock  # what of the caller's it comes behind
        self.happened = threading.Event()


class DelayedStreams:
    def __init__(self, world, device):
        self.world, self.device = world, device
        self.pinned_bytes = 0
        self.copies = {"down": 0, "up": 0}
        self.waited = {"down": 0, "up": 0}
        self.queues = {way: queue.SimpleQueue() for way in self.copies}
        for seed, way in enumerate(self.queues):
            draw = random.Random(SEED * 10 + len(world.streams) * 2 + seed)
            threading.Thread(target=self.work, args=(self.queues[way], draw), daemon=True).start()
        world.streams.append(self)

    @staticmethod
    def work(todo, draw):
        while True:
            one = todo.get()
            if one is None:
                return
            if draw.random() < 0.3:
                time.sleep(draw.random() * DELAY_MOST_S)
            one()

    def leave(self):
        for todo in self.queues.values():
            todo.put(None)

    # -- what CudaStreams has -----------------------------------------------------------------------------------------

    def pinned(self, size):
        self.pinned_bytes += size
        return torch.full((size,), 0xFF, dtype=torch.uint8)

    def caller(self):
        event = Event(self.world.clock)
        event.happened.set()  # on the host
        return event

    def caller_waits(self, event):
        event.happened.wait()

    def wait(self, way, event):
        self.waited[way] = max(self.waited[way], event.clock)
        self.queues[way].put(event.happened.wait)

    def copy(self, way, target, source):
        left = self.world.faults.get(way)
        if left is not None:
            self.world.faults[way] = left - 1
            if left == 0:
                raise RuntimeError(f"CUDA error: a copy {way} failed")
        # A gradient must have been made; weights must have been looked at for the last time.
        made = self.world.clock if way == "up" else self.world.made.get(source.untyped_storage().data_ptr(), 0)
        if made > self.waited[way]:
            raise AssertionError(f"{way} of {self.device}: a copy comes before what the caller computes")
        self.copies[way] += 1
        target.view(torch.uint8).fill_(0xFF)  # NaN in every dtype
        event = Event()

        def happen():
            target.copy_(source)
            event.happened.set()

        self.queues[way].put(happen)
        return event

    def end(self, event):
        event.happened.wait()
