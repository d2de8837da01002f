#!/usr/bin/env python3
"""penstock.AdamW and the others against torch.optim: the same loops, the same bits; and what torch does not have.

Usage: optimizer_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set. Ends with 77 where torch is absent.
"""
import copy
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
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

    def refused(self, message, function, *arguments):
        with self.assertRaises(penstock.PenstockError) as caught:
            function(*arguments)
        self.assertIn(message, str(caught.exception))


class PlainLoops(Case):
    """What users do in their loops leaves the bits that it leaves with torch.optim.AdamW(fused=True)."""

    def same(self, scenario):
        """The two optimizers, by `begin`."""
        theirs, _ = scenario(self.fused)
        optimizers = []
        for begin in ("step", "backward"):
            ours, optimizer = scenario(lambda params, **more: self.tiered(params, begin=begin, **more))
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"begin {begin}, seed {SEED}")
            optimizers.append(optimizer)
        return optimizers

    def test_loops(self):
        scenarios = {
            "accumulation": dict(k=4),
            "zero_grad(set_to_none=False)": dict(k=2, zero=lambda m, o: o.zero_grad(set_to_none=False)),
            "model.zero_grad()": dict(k=2, zero=lambda m, o: m.zero_grad()),
            "never zeroed": dict(zero=nothing),
            "clip_grad_norm_": dict(k=2, pre=clip),
            "clip_grad_value_": dict(pre=lambda s, m, o: nn.utils.clip_grad_value_(m.parameters(), 1e-3)),
            "p.grad scaled in place": dict(pre=each(lambda p: p.grad.mul_(0.5))),
            "p.grad replaced": dict(pre=each(lambda p: setattr(p, "grad", p.grad.sign()))),
            "lr set before step": dict(pre=lambda s, m, o: o.param_groups[0].update(lr=1e-2 / (s + 1))),
            "frozen midway": dict(before=lambda s, m, o: m[2].requires_grad_(s not in (2, 3))),
            "two backwards": dict(backward=lambda l, m: (l.backward(retain_graph=True), (l * l).backward())),
            "create_graph": dict(backward=lambda l, m: l.backward(create_graph=True)),
            "autocast": dict(loss=lambda m, x: torch.autocast("cpu", torch.bfloat16)(mse)(m, x)),
            "absent": dict(k=2, loss=lambda m, x: mse(m, x) if x[0, 0] > 0 else mse(lambda x: m[0](x)[:, :16], x)),
            "load_state_dict midway": dict(before=lambda s, m, o: s == 3 and m.load_state_dict(net().state_dict())),
            "p.clamp_": dict(post=each(torch.no_grad()(lambda p: p.clamp_(-0.2, 0.2)))),
        }
        published = {}
        for name, manner in scenarios.items():
            with self.subTest(name):
                early = self.same(lambda make: loop(make, **manner))[1]._penstock.early
                published[name] = early.published
                self.assertLessEqual(early.redone, 2 * early.STRIKES)
        # The first step learns how many contributions make a gradient.
        self.assertEqual(published["accumulation"], 5)
        self.assertEqual(published["never zeroed"], 5)
        self.assertEqual(published["clip_grad_norm_"], 0)
        self.assertGreater(published["absent"], 0)

    def test_an_exception_in_backward_then_model_zero_grad(self):
        class Fails(torch.autograd.Function):
            calls = 0
            forward = staticmethod(lambda ctx, x: x.clone())

            @staticmethod
            def backward(ctx, gradient):
                Fails.calls += 1
                if Fails.calls == 5:
                    raise ArithmeticError("in backward")
                return gradient

        def scenario(make):
            def backward(l, m):
                try:
                    l.backward()
                except ArithmeticError:
                    m.zero_grad()

            Fails.calls = 0
            return loop(make, k=2, backward=backward, loss=lambda m, x: F.mse_loss(m[2:](Fails.apply(m[:2](x))), x))

        self.same(scenario)

    def test_tied_and_reused_and_checkpointed(self):
        from torch.utils.checkpoint import checkpoint

        for reentrant in (None, False, True):
            def scenario(make):
                model = net()
                model[2].weight = nn.Parameter(torch.randn(48, 48) / 48)
                model[3] = nn.Linear(48, 48)
                model[3].weight = model[2].weight

                def layers(x):
                    return torch.tanh(model[3](model[2](x)))

                def again(x):
                    return layers(x) if reentrant is None else checkpoint(layers, x, use_reentrant=reentrant)

                return loop(make, k=2, model=model, loss=lambda m, x: F.mse_loss(m[4](again(again(m[0](x)))), x))

            with self.subTest(reentrant=reentrant):
                self.same(scenario)

    def test_what_is_looked_at_in_the_middle_of_a_step(self):
        def scenario(make):
            def pre(s, m, o):
                if isinstance(o, penstock.AdamW) and s in (2, 4):
                    o.state_dict() if s == 2 else o.state[m[0].weight]["exp_avg"]

            return loop(make, pre=pre)

        early = self.same(scenario)[1]._penstock.early
        self.assertEqual((early.published, early.redone), (3, 2))

    def test_fifty_steps_with_groups_and_a_scheduler(self):
        def scenario(make):
            model = net()
            biases = [p for p in model.parameters() if p.ndim == 1]
            matrices = [p for p in model.parameters() if p.ndim == 2]
            groups = [dict(params=matrices, weight_decay=0.1), dict(params=biases, lr=3e-3, betas=(0.8, 0.99))]
            optimizer = make(groups, lr=1e-2, weight_decay=0.0)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=60)
            draw = random.Random(SEED)

            def absences(s, m, o):
                for p in m.parameters():
                    if draw.random() < 0.2:
                        p.grad = None

            return loop(make, 50, model=model, optimizer=optimizer, pre=absences, post=lambda s, m, o: scheduler.step())

        self.same(scenario)

    def test_sizes_that_are_multiples_of_nothing(self):
        def scenario(make):
            torch.manual_seed(SEED)
            params = [nn.Parameter(torch.randn(n)) for n in (1, 7, 100, 1000, 70_001, 65_537)]
            optimizer = make(params, lr=1e-2)
            for _ in range(20):
                for p in params:
                    p.grad = torch.randn(p.shape)
                optimizer.step()
            return params

        for theirs, ours in zip(scenario(self.fused), scenario(self.tiered), strict=True):
            whole = theirs.numel() // 16 * 16
            self.assertEqual(words_different([theirs[:whole]], [ours[:whole]]), 0, f"seed {SEED}")
            # In the rest torch rounds each product by itself.
            torch.testing.assert_close(theirs[whole:], ours[whole:], rtol=2e-6, atol=2e-7)

    def test_closure(self):
        def scenario(make):
            model = net()

            def closure():
                model.zero_grad()
                loss = mse(model, X[0])
                loss.backward()
                return loss

            def step(optimizer):
                self.assertGreater(float(optimizer.step(closure)), 0)

            return loop(make, model=model, backward=nothing, step=step)

        self.same(scenario)

    def test_grad_scaler_unscale_clip_and_overflow(self):
        def scenario(make):
            scaler, calls = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4), []

            def backward(l, m):
                calls.append(l)
                scaler.scale(l * (float("inf") if len(calls) in (5, 8) else 1.0)).backward()

            def pre(s, m, o):
                scaler.unscale_(o)
                clip(s, m, o)

            return loop(make, k=2, backward=backward, pre=pre, step=lambda o: (scaler.step(o), scaler.update()))

        self.same(scenario)

    def test_data_edits_are_seen_by_the_fingerprint(self):
        manner = dict(post=each(lambda p: p.data.clamp_(-0.2, 0.2)))
        theirs, _ = loop(self.fused, **manner)
        for begin in ("step", "backward"):
            more = dict(weights="fingerprint", begin=begin)
            ours, _ = loop(lambda params, lr: self.tiered(params, lr=lr, **more), **manner)
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)

    def test_data_edits_are_lost_without_the_fingerprint(self):
        """As the documentation says: nothing tells of them. The masters win, in both ways alike."""
        manner = dict(post=each(lambda p: p.data.clamp_(-0.2, 0.2)))
        untouched, _ = loop(self.fused)
        ours = [loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin), **manner)[0]
                for begin in ("step", "backward")]
        self.assertEqual(words_different(ours[0].parameters(), ours[1].parameters()), 0)
        self.assertNotEqual(words_different(untouched.parameters(), ours[0].parameters()), 0)  # forward saw the edits

    def test_gradient_penalty(self):
        def scenario(make):
            def backward(loss, model):
                gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
                (loss + sum(g.square().sum() for g in gradients)).backward()

            return loop(make, k=2, backward=backward)

        self.same(scenario)

    def test_a_forward_without_gradients_between_micro_batches(self):
        def scenario(make):
            def backward(loss, model):
                loss.backward()
                with torch.no_grad():
                    model(X[0])

            return loop(make, k=2, backward=backward)

        self.same(scenario)

    def test_a_compiled_model(self):
        def scenario(make):
            model = net()
            compiled = torch.compile(model, backend="aot_eager")
            return loop(make, k=2, model=model, loss=lambda m, x: mse(compiled, x))

        self.same(scenario)

    def test_a_second_optimizer_of_another_class_on_the_same_parameters(self):
        def scenario(make):
            model = net()
            second = torch.optim.SGD(model.parameters(), lr=1e-3)
            return loop(make, k=2, model=model, post=lambda s, m, o: second.step())

        self.same(scenario)

    def test_built_twice_on_one_model(self):
        """The one that steps is the one that counts; the other's hooks do no harm."""
        def scenario(make):
            model = net()
            first = make(model.parameters(), lr=1.0)
            result = loop(make, k=2, model=model)
            del first
            return result

        self.same(scenario)

    def test_layouts_that_the_engine_does_not_write_itself(self):
        def scenario(make):
            torch.manual_seed(SEED)
            image = torch.randn(2, 16, 4, 4).to(memory_format=torch.channels_last)
            params = [nn.Parameter(torch.randn(32, 48).t()), nn.Parameter(image)]
            optimizer = make(params, lr=1e-2)
            for _ in range(4):
                for p in params:
                    p.grad = torch.randn_like(p)  # in the parameter's layout, as autograd gives it
                optimizer.step()
            return params

        self.assertEqual(words_different(scenario(self.fused), scenario(self.tiered)), 0)

    def test_step_is_noticed_by_autograd(self):
        model, optimizer = loop(self.tiered, steps=1)
        loss = mse(model, X[0])
        mse(model, X[1]).backward()
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()


class ClipNorm(Case):
    def test_clips_as_clip_grad_norm_does(self):
        norms = []

        def pre(s, m, o):
            norms.append(float(nn.utils.clip_grad_norm_(m.parameters(), 0.5)))

        theirs, _ = loop(self.fused, pre=pre, steps=12)
        self.assertTrue(min(norms) < 0.5 < max(norms), norms)
        for begin in ("step", "backward"):
            ours = []
            model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, clip_norm=0.5, begin=begin), steps=12,
                                    post=lambda s, m, o: ours.append(o.gradient_norm))
            torch.testing.assert_close(ours, norms, rtol=1e-5, atol=0)  # torch adds the squares up in fp32
            for p, q in zip(theirs.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
        self.assertEqual(optimizer._penstock.early.published, 11)


class OtherOptimizers(Case):
    def test_the_bits_of_torch(self):
        for ours, theirs, more in (
            (penstock.Adam, torch.optim.Adam, dict(weight_decay=0.01)),
            (penstock.Adagrad, torch.optim.Adagrad, dict(lr_decay=0.1)),
            (penstock.SGD, torch.optim.SGD, dict(momentum=0.9, nesterov=True, weight_decay=0.01)),
            (penstock.SGD, torch.optim.SGD, dict()),
        ):
            with self.subTest(ours.__name__, **more):
                model, _ = loop(lambda params, lr: theirs(params, lr=lr, fused=True, **more))
                store = self.folder / f"{ours.__name__}{len(more)}"
                tiered, _ = loop(lambda params, lr: ours(params, lr=lr, store=store, budget=BUDGET, **more))
                self.assertEqual(words_different(model.parameters(), tiered.parameters()), 0)

    def test_lion_is_its_papers_loop(self):
        torch.manual_seed(SEED)
        ours = nn.Parameter(torch.randn(4096))
        theirs, m = ours.detach().clone(), torch.zeros(4096)
        optimizer = penstock.Lion([ours], lr=1e-3, weight_decay=0.1, store=self.folder / "lion", budget=BUDGET)
        for _ in range(5):
            ours.grad = g = torch.randn(4096)
            optimizer.step()
            theirs = theirs * (1 - 1e-3 * 0.1) - 1e-3 * torch.sign(m.lerp(g, 0.1))
            m = m.lerp(g, 0.01)
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-7)


class HalfWeights(Case):
    def test_weights_are_masters_rounded(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                torch.manual_seed(SEED)
                ours = nn.Parameter(torch.randn(64, 48).to(dtype))
                master = nn.Parameter(ours.detach().float())
                optimizer, plain = self.tiered([ours], lr=1e-4), self.fused([master], lr=1e-4)
                for _ in range(20):
                    ours.grad = torch.randn(64, 48).to(dtype)
                    master.grad = ours.grad.float()
                    optimizer.step(), plain.step()
                self.assertEqual(words_different([ours], [master.to(dtype)]), 0)

    def test_mixed_in_one_store(self):
        params = [nn.Parameter(torch.ones(100, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
        optimizer = self.tiered(params, lr=0.25, weight_decay=0.0)
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        for p in params:
            self.assertEqual(float(p.detach()[0]), 0.75)

    def test_edits_of_some_weights_keep_the_other_masters(self):
        torch.manual_seed(SEED)
        ours = nn.Parameter(torch.randn(1000).bfloat16())
        master = nn.Parameter(ours.detach().float())
        optimizer, plain = self.tiered([ours], lr=1e-4), self.fused([master], lr=1e-4)
        for step in range(10):
            ours.grad = torch.randn(1000).bfloat16()
            master.grad = ours.grad.float()
            optimizer.step(), plain.step()
            if step == 4:
                with torch.no_grad():
                    ours[::10] = 0.5
                    master[::10] = 0.5
        whole = 992
        self.assertEqual(words_different([ours[:whole]], [master[:whole].bfloat16()]), 0)

    def test_grad_scaler(self):
        p = nn.Parameter(torch.ones(64).half())
        optimizer, scaler = self.tiered([p], lr=0.25, weight_decay=0.0), torch.amp.GradScaler("cpu", init_scale=256.0)
        for factor, expected in ((1.0, 0.75), (float("inf"), 0.75), (1.0, 0.5)):
            scaler.scale(p.float().sum() * factor).backward()
            scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
            self.assertAlmostEqual(float(p.detach()[0]), expected, places=3)


class StateDicts(Case):
    def test_reference_is_small_and_rolls_back(self):
        whole, _ = loop(self.fused, steps=9)
        model, optimizer = loop(self.tiered, steps=5)
        weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        self.assertLess(file.tell(), 8192)
        file.seek(0)
        loop(None, steps=4, model=model, optimizer=optimizer)  # the store goes on
        model.load_state_dict(weights)
        optimizer.load_state_dict(torch.load(file, weights_only=True))
        for s in range(5, 9):
            mse(model, X[s]).backward()
            optimizer.step(), optimizer.zero_grad()
        self.assertEqual(words_different(whole.parameters(), model.parameters()), 0)
        self.assertEqual(optimizer.kept(), [5])
        optimizer.drop(5)
        self.refused("kept: []", optimizer.load_state_dict, state)

    def test_another_process_goes_on_from_it(self):
        whole, _ = loop(self.fused, steps=9)
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=5)
        weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()
        loop(None, steps=2, model=model, optimizer=optimizer)
        optimizer.close()
        (model := net()).load_state_dict(weights)
        optimizer = self.tiered(model.parameters(), lr=0.5, store=store)
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[0]["lr"], 1e-2)
        for s in range(5, 9):
            mse(model, X[s]).backward()
            optimizer.step(), optimizer.zero_grad()
        self.assertEqual(words_different(whole.parameters(), model.parameters()), 0)

    def test_to_torch_and_back(self):
        whole, _ = loop(self.fused, steps=9)
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, state_dict="full"), steps=3)
        theirs = self.fused(model.parameters(), lr=1.0)
        theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        theirs.param_groups[0]["fused"] = True  # which our groups do not say
        for s in range(3, 6):
            mse(model, X[s]).backward()
            theirs.step(), theirs.zero_grad()
        ours = self.tiered(model.parameters(), lr=1.0)
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        for s in range(6, 9):
            mse(model, X[s]).backward()
            ours.step(), ours.zero_grad()
        self.assertEqual(words_different(whole.parameters(), model.parameters()), 0)
        self.assertEqual(float(ours.state[model[0].weight]["step"]), 9)

    def test_state_is_there_to_read(self):
        theirs_model, theirs = loop(self.fused)
        model, ours = loop(self.tiered)
        for p, q in zip(model.parameters(), theirs_model.parameters(), strict=True):
            for name in ("step", "exp_avg", "exp_avg_sq"):
                self.assertTrue(torch.equal(ours.state[p][name], theirs.state[q][name]), name)
        with self.assertRaises(KeyError):
            ours.state[model[0].weight]["nothing"]

    def test_torch_distributed_checkpoint(self):
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        whole, _ = loop(self.fused, steps=6)
        for layout in ("full", "reference"):
            with self.subTest(layout):
                store = self.folder / layout
                model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store, state_dict=layout), 3)
                state = get_optimizer_state_dict(model, optimizer)
                optimizer.close()
                other = store if layout == "reference" else self.folder / "another"
                optimizer = self.tiered(model.parameters(), lr=0.5, store=other, state_dict=layout)
                optimizer.resume()  # else torch takes a step of its own before it loads, which the store refuses
                set_optimizer_state_dict(model, optimizer, state)
                for s in range(3, 6):
                    mse(model, X[s]).backward()
                    optimizer.step(), optimizer.zero_grad()
                self.assertEqual(words_different(whole.parameters(), model.parameters()), 0)

    def test_a_fresh_one_goes_round(self):
        optimizer = self.tiered(net().parameters())
        optimizer.load_state_dict(optimizer.state_dict())  # as Accelerate does
        self.assertFalse((self.folder / "1").exists())


class Durability(Case):
    def test_a_step_is_lost_where_it_was_allowed_to_be(self):
        program = WORKER.replace('budget="host=64MiB"', 'budget="host=64MiB", durability=4').replace(
            'print("done"', 'import os, signal; os.kill(os.getpid(), signal.SIGKILL); print("done"')
        arguments = [sys.executable, "-c", program, self.folder / "store", "6", self.folder / "weights"]
        first = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parent)
        second = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parent)
        self.assertEqual(first.stdout.split("\n")[0], "step 0", first.stderr)
        self.assertEqual(second.stdout.split("\n")[0], "step 4", second.stderr)

    def test_close_makes_the_last_step_durable(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store, durability="exit"), steps=3)
        weights = copy.deepcopy(list(model.parameters()))
        optimizer.close()
        optimizer = self.tiered((model := net()).parameters(), store=store)
        self.assertEqual(optimizer.resume(), 3)
        self.assertEqual(words_different(weights, model.parameters()), 0)

    def test_updates_that_may_be_taken_back_need_it(self):
        self.refused('begin="backward" takes updates back, which needs durability="step" or a clip_norm',
                     lambda: self.tiered(net().parameters(), begin="backward", durability="exit"))
        self.refused("durability=0: 'step', 'exit' or a number of steps expected",
                     lambda: self.tiered(net().parameters(), durability=0))


class Refusals(Case):
    def test_sentences(self):
        model, optimizer = loop(self.tiered, steps=2)
        state = optimizer.state_dict()
        _, other = loop(self.tiered, steps=1)
        self.refused(f"the checkpoint names step 2 of store {state['penstock']['store'][:8]}; this is store ",
                     other.load_state_dict, state)
        self.refused("the state dict has neither moments nor the name of a store", other.load_state_dict,
                     {"state": {0: {"momentum_buffer": 0}}, "param_groups": copy.deepcopy(other.param_groups)})
        for copying in (copy.deepcopy, lambda o: io.BytesIO(torch.save(o, io.BytesIO()))):
            with self.assertRaisesRegex(TypeError, "owns a store and cannot be copied or pickled; use state_dict()"):
                copying(optimizer)
        self.refused("add groups before the first step", optimizer.add_param_group,
                     dict(params=[nn.Parameter(torch.ones(3))]))
        self.refused("float32, bfloat16 or float16 expected", self.tiered, [nn.Parameter(torch.ones(3).double())])
        self.refused("begin='forward': one of 'step', 'backward' expected",
                     lambda: self.tiered(net().parameters(), begin="forward"))
        self.refused("budget 'lots'", lambda: self.tiered(net().parameters(), budget="lots"))
        sparse = nn.Embedding(16, 16, sparse=True)
        sparse(torch.tensor([1])).sum().backward()
        self.refused("a gradient is sparse", self.tiered(sparse.parameters()).step)
        # A refusal is no failure.
        loop(None, steps=1, model=model, optimizer=optimizer)

    def test_a_budget_that_is_too_small_says_what_is_needed(self):
        model = net()
        optimizer = self.tiered(model.parameters(), budget="host=1MiB")
        mse(model, X[0]).backward()
        self.refused("host budget: ", optimizer.step)

    def test_an_earlier_runs_store_is_not_taken_for_granted(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=2)
        optimizer.close()
        fresh = self.tiered((model := net()).parameters(), store=store)
        mse(model, X[0]).backward()
        self.refused("holds step 2 of an earlier run; call resume()", fresh.step)
        replaced = self.tiered(model.parameters(), store=store, existing="replace")
        replaced.step()
        self.assertEqual(float(replaced.state[model[0].weight]["step"]), 1)

    def test_step_in_a_forked_child(self):
        model, optimizer = loop(self.tiered, steps=1)
        mse(model, X[0]).backward()
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
            except penstock.PenstockError as error:
                os._exit(0 if "this process was forked; the store belongs to its parent" in str(error) else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        optimizer.step()

    def test_workers_that_fork_do_not_disturb(self):
        batches = torch.utils.data.DataLoader(list(X), batch_size=None, num_workers=2)
        theirs, _ = loop(self.fused)
        ours, _ = loop(self.tiered, loss=lambda m, x, it=iter(batches): mse(m, next(it)))
        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)


class Sizes(Case):
    def test_a_thousand_small_parameters(self):
        def scenario(make):
            torch.manual_seed(SEED)
            params = [nn.Parameter(torch.randn(96)) for _ in range(1000)]
            optimizer = make(params, lr=1e-2)
            for _ in range(3):
                for i, p in enumerate(params):
                    p.grad = torch.randn(96) if i % 7 else None
                optimizer.step()
            return params

        self.assertEqual(words_different(scenario(self.fused), scenario(self.tiered)), 0)

    def test_state_of_which_a_fifth_fits(self):
        """12 B a parameter, 8M parameters: 96 MB of state in 30 MiB of host memory, the engine's own included."""
        def scenario(make):
            torch.manual_seed(SEED)
            params = [nn.Parameter(torch.randn(1024, 2048)) for _ in range(4)]
            optimizer = make(params, lr=1e-2)
            for _ in range(3):
                for p in params:
                    p.grad = torch.randn(p.shape)
                optimizer.step()
            return params, optimizer

        theirs, _ = scenario(self.fused)
        ours, optimizer = scenario(lambda params, lr: self.tiered(params, lr=lr, budget="host=30MiB"))
        self.assertEqual(words_different(theirs, ours), 0)

    def test_two_stores_at_once(self):
        theirs, _ = loop(self.fused)
        (a, first), (b, second) = loop(self.tiered, steps=1), loop(self.tiered, steps=1)
        for s in range(1, 6):
            for model, optimizer in ((a, first), (b, second)):
                mse(model, X[s]).backward()
                optimizer.step(), optimizer.zero_grad()
        for model in (a, b):
            self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0)


def rank(number, folder, kind):
    """One rank of two: its weights after four steps, or the refusal of begin="backward"."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{kind}.init", rank=number, world_size=2)
    model = net()
    parallel = nn.parallel.DistributedDataParallel(model)
    store = dict(store=f"{folder}/{kind}{number}", budget=BUDGET)
    if kind == "torch":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    else:
        optimizer = penstock.AdamW(model.parameters(), lr=1e-2, **store)
        try:
            penstock.AdamW(model.parameters(), begin="backward", **store)
        except penstock.PenstockError as error:
            Path(f"{folder}/refusal{number}").write_text(str(error))
    for step in range(4):
        mse(parallel, X[2 * step + number]).backward()
        optimizer.step(), optimizer.zero_grad()
    torch.save([p.detach() for p in model.parameters()], f"{folder}/{kind}{number}.weights")
    torch.distributed.destroy_process_group()


class Ranks(Case):
    def test_each_with_a_store_of_its_own_has_the_same_weights(self):
        """All ranks do the same updates, so none has to be told the weights."""
        for kind in ("torch", "penstock"):
            torch.multiprocessing.spawn(rank, (str(self.folder), kind), nprocs=2)
        whole = torch.load(self.folder / "torch0.weights", weights_only=True)
        for number in range(2):
            weights = torch.load(self.folder / f"penstock{number}.weights", weights_only=True)
            self.assertEqual(words_different(whole, weights), 0)
            self.assertEqual((self.folder / f"refusal{number}").read_text(),
                             'penstock.AdamW: begin="backward" would take gradients before the ranks have averaged them;'
                             ' use begin="step"')


WORKER = """
import sys
import torch
from optimizer_test import X, mse, net
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


class Kills(Case):
    def test_goes_on_at_the_committed_step(self):
        """PENSTOCK_KILLS sets how often it is killed."""
        kills, steps, draw = int(os.environ.get("PENSTOCK_KILLS", "5")), 60, random.Random(SEED)
        theirs, _ = loop(self.fused, steps=steps)
        store, result = self.folder / "store", self.folder / "weights"

        def start():
            return subprocess.Popen([sys.executable, "-c", WORKER, store, str(steps), result], stdout=subprocess.PIPE,
                                    text=True, cwd=Path(__file__).parent)

        reached = 0
        for _ in range(kills):
            with start() as worker:
                patience = draw.randrange(1, 1 + 2 * steps // kills)
                lines = 0
                for line in worker.stdout:
                    step = int(line.split()[1]) if line.startswith("step") else steps
                    self.assertGreaterEqual(step, reached - 1, f"seed {SEED}: a committed step was lost")
                    reached, lines = max(reached, step), lines + 1
                    if lines == patience or line.startswith("done"):
                        break
                worker.send_signal(signal.SIGKILL)
        with start() as worker:
            self.assertIn("done", worker.communicate()[0])
        model = net()
        model.load_state_dict(torch.load(result, weights_only=True))
        self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0, f"seed {SEED}")

    def test_exit_and_del_in_the_middle_of_a_step_leave_the_step_before(self):
        """Backward has handed gradients over, updates are under way, and step() is never called."""
        for last in ("sys.exit(0)", "del optimizer", "optimizer.close()"):
            with self.subTest(last):
                program = WORKER.replace("print(\"step\"", f"""
    if step == 3:
        mse(model, X[3]).backward()
        assert optimizer._penstock.early.under_way
        {last}
        break
    print(\"step\"""").replace("store=", 'begin="backward", store=')
                store, weights = self.folder / last, self.folder / "weights"
                done = subprocess.run([sys.executable, "-c", program, store, "9", weights], capture_output=True,
                                      text=True, cwd=Path(__file__).parent)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                model = net()
                optimizer = self.tiered(model.parameters(), lr=1e-2, store=store)
                self.assertEqual(optimizer.resume(), 3)
                theirs, _ = loop(self.fused, steps=3)
                self.assertEqual(words_different(theirs.parameters(), model.parameters()), 0)
                optimizer.close()

    def test_exit_in_the_middle_of_a_run_is_clean(self):
        program = WORKER.replace("optimizer.step(), optimizer.zero_grad()",
                                 "optimizer.step(), optimizer.zero_grad(), step == 3 and sys.exit(0)")
        arguments = [sys.executable, "-c", program, self.folder / "store", "9", self.folder / "weights"]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parent)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Examples(Case):
    def test_torch_loop_goes_on_after_a_kill(self):
        example = Path(__file__).parents[2] / "tools" / "examples" / "torch_loop.py"

        def run(folder, kill_at=None):
            lines = []
            arguments = [sys.executable, example, self.folder / folder, "12"]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as program:
                for line in program.stdout:
                    lines.append(line)
                    if kill_at and line.startswith(f"step {kill_at} "):
                        program.kill()
                        break
            return lines

        whole = run("whole")
        self.assertEqual(len(whole), 12)
        run("killed", kill_at=4)
        rest = run("killed")
        self.assertLess(len(rest), 12)
        self.assertEqual(whole[-len(rest):], rest)

    def test_what_docstrings_show(self):
        import doctest

        from penstock import _command, _store, nvme, optimizers, planning

        os.chdir(self.enterContext(tempfile.TemporaryDirectory(prefix="penstock-python-")))
        for module, examples in ((_store, 1), (_command, 1), (planning, 4), (nvme, 0), (optimizers, 10)):
            with self.subTest(module.__name__):
                failed, tried = doctest.testmod(module)
                self.assertEqual(failed, 0)
                self.assertGreaterEqual(tried, examples)


class FromC(Case):
    def test_a_c_program_trains_to_the_same_bits(self):
        first, second, root = 70001, 48, Path(__file__).parents[2]

        def value(step):
            return ((torch.arange(first + second) * 37 + step * 101) % 257 - 128).float() / 256

        params = [nn.Parameter(value(0)[:first].clone()), nn.Parameter(value(0)[first:].clone())]
        groups = [dict(params=params[:1], lr=1e-2, weight_decay=0.1),
                  dict(params=params[1:], betas=(0.8, 0.99), weight_decay=0.0)]
        optimizer = self.tiered(groups)
        for step in range(1, 21):
            optimizer.param_groups[1]["lr"] = 3e-3 / step
            params[0].grad = value(step)[:first]
            params[1].grad = None if step % 3 == 0 else value(step)[first:]
            optimizer.step()
        library, program, weights = os.environ["PENSTOCK_LIBRARY"], self.folder / "same_bits", self.folder / "weights"
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Werror", f"-I{root}",
                        Path(__file__).parent / "same_bits.c", "-o", program, library,
                        f"-Wl,-rpath,{Path(library).parent}"], check=True)
        subprocess.run([program, self.folder / "c", weights], check=True)
        ours = b"".join(p.detach().numpy().tobytes() for p in params)
        self.assertEqual(ours, weights.read_bytes())

    def test_the_library_and_the_command_need_no_torch(self):
        for file in ("PENSTOCK_LIBRARY", "PENSTOCK_COMMAND"):
            needed = subprocess.run(["ldd", os.environ[file]], capture_output=True, text=True, check=True).stdout
            self.assertIn("libc.so", needed)
            for foreign in ("torch", "c10", "python"):
                self.assertNotIn(foreign, needed)


class Commands(Case):
    def test_plan_is_the_commands_answer(self):
        found = penstock.plan(params=7e9, machine="rtx4090-2gen4", budget=dict(host="64GiB"))
        printed = subprocess.run(
            [os.environ["PENSTOCK_COMMAND"], "plan", "--params", "7e9", "--machine", "rtx4090-2gen4", "--budget",
             "host=64GiB", "--json"], capture_output=True, text=True, check=True)
        self.assertEqual(found, json.loads(printed.stdout))
        self.assertTrue(found["fits"])
        self.assertEqual(found["budget_bytes"]["host"], 64 << 30)

    def test_what_does_not_fit_is_an_answer_too(self):
        found = penstock.plan(params=70e9, machine="cpu-2core", budget=dict(host="8GiB"))
        self.assertFalse(found["fits"])
        self.assertGreater(found["needed_bytes"]["host"]["total"], 8 << 30)

    def test_refusals_are_the_commands(self):
        with self.assertRaisesRegex(penstock.PenstockError, "nowhere: neither a file nor a shipped machine") as caught:
            penstock.plan(params=7e9, machine="nowhere")
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("penstock nvme probe", caught.exception.remedy)
        with self.assertRaises(TypeError):
            penstock.plan(parameters=7e9)

    def test_probe_writes_the_profile_that_plan_reads(self):
        profile = self.folder / "profile.json"
        with self.assertLogs("penstock", "INFO"):
            found = penstock.nvme.probe(self.folder, size="16MiB", duration="1s", profile=profile)
        self.assertEqual(found["schema"].split("/")[0], "penstock.nvme.probe")
        self.assertTrue(profile.exists())
        self.assertEqual(penstock.plan("gpt2", machine=profile, tokens=1024)["model"]["name"], "gpt2")


if __name__ == "__main__":
    unittest.main(verbosity=2)
