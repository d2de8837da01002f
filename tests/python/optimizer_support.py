"""What the tests of the optimizers share: a small model, the loop that users write, stores that vanish afterwards, and
processes to kill."""
import gc
import os
import signal
import sys
import tempfile
import traceback
import unittest
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

import torch.nn.functional as F
from torch import nn

import penstock

torch.set_num_threads(1)
SEED = 11
BUDGET = "host=64MiB"
X = torch.randn(64, 8, 16, generator=torch.Generator().manual_seed(SEED))


def net(dtype=torch.float32):
    """Sizes are multiples of 16: torch rounds the rest of a fused loop otherwise."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 16))
    return model.to(dtype)


def mse(model, x):
    return F.mse_loss(model(x), x)


# Elements of a turn of torch's fused loop, at its widest. The engine computes each element as the loop's body does
# (DESIGN.md 5). Fewer, at the end of a parameter, are left to torch's scalar code, which rounds each product by itself.
LOOP = 16


def filled_up(values):
    """So that the body has them all."""
    return F.pad(values, (0, -values.numel() % LOOP))


def nothing(*_):
    pass


def loop(make, steps=6, k=1, model=None, optimizer=None, loss=mse, before=nothing, backward=lambda l, m: l.backward(),
         pre=nothing, step=lambda o: o.step(), post=nothing, zero=lambda m, o: o.zero_grad()):
    """A training loop with a place for everything that users do. The model and its optimizer."""
    model = model or net()
    optimizer = optimizer or make(model.parameters(), lr=1e-2)
    for s in range(steps):
        before(s, model, optimizer)
        for i in range(k):
            backward(loss(model, X[(s * k + i) % 64]) / k, model)
        pre(s, model, optimizer), step(optimizer), post(s, model, optimizer), zero(model, optimizer)
    return model, optimizer


def clip(s, m, o):
    nn.utils.clip_grad_norm_(m.parameters(), 0.05)


def each(function):
    return lambda s, m, o: [function(p) for p in m.parameters()]


def words_different(a, b):
    def bits(t):
        return t.detach().contiguous().view(torch.int32 if t.element_size() == 4 else torch.int16)

    return sum(int((bits(x) != bits(y)).sum()) for x, y in zip(a, b, strict=True))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="penstock-python-")))
        self.made = 0

    def fused(self, params, **more):
        return torch.optim.AdamW(params, fused=True, **more)

    def tiered(self, params, **more):
        """A store of its own for each."""
        self.made += 1
        return penstock.AdamW(params, **{"store": self.folder / str(self.made), "budget": BUDGET, **more})

    def same(self, scenario):
        """As scenario(make) goes with torch.optim.AdamW(fused=True). The two optimizers, by `begin`."""
        theirs, _ = scenario(self.fused)
        optimizers = []
        for begin in ("step", "backward"):
            ours, optimizer = scenario(lambda params, **more: self.tiered(params, begin=begin, **more))
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"begin {begin}, seed {SEED}")
            optimizers.append(optimizer)
        return optimizers

    def assert_vector_rule(self, theirs_filled_up, theirs, ours):
        """Not a word differs from torch's loop over filled_up() parameters, and so from its loop over these, but for its
        rest; which after 50 steps was seen to differ by 1.5e-7 of a weight, or 1.5e-8."""
        cut = [p.detach()[: q.numel()] for p, q in zip(theirs_filled_up, ours, strict=True)]
        self.assertEqual(words_different(cut, ours), 0, f"seed {SEED}")
        for p, q in zip(theirs, ours, strict=True):
            whole = p.numel() // LOOP * LOOP
            self.assertEqual(words_different([p[:whole]], [q[:whole]]), 0, f"seed {SEED}")
            torch.testing.assert_close(p[whole:], q[whole:], rtol=1e-6, atol=1e-7)

    def refused(self, message, function, *arguments):
        with self.assertRaises(penstock.PenstockError) as caught:
            function(*arguments)
        self.assertIn(message, str(caught.exception))


class Child:
    """A process that runs work(tell), and is killed with -9 at the end of `with`. It begins with what is loaded here, so
    that fifty start in seconds; no engine may be open. What it tells comes out line by line."""

    def __init__(self, work):
        reader, writer = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(reader)
            try:
                work(lambda line: os.write(writer, f"{line}\n".encode()))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writer)
        self.told = os.fdopen(reader)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.told.close()


# A run in a process of its own: store, steps, the file that gets the weights.
WORKER = """
import sys
import torch
from optimizer_support import X, mse, net
import penstock
model = net()
optimizer = penstock.AdamW(model.parameters(), lr=1e-2, store=sys.argv[1], budget="host=64MiB")
for step in range(optimizer.resume(), int(sys.argv[2])):
    print("step", step, flush=True)
    mse(model, X[step % 64]).backward()
    optimizer.step(), optimizer.zero_grad()
torch.save(model.state_dict(), sys.argv[3])
print("done", flush=True)
"""


def fails_in_backward():
    """A function of autograd that does nothing, and raises in backward while its `fails` is true."""
    class Fails(torch.autograd.Function):
        fails = False
        forward = staticmethod(lambda ctx, x: x.clone())

        @staticmethod
        def backward(ctx, gradient):
            if Fails.fails:
                raise ArithmeticError("in backward")
            return gradient

    return Fails


def in_child(case, work):
    """Runs it in a process of its own, which opens stores where this one has none open."""
    gc.collect()
    child = os.fork()
    if child == 0:
        try:
            work()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    case.assertEqual(os.waitpid(child, 0)[1], 0)
