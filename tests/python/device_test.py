#!/usr/bin/env python3
"""Parameters on devices: the bits of torch.optim.AdamW, whatever copies take, and what is refused.

No device is needed: see device_support.py. Usage: device_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set.
Ends with 77 without torch.
"""
import contextlib
import copy
import gc
import os
import random
import types
import unittest
from unittest import mock

from device_support import World
from optimizer_support import BUDGET, SEED, X, Case, fails_in_backward, loop, mse, net, nn, torch, words_different

import penstock
from penstock import _device


class Devices(Case):
    def setUp(self):
        super().setUp()
        self.world = self.enterContext(World())

    def placed(self, model, places=("cuda:0", None, "cuda:1")):
        """Its layers in turn there; None is the host."""
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        for layer, place in zip(layers, places, strict=True):
            for p in layer.parameters():
                if place is not None:
                    self.world.place(p, place)
        return model

    def same(self, scenario, **more):
        """Both values of `begin` leave torch's bits. The optimizer of the second."""
        theirs, _ = scenario(self.fused)
        for begin in ("step", "backward"):
            ours, optimizer = scenario(lambda params, **kw: self.tiered(params, begin=begin, **more, **kw))
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"begin {begin}, seed {SEED}")
        self.assertGreater(self.world.copies("down"), 0)
        self.assertGreater(self.world.copies("up"), 0)
        return optimizer

    def test_fifty_steps_on_two_devices_and_the_host(self):
        def scenario(make):
            model = self.placed(net())
            biases = [p for p in model.parameters() if p.ndim == 1]
            matrices = [p for p in model.parameters() if p.ndim == 2]
            groups = [dict(params=matrices, weight_decay=0.1), dict(params=biases, lr=3e-3, betas=(0.8, 0.99))]
            optimizer = make(groups, lr=1e-2, weight_decay=0.0)
            draw = random.Random(SEED)

            def before(s, m, o):
                # Whole layers are left out on some steps.
                frozen = draw.choice((None, None, m[0], m[4]))
                for layer in (m[0], m[4]):
                    layer.requires_grad_(layer is not frozen)

            return loop(make, 50, model=model, optimizer=optimizer, before=before)

        optimizer = self.same(scenario)
        self.assertGreater(optimizer._penstock.early.published, 10)

    def test_gradients_given_up_midway_and_clipping(self):
        clip = dict(pre=lambda s, m, o: s % 3 == 0 and nn.utils.clip_grad_norm_(m.parameters(), 0.05))
        optimizer = self.same(lambda make: loop(make, 8, k=2, model=self.placed(net()), **clip))
        self.assertGreater(optimizer._penstock.early.redone, 0)

    def test_edits_are_adopted_and_checkpoints_loaded(self):
        def scenario(make):
            kept = {}

            def before(s, m, o):
                if s == 2:
                    m.load_state_dict(net().state_dict())
                if s == 3:
                    kept.update(copy.deepcopy(dict(model=m.state_dict(), optimizer=o.state_dict())))
                if s == 5:  # back to step 3
                    o.load_state_dict(kept["optimizer"])
                    m.load_state_dict(kept["model"])

            return loop(make, 8, model=self.placed(net()), before=before)

        self.same(scenario)

    def test_torchs_own_layout_is_loaded_and_given(self):
        first, plain = loop(self.fused, 3, model=self.placed(net()))
        torn = plain.state_dict()
        model = self.placed(net())
        model.load_state_dict(first.state_dict())
        optimizer = self.tiered(model.parameters(), lr=1e-2, state_dict="full")
        optimizer.load_state_dict(torn)
        for m, o in ((first, plain), (model, optimizer)):
            loop(None, 3, model=m, optimizer=o)
        self.assertEqual(words_different(first.parameters(), model.parameters()), 0)
        theirs, ours = plain.state_dict()["state"], optimizer.state_dict()["state"]
        for i in theirs:
            for name in ("exp_avg", "exp_avg_sq"):
                self.assertEqual(words_different([theirs[i][name]], [ours[i][name]]), 0)

    def test_another_process_goes_on(self):
        def model():
            return self.placed(net())

        theirs, _ = loop(self.fused, 6, model=model())
        store = self.folder / "store"
        _, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), 3, model=model())
        optimizer.close()
        ours = model()
        again = self.tiered(ours.parameters(), lr=1e-2, store=store)
        self.assertEqual(again.resume(), 3)
        for step in range(3, 6):
            mse(ours, X[step]).backward()
            again.step(), again.zero_grad()
        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)

    def test_half_weights_of_every_dtype(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                torch.manual_seed(SEED)
                ours = self.world.place(nn.Parameter(torch.randn(96, 48).to(dtype)), "cuda:0")
                beside = self.world.place(nn.Parameter(torch.randn(96, 48).t()), "cuda:0")  # not in a row
                master, plain_beside = nn.Parameter(ours.detach().float()), nn.Parameter(beside.detach().clone())
                optimizer = self.tiered([ours, beside], lr=1e-4)
                plain = self.fused([master, plain_beside], lr=1e-4)
                for _ in range(10):
                    ours.grad, beside.grad = torch.randn(96, 48).to(dtype), torch.randn(96, 48).t()
                    master.grad, plain_beside.grad = ours.grad.float(), beside.grad
                    optimizer.step(), plain.step()
                self.assertEqual(words_different([ours, beside], [master.to(dtype), plain_beside]), 0)

    def test_an_exception_in_backward(self):
        Fails = fails_in_backward()

        def scenario(make):
            def backward(l, m):
                for Fails.fails in (True, False):
                    with contextlib.suppress(ArithmeticError):
                        l.backward(retain_graph=True)
                    if Fails.fails:
                        m.zero_grad()

            return loop(make, 5, model=self.placed(net()), backward=backward,
                        loss=lambda m, x: (m[2:](Fails.apply(m[:2](x))) - x).square().mean())

        self.same(scenario)

    def test_a_copy_that_fails_is_raised_by_step(self):
        for begin in ("step", "backward"):
            for way in ("down", "up"):
                with self.subTest(begin=begin, way=way):
                    theirs, plain = loop(self.fused, 3)
                    store = self.folder / f"{begin}-{way}"
                    model = self.placed(net())
                    ours, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store, begin=begin), 3,
                                           model=model)
                    before = [p.detach().clone() for p in ours.parameters()]
                    mse(ours, X[3]).backward()
                    self.world.faults[way] = 1
                    with self.assertRaises(RuntimeError) as caught:
                        optimizer.step()
                    error = caught.exception.__cause__ or caught.exception
                    self.assertIn(f"CUDA error: a copy {way} failed", str(error))
                    self.world.faults.clear()
                    if way == "up":  # the store may have committed it; it is opened anew
                        step = optimizer.resume()
                        self.assertIn(step, (3, 4))
                    else:
                        step = 3
                        self.assertEqual(words_different(before, ours.parameters()), 0)
                    if step == 3:
                        optimizer.zero_grad()
                        mse(ours, X[3]).backward()
                        optimizer.step()
                    mse(theirs, X[3]).backward()
                    plain.step()
                    self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)

    def test_pinned_memory_is_bounded_and_counted(self):
        for chunk_bytes in (4 << 20, 8192):
            with self.subTest(chunk_bytes=chunk_bytes), World(chunk_bytes) as world:
                p = world.place(nn.Parameter(torch.zeros(1 << 20)), "cuda:0")
                optimizer = self.tiered([p], lr=0.5, weight_decay=0.0)
                for _ in range(2):
                    p.grad = torch.ones_like(p)
                    optimizer.step()
                torch.testing.assert_close(p.detach(), torch.full_like(p, -1.0))
                self.assertEqual(world.pinned_bytes(), min(chunk_bytes, (64 << 20) // 32) * 8)
                self.assertLessEqual(optimizer.statistics()["host_bytes"], 64 << 20)
                self.assertGreater(optimizer.statistics()["host_bytes"], world.pinned_bytes())
                self.assertGreaterEqual(world.copies("down"), 2 * (p.numel() * 4 // min(chunk_bytes, 2 << 20)))

    def test_del_and_close_in_the_middle_of_a_step(self):
        for ends in ("del", "close", "state_dict"):
            with self.subTest(ends):
                theirs, plain = loop(self.fused, 3)
                store, model = self.folder / ends, self.placed(net())
                _, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store, begin="backward"), 3,
                                    model=model)
                mse(model, X[3]).backward()  # updates have begun
                self.assertTrue(optimizer._penstock.early.under_way)
                if ends == "state_dict":
                    self.assertEqual(optimizer.state_dict()["penstock"]["step"], 3)
                    optimizer.step()
                    mse(theirs, X[3]).backward(), plain.step()
                elif ends == "close":
                    optimizer.close()
                del optimizer
                gc.collect()
                self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0)

    def test_a_forked_child_is_refused(self):
        model = self.placed(net())
        _, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, begin="backward"), 2, model=model)
        mse(model, X[2]).backward()
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
                os._exit(1)
            except penstock.PenstockError as error:
                os._exit(0 if "this process was forked; the store belongs to its parent" in str(error) else 2)
            finally:
                os._exit(3)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        optimizer.step()
        self.assertEqual(optimizer._penstock.early.published, 2)


class Cuda(Case):
    """The class that names torch.cuda, where there is none."""

    def test_a_device_that_torch_does_not_see(self):
        if torch.cuda.is_available():
            self.skipTest("it sees one")
        with self.assertRaises(penstock.PenstockError) as caught:
            _device.CudaStreams(torch.device("cuda:0"))
        self.assertEqual(caught.exception.message, "a parameter on cuda:0, and torch sees no CUDA device")
        self.assertIn("nvidia-smi", caught.exception.remedy)

    def test_other_devices_are_refused(self):
        self.refused("penstock.AdamW: a parameter on meta; the CPU or a CUDA device expected", self.tiered,
                     [nn.Parameter(torch.empty(4, device="meta"))])

    def test_the_calls_that_it_makes(self):
        """Each in its order, on the streams that they are meant for; the copies are carried out at once."""
        told = []

        class Stream:
            def __init__(self, name):
                self.name = name

            def record_event(self):
                told.append(f"{self.name} records")
                return types.SimpleNamespace(synchronize=lambda: told.append(f"host waits for {self.name}"),
                                             of=self.name)

            def wait_event(self, event):
                told.append(f"{self.name} waits for {event.of}")

        ours = iter(("down", "up"))
        callers, current = Stream("caller"), []
        cuda = types.SimpleNamespace(
            is_available=lambda: True, Stream=lambda device: Stream(next(ours)),
            current_stream=lambda device: current[-1] if current else callers)

        @contextlib.contextmanager
        def stream(one):
            current.append(one)
            told.append(f"on {one.name}")
            yield
            current.pop()

        cuda.stream = stream
        empty = torch.empty

        def pinned(*shape, pin_memory=False, **more):
            if pin_memory:
                told.append("pinned")
            return empty(*shape, **more)

        with mock.patch.object(torch, "cuda", cuda), mock.patch.object(torch, "empty", pinned):
            link = _device.Link(_device.CudaStreams("cuda:0"), 512)
            self.assertEqual(told, ["pinned"] * 8)
            told.clear()
            values, target = torch.arange(200.0), torch.zeros(200)
            pieces = [(first, piece.clone()) for first, piece in link.pieces(values, link.streams.caller())]
            self.assertEqual([first for first, _ in pieces], [0, 128])
            self.assertTrue(torch.equal(torch.cat([piece for _, piece in pieces]), values))
            self.assertEqual(told, ["caller records", "down waits for caller", "on down", "down records", "on down",
                                    "down records", "host waits for down", "host waits for down"])
            told.clear()
            link.begin_up()
            link.up(target, _device.fill_from(values.data_ptr()))
            link.end_up()
            self.assertTrue(torch.equal(target, values))
            self.assertEqual(told, ["caller records", "up waits for caller", "on up", "up records", "on up",
                                    "up records", "caller waits for up"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
