#!/usr/bin/env python3
"""penstock.AdamW and the others against torch.optim: the same loops, the same bits.

Usage: loops_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import inspect
import time
import unittest

from optimizer_support import BUDGET, F, SEED, X, Case, clip, each, loop, mse, net, nn, nothing, torch, words_different

import penstock


class PlainLoops(Case):
    """What users do in their loops leaves the bits that it leaves with torch.optim.AdamW(fused=True)."""

    def test_loops(self):
        scenarios = {
            "accumulation": dict(k=4),
            "zero_grad(set_to_none=False)": dict(k=2, zero=lambda m, o: o.zero_grad(set_to_none=False)),
            "model.zero_grad()": dict(k=2, zero=lambda m, o: m.zero_grad()),
            "never zeroed": dict(zero=nothing),
            "clip_grad_norm_": dict(k=2, pre=clip),
            "the norm measured by clipping": dict(k=2, pre=lambda s, m, o: nn.utils.clip_grad_norm_(m.parameters(), 1e9)),
            "p.grad flipped in place": dict(pre=each(lambda p: p.grad.copy_(p.grad.flip(0)))),
            "p.grad negated through .data": dict(pre=each(lambda p: p.grad.data.neg_())),
            "clip_grad_value_": dict(pre=lambda s, m, o: nn.utils.clip_grad_value_(m.parameters(), 1e-3)),
            "p.grad scaled in place": dict(pre=each(lambda p: p.grad.mul_(0.5))),
            "p scaled before step": dict(pre=each(torch.no_grad()(lambda p: p.mul_(0.5)))),
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
        self.assertEqual(published["the norm measured by clipping"], 5)  # it multiplies by 1
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
                    o.state_dict() if s == 2 else o.state[m[0].weight]["exp_avg"].sum()

            return loop(make, pre=pre)

        early = self.same(scenario)[1]._penstock.early
        self.assertEqual((early.published, early.redone), (3, 2))

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

    def test_groups_added_between_steps(self):
        def scenario(make):
            model = net()
            optimizer = make([*model[0].parameters(), *model[2].parameters()], lr=1e-2)

            def pre(s, m, o):
                if s in (3, 5):
                    o.add_param_group(dict(params=[m[4].weight] if s == 3 else [m[4].bias], lr=3e-3))

            return loop(make, 9, k=2, model=model, optimizer=optimizer, pre=pre, zero=lambda m, o: m.zero_grad())

        # All but the first step and the two in which the store grows.
        self.assertEqual(self.same(scenario)[1]._penstock.early.published, 6)

    def test_accumulation_that_is_told_is_not_learned(self):
        published = []
        for accumulation in (None, 2, 3):
            def make(params, lr, accumulation=accumulation):
                return self.tiered(params, lr=lr, begin="backward", accumulation=accumulation)

            # One layer's gradients first come in the third step.
            before = dict(before=lambda s, m, o: m[4].requires_grad_(s >= 2))
            theirs, _ = loop(self.fused, 4, k=2, **before)
            ours, optimizer = loop(make, 4, k=2, **before)
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)
            published.append(optimizer._penstock.early.published)
        self.assertEqual(published, [3, 3, 0])

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

    def test_what_interrupts_a_step_leaves_the_weights_as_they_were(self):
        def scenario(make):
            class Interrupt(torch.Tensor):
                """A gradient that never arrives. Updates of those before it end meanwhile."""

                def detach(self):
                    time.sleep(0.2)
                    raise KeyboardInterrupt

            def pre(s, m, o):
                if s != 3 or not isinstance(o, penstock.AdamW):
                    return
                before, last = [p.detach().clone() for p in m.parameters()], list(m.parameters())[-1]
                gradient = last.grad
                last.grad = gradient.as_subclass(Interrupt)
                self.assertRaises(KeyboardInterrupt, o.step)
                self.assertEqual(words_different(before, m.parameters()), 0)
                last.grad = gradient

            return loop(make, pre=pre)

        self.same(scenario)

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


    def test_a_norm_that_is_no_number_leaves_none_in_the_weights(self):
        def pre(s, m, o):
            if s == 3:
                m[4].weight.grad[0, 0] = float("nan")

        for by_torch in (True, False):
            for begin in ("step", "backward"):
                def before(s, m, o, by_torch=by_torch):
                    pre(s, m, o)
                    if by_torch:
                        nn.utils.clip_grad_norm_(m.parameters(), 0.5)

                model, _ = loop(lambda *p, by_torch=by_torch, begin=begin, **o: self.tiered(
                    *p, begin=begin, clip_norm=0.0 if by_torch else 0.5, **o), 4, pre=before)
                self.assertTrue(all(p.isnan().all() for p in model.parameters()), (by_torch, begin))


class OtherOptimizers(Case):
    def test_the_bits_of_torch(self):
        for ours, theirs, more in (
            (penstock.Adam, torch.optim.Adam, dict(weight_decay=0.01)),
            (penstock.Adagrad, torch.optim.Adagrad, dict(lr_decay=0.1)),
            (penstock.SGD, torch.optim.SGD, dict(momentum=0.9, nesterov=True, weight_decay=0.01)),
            (penstock.SGD, torch.optim.SGD, dict()),
            (penstock.SGD, torch.optim.SGD, dict(momentum=0.9, dampening=0.5)),
            (penstock.AdamW, torch.optim.AdamW, dict(betas=(0.8, 0.99), eps=1e-3, weight_decay=0.1)),
            (penstock.Adagrad, torch.optim.Adagrad, dict(weight_decay=0.1, eps=1e-3)),
        ):
            with self.subTest(ours.__name__, **more):
                model, _ = loop(lambda params, lr: theirs(params, lr=lr, fused=True, **more))
                store = self.folder / "-".join([ours.__name__, *more])
                tiered, _ = loop(lambda params, lr: ours(params, lr=lr, store=store, budget=BUDGET, **more))
                self.assertEqual(words_different(model.parameters(), tiered.parameters()), 0)

    def test_what_nobody_asks_for_is_as_torch_has_it(self):
        for kind in ("AdamW", "Adam", "Adagrad", "SGD"):
            ours, theirs = (inspect.signature(getattr(of, kind)).parameters for of in (penstock, torch.optim))
            told = {name: one.default for name, one in ours.items() if one.kind != one.VAR_KEYWORD}
            self.assertEqual(told, {name: theirs[name].default for name in told}, kind)
        lion = {name: one.default for name, one in inspect.signature(penstock.Lion).parameters.items()}
        self.assertEqual((lion["lr"], lion["betas"], lion["weight_decay"]), (1e-4, (0.9, 0.99), 0))

    def test_momentum_that_comes_and_goes(self):
        def before(s, m, o):
            o.param_groups[0]["momentum"] = (0.0, 0.9, 0.9, 0.0, 0.0, 0.5, 0.5, 0.0)[s % 8]

        theirs, _ = loop(lambda params, lr: torch.optim.SGD(params, lr=lr, fused=True), 16, before=before)
        for begin in ("step", "backward"):
            ours, _ = loop(lambda params, lr, begin=begin: penstock.SGD(
                params, lr=lr, store=self.folder / begin, budget=BUDGET, begin=begin), 16, before=before)
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, begin)

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

    def test_gradients_accumulated_in_bf16_are_the_same_for_both_values_of_begin(self):
        def scenario(begin):
            x = X.bfloat16()
            return loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin), k=3, model=net(torch.bfloat16),
                        loss=lambda m, _, rows=iter(x): mse(m, next(rows)))

        (first, _), (second, optimizer) = scenario("step"), scenario("backward")
        self.assertEqual(words_different(first.parameters(), second.parameters()), 0)
        self.assertEqual(optimizer._penstock.early.published, 5)

    def test_grad_scaler(self):
        p = nn.Parameter(torch.ones(64).half())
        optimizer, scaler = self.tiered([p], lr=0.25, weight_decay=0.0), torch.amp.GradScaler("cpu", init_scale=256.0)
        for factor, expected in ((1.0, 0.75), (float("inf"), 0.75), (1.0, 0.5)):
            scaler.scale(p.float().sum() * factor).backward()
            scaler.step(optimizer), scaler.update(), optimizer.zero_grad()
            self.assertAlmostEqual(float(p.detach()[0]), expected, places=3)

    def test_grad_scaler_with_halves_in_the_second_group_alone(self):
        p, q = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(64).half())
        optimizer = self.tiered([dict(params=[p]), dict(params=[q])], lr=0.25, weight_decay=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        scaler.scale((p + q.float()).sum()).backward()
        scaler.step(optimizer)
        self.assertEqual([float(one.detach()[0]) for one in (p, q)], [0.75, 0.75])


class Telling(Case):
    def test_statistics_and_threads_are_of_this_store(self):
        _, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, threads=3), 1)
        found, report = optimizer.statistics(), optimizer._penstock.report
        self.assertEqual((found["parameters"], found["elements"]), (6, sum(p.numel() for p in net().parameters())))
        # All rests in host memory: it is written for a crash, and never read.
        self.assertEqual((found["read_bytes"], found["written_bytes"]), (0, report.written_bytes))
        self.assertGreater(report.written_bytes, 0)
        self.assertRegex(optimizer._penstock.store.description(), r"update +3 threads")


if __name__ == "__main__":
    unittest.main(verbosity=2)
