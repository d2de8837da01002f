#!/usr/bin/env python3
"""gradients="taken": the store has them and nobody else. The bits of torch's loop, or a refusal that says what to do.

Usage: taken_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set. Ends with 77 without torch.
"""
import gc
import pickle
import unittest
import weakref

from optimizer_support import SEED, Case, X, each, fails_in_backward, loop, mse, net, nn, torch, words_different

import penstock
from penstock._early import TakenGradient

MODES = dict(begin="backward", gradients="taken")


class Taken(Case):
    def taken(self, params, **more):
        return self.tiered(params, **{**MODES, **more})

    def test_the_bits_of_torch(self):
        manners = {
            "plain": {},
            "accumulation": dict(k=3),
            "model.zero_grad()": dict(zero=lambda m, o: m.zero_grad()),
            "frozen midway": dict(before=lambda s, m, o: m[2].requires_grad_(s not in (2, 3))),
            "absent": dict(loss=lambda m, x: mse(m, x) if x[0, 0] > 0 else mse(lambda x: m[0](x)[:, :16], x)),
            "lr set after step": dict(post=lambda s, m, o: o.param_groups[0].update(lr=1e-2 / (s + 2))),
            "p.clamp_": dict(post=each(torch.no_grad()(lambda p: p.clamp_(-0.2, 0.2)))),
            "create_graph": dict(backward=lambda l, m: l.backward(create_graph=True)),
        }
        for name, manner in manners.items():
            with self.subTest(name):
                theirs, _ = loop(self.fused, **manner)
                more = dict(accumulation=manner["k"]) if "k" in manner else {}
                ours, optimizer = loop(lambda params, **rates: self.taken(params, **rates, **more), **manner)
                self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")
                # The first step's, too; a graph that somebody keeps has its gradients.
                self.assertEqual(optimizer._penstock.early.published, 0 if name == "create_graph" else 6)
                self.assertEqual(optimizer._penstock.early.redone, 0)

    def test_clips_in_the_store(self):
        for norm in (0.05, 10.0):
            theirs, _ = loop(self.fused, pre=lambda s, m, o: nn.utils.clip_grad_norm_(m.parameters(), norm))
            norms = []
            ours, _ = loop(lambda params, **rates: self.taken(params, clip_norm=norm, **rates),
                           post=lambda s, m, o: norms.append(o.gradient_norm))
            for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
            self.assertGreater(min(norms), 0.05)

    def test_its_norm_can_be_asked_for_and_it_can_be_clipped_to_infinity(self):
        """As Hugging Face Trainer does for its log."""
        norms = []
        for make in (self.fused, self.taken):
            loop(make, pre=lambda s, m, o: norms.append(nn.utils.clip_grad_norm_(m.parameters(), float("inf"))))
        torch.testing.assert_close(norms[:6], norms[6:], rtol=1e-6, atol=0)

    def test_no_gradient_outlives_its_handing_over(self):
        model, alive = net(), []
        for p in model.parameters():  # before the optimizer's own
            p.register_post_accumulate_grad_hook(lambda p: alive.append(weakref.ref(p.grad)))
        optimizer = self.taken(model.parameters())
        for step in range(3):
            alive.clear()
            mse(model, X[step]).backward()
            gc.collect()
            self.assertEqual([one() for one in alive], [None] * 6)
            for p in model.parameters():
                self.assertIsInstance(p.grad, TakenGradient)
                self.assertEqual((p.grad.shape, p.grad.dtype, p.grad.device), (p.shape, p.dtype, p.device))
            self.assertIn("TakenGradient((16, 48)", repr(model[4].weight.grad))
            optimizer.step(), optimizer.zero_grad()

    def test_a_group_that_is_added_between_steps(self):
        def scenario(make):
            model = net()
            optimizer = make(model[:4].parameters(), lr=1e-2)
            for s in range(5):
                if s == 2:
                    optimizer.add_param_group(dict(params=list(model[4].parameters()), lr=1e-3))
                model.zero_grad()
                mse(model, X[s]).backward()
                optimizer.step()
            return model.parameters()

        self.assertEqual(words_different(scenario(self.fused), scenario(self.taken)), 0, f"seed {SEED}")

    def test_state_that_is_asked_for_too_early_is_refused_and_the_step_goes_on(self):
        model, other = net(), net()
        optimizer, reference = self.taken(model.parameters(), lr=1e-2), self.fused(other.parameters(), lr=1e-2)
        for step in range(4):
            for of, by in ((other, reference), (model, optimizer)):
                mse(of, X[step]).backward()
                if by is optimizer and step > 1:
                    state = optimizer.state[model[0].weight]
                    for asks in (state["exp_avg"].sum, state["step"].zero_, optimizer.state_dict):
                        self.refused("the store alone has the gradients; ask behind step()", asks)
                by.step(), by.zero_grad()
        self.assertEqual(words_different(model.parameters(), other.parameters()), 0)

    def test_state_that_is_emptied_between_steps(self):
        def scenario(make):
            model = net()
            optimizer = make(model.parameters(), lr=1e-2)
            for s in range(5):
                if s == 2:
                    optimizer.state.clear()
                if s == 3:
                    del optimizer.state[model[2].weight]
                model.zero_grad()
                mse(model, X[s]).backward()
                optimizer.step()
            return model.parameters()

        self.assertEqual(words_different(scenario(self.fused), scenario(self.taken)), 0, f"seed {SEED}")

    def test_who_wants_a_gradient_that_is_taken_is_refused_and_the_loop_goes_on(self):
        model = net()
        optimizer, untouched = self.taken(model.parameters(), lr=1e-2), net()
        reference = self.fused(untouched.parameters(), lr=1e-2)

        def both():
            for of, by in ((untouched, reference), (model, optimizer)):
                mse(of, X[0]).backward()
                by.step(), by.zero_grad()
            self.assertEqual(words_different(model.parameters(), untouched.parameters()), 0, f"seed {SEED}")

        def again():
            mse(model, X[1]).backward()

        both()
        wanted = {
            "clip_grad_norm_": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
            "another norm": lambda: nn.utils.get_total_norm([p.grad for p in model.parameters()], 1.0),
            "scaled": lambda: model[0].weight.grad.mul_(2),
            "a second backward": again,
            "zeroed in place": lambda: optimizer.zero_grad(set_to_none=False),
            "looked at": lambda: model[0].bias.grad.sum().item(),
            "other values": lambda: setattr(model[0].weight.grad, "data", torch.zeros_like(model[0].weight)),
            "shared": lambda: model[0].weight.grad.share_memory_(),
            "pickled": lambda: pickle.dumps(model[0].weight.grad),
        }
        for name, wants in wanted.items():
            with self.subTest(name):
                mse(model, X[1]).backward()
                self.refused('wants a gradient that the store has taken (gradients="taken") (zero_grad()', wants)
                optimizer.zero_grad()
                both()

    def test_a_step_that_would_have_to_be_done_again_is_refused_and_the_loop_goes_on(self):
        model, other = net(), net()
        optimizer, reference = self.taken(model.parameters(), lr=1e-2), self.fused(other.parameters(), lr=1e-2)
        changes = {
            "rates": lambda: optimizer.param_groups[0].update(lr=0.5),
            "weights": lambda: torch.no_grad()(model[0].weight.mul_)(1.0),
            "a gradient": lambda: setattr(model[0].bias, "grad", torch.ones(48)),
            "one that is gone": lambda: setattr(model[0].bias, "grad", None),
        }
        for step, (name, change) in enumerate([("none", lambda: None), *changes.items()]):
            with self.subTest(name):
                for of, by in ((other, reference), (model, optimizer)):
                    mse(of, X[step]).backward()
                    by.step(), by.zero_grad()
                before = [p.detach().clone() for p in model.parameters()]
                mse(model, X[0]).backward()
                change()
                if name != "none":
                    self.refused("have changed between backward and step(), and the store alone had", optimizer.step)
                self.assertEqual(words_different(before, model.parameters()), 0)
                optimizer.zero_grad()
                optimizer.param_groups[0].update(lr=1e-2)
        for of, by in ((other, reference), (model, optimizer)):
            mse(of, X[9]).backward()
            by.step()
        self.assertEqual(words_different(other.parameters(), model.parameters()), 0, f"seed {SEED}")

    def test_a_gradient_of_an_earlier_step_is_refused_and_the_loop_goes_on(self):
        """Left in .grad, or asked for twice, or taken by another optimizer."""
        model, other = net(), net()
        optimizer, reference = self.taken(model.parameters(), lr=1e-2), self.fused(other.parameters(), lr=1e-2)

        def both(s):
            for of, by in ((other, reference), (model, optimizer)):
                mse(of, X[s]).backward()
                by.step(), by.zero_grad()

        both(0)
        mse(model, X[1]).backward(), mse(other, X[1]).backward()
        optimizer.step(), reference.step()
        self.refused("was taken by a step that is over", optimizer.step)
        stale = model[0].weight.grad
        optimizer.zero_grad(), reference.zero_grad()
        model[0].weight.requires_grad_(False).grad = stale
        mse(model, X[2]).backward()
        self.refused("parameter 0: its gradient was taken by a step that is over", optimizer.step)
        model[0].weight.requires_grad_(True)
        optimizer.zero_grad()
        both(3)
        mse(model, X[1]).backward()
        self.refused("or by another optimizer", self.tiered(model.parameters()).step)
        optimizer.zero_grad()
        both(4)
        self.assertEqual(words_different(other.parameters(), model.parameters()), 0, f"seed {SEED}")

    def test_an_exception_in_backward(self):
        Fails = fails_in_backward()

        def loss(m, x):
            return mse(lambda x: m[2:](Fails.apply(m[:2](x))), x)

        def backward(l, m):
            Fails.fails = True
            with self.assertRaises(ArithmeticError):
                l.backward()
            m.zero_grad()
            Fails.fails = False
            loss(m, X[3]).backward()

        theirs, _ = loop(self.fused, loss=loss, backward=backward)
        ours, _ = loop(self.taken, loss=loss, backward=backward)
        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")

    def test_resumes(self):
        model = net()
        first = self.taken(model.parameters(), store=self.folder / "one", lr=1e-2)
        mse(model, X[0]).backward()
        first.step(), first.zero_grad()
        mse(model, X[1]).backward()  # in the middle of a step
        first.close()
        other, theirs = net(), net()
        second = self.taken(other.parameters(), store=self.folder / "one", lr=1e-2)
        self.assertEqual(second.resume(), 1)
        reference = self.fused(theirs.parameters(), lr=1e-2)
        for step, (of, by) in enumerate([(theirs, reference), (theirs, reference), (other, second)]):
            mse(of, X[min(step, 1)]).backward()
            by.step(), by.zero_grad()
        self.assertEqual(words_different(theirs.parameters(), other.parameters()), 0, f"seed {SEED}")

    def test_only_backward_takes_them(self):
        self.refused('gradients="taken": only begin="backward" takes them', self.tiered_with, dict(gradients="taken"))
        self.refused("gradients='none': one of 'kept', 'taken' expected", self.tiered_with, dict(gradients="none"))

    def tiered_with(self, more):
        self.tiered(net().parameters(), **more)


if __name__ == "__main__":
    print(f"seed {SEED}")
    unittest.main(verbosity=2)
