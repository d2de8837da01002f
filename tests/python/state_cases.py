"""optimizer.state, as users read it, write it, and load other optimizers' into it. hostile_test.py runs these."""
import collections
import copy
import gc
import io

from optimizer_support import SEED, X, Case, each, loop, mse, net, nn, torch, words_different

import penstock


class State(Case):
    def test_state_that_is_emptied_begins_anew(self):
        def clear(s, m, o):
            if s == 3:
                o.state = collections.defaultdict(dict)
            if s == 5:
                del o.state[m[0].weight]

        self.same(lambda make: loop(make, 8, before=clear))

    def test_state_is_written_there(self):
        """Moments and counts, in place, by way of views, anew, or all of a parameter's at once."""
        def edits(s, m, o):
            of, other = o.state[m[0].weight], o.state[m[2].weight]
            if s == 2:
                of["exp_avg"][3:5] = 0
                of["exp_avg_sq"][7].mul_(4.0)
                of["exp_avg"].view(-1)[::5].neg_()
                of["exp_avg"].chunk(3)[1].mul_(0.5)
            if s == 3:
                of["step"] += 2
                other["step"].fill_(1)
            if s == 4:
                other["exp_avg"] = torch.full((48, 48), 1e-3)
                other["exp_avg_sq"].clamp_(min=1e-6)
            if s == 5:
                state = {"step": torch.tensor(7.0), "exp_avg": torch.ones(48), "exp_avg_sq": torch.ones(48)}
                o.state[m[2].bias] = state
            if s == 6:
                o.state[m[4].bias] = {}
            if s == 7:
                of.update(exp_avg=of["exp_avg"] * 2, step=torch.tensor(3.0))

        self.same(lambda make: loop(make, 10, before=edits))
        for optimizer in self.same(lambda make: loop(make, 10, pre=edits)):  # between backward and step
            entry = optimizer.state[optimizer.param_groups[0]["params"][0]]
            self.assertEqual([*entry], ["step", "exp_avg", "exp_avg_sq"])
            self.assertEqual([entry["exp_avg_sq"].shape, entry["exp_avg"][2:4].dtype], [(48, 16), torch.float32])

    def test_lists_that_a_state_is_among(self):
        """What torch._foreach_ writes is noticed by the next step, and by autograd, as without."""
        def edits(s, m, o):
            if s in (2, 4):
                with torch.no_grad():
                    moments = [o.state[p]["exp_avg"] for p in m.parameters()]
                    torch._foreach_add_(list(m.parameters()), moments)
                    torch._foreach_mul_(moments, 0.5)

        for optimizer in self.same(lambda make: loop(make, 7, post=edits)):
            state = optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"]
            weight = torch.ones(48, 16, requires_grad=True)
            product = (weight * state).sum()
            torch._foreach_zero_([state])
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                product.backward()

    def test_momentum_that_is_there_before_the_first_step(self):
        for begin in ("step", "backward"):
            results = []
            for make in (torch.optim.SGD, lambda *p, begin=begin, **o: penstock.SGD(
                    *p, begin=begin, store=self.folder / begin, budget="host=64MiB", **o)):
                model = net()
                optimizer = make(model.parameters(), lr=0.1, momentum=0.9)
                optimizer.state[model[0].weight]["momentum_buffer"] = torch.full((48, 16), 10.0)
                results.append(loop(None, 3, model=model, optimizer=optimizer)[0])
            one, other = (torch.nn.utils.parameters_to_vector(model.parameters()) for model in results)
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    def test_state_that_is_written_is_there_in_the_next_process(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=2)
        optimizer.state[model[0].weight]["exp_avg"].fill_(0.25)
        optimizer.state[model[0].weight]["step"].fill_(9)
        optimizer.close()
        again = self.tiered((other := net()).parameters(), store=store)
        self.assertEqual(again.resume(), 2)
        self.assertTrue((again.state[other[0].weight]["exp_avg"] == 0.25).all())
        self.assertEqual(float(again.state[other[0].weight]["step"]), 9)

    def test_state_is_what_it_is_whenever_one_looks(self):
        """Also where it is held for long, read twice, gone through, put back, given away or copied."""
        def edits(s, m, o):
            state, other = o.state[m[0].weight], o.state[m[2].weight]
            if s == 2:
                first, second = state["exp_avg"], state["exp_avg"]
                first.mul_(2)
                second.add_(1e-3)
                self.held = state["exp_avg"], state["step"]
            if s == 3:
                self.held[0].mul_(0.5)
                self.assertEqual(float(self.held[1]), 3)
                self.before = {name: value.clone() for name, value in other.items()}
            if s == 4:
                for value in state.values():
                    value.zero_()
                o.state[m[2].weight] = self.before
            if s == 5:
                a, b = m[0].bias, m[2].bias
                o.state[a], o.state[b] = o.state[b], o.state[a]
                other["step"].data = torch.tensor(3.0)
                torch._foreach_mul_([state["exp_avg"], state["exp_avg_sq"]], 3.0)
            if s == 6:
                torch.mul(other["exp_avg"], 2.0, out=other["exp_avg"])
                state |= {"exp_avg": torch.cat([state["exp_avg"][24:], state["exp_avg"][:24]])}

        self.same(lambda make: loop(make, 10, before=edits))

    def test_state_that_is_copied_is_in_memory(self):
        model, optimizer = loop(self.tiered, steps=2)
        state, file = optimizer.state[model[0].weight], io.BytesIO()
        torch.save(optimizer.state, file)
        file.seek(0)
        saved = list(torch.load(file, weights_only=False).values())[0]
        copied = list(copy.deepcopy(optimizer.state).values())[0]
        expected = state["exp_avg"].clone()
        for one in (saved["exp_avg"], copied["exp_avg"], state["exp_avg"] * 1, state["exp_avg"].to(torch.float64).float(),
                    torch.from_numpy(state["exp_avg"].numpy()), torch.tensor(state["exp_avg"].tolist())):
            self.assertIs(type(one), torch.Tensor)
            self.assertTrue(torch.equal(one, expected))
            one.fill_(1.0)
        self.assertTrue(torch.equal(state["exp_avg"], expected))
        self.assertIn("tensor(2.)", repr(state))
        with torch.inference_mode():
            self.assertGreater(float(state["exp_avg"].norm()), 0)
            self.assertEqual(len(optimizer.state_dict()["state"]), 6)

    def test_state_that_is_held_when_another_takes_its_place(self):
        model, optimizer = loop(self.tiered, steps=2)
        p, other, full = model[0].weight, model[2].weight, self.fused(net().parameters())
        state = optimizer.state[p]
        held, part, gone = state["exp_avg"], state["exp_avg"][3:5], optimizer.state[other]["step"]
        state["exp_avg"] = torch.zeros(48, 16)
        del optimizer.state[other]
        loop(None, steps=1, model=model, optimizer=optimizer)
        for one in (held, part, gone):
            self.refused("another has taken its place", one.sum)
        state["exp_avg"] = held
        p.grad = torch.ones_like(p)
        self.refused("another has taken its place", optimizer.step)
        state["exp_avg"] = torch.zeros(48, 16)
        optimizer.step()
        held = optimizer.state[p]["exp_avg_sq"]
        optimizer.load_state_dict(loop(None, 2, model=(theirs := net()), optimizer=self.fused(theirs.parameters()))[1].state_dict())
        self.refused("another has taken its place", held.zero_)
        x = torch.ones(48, 16, requires_grad=True)
        y = (x * optimizer.state[p]["exp_avg"]).sum()
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.backward()
        self.assertEqual(full.state_dict()["state"], {})

    def test_memory_of_states_is_nowhere(self):
        model, optimizer = loop(self.tiered, steps=2)
        state = optimizer.state[model[0].weight]["exp_avg"]
        expected = state.clone()
        self.assertTrue(torch.equal(torch.from_dlpack(state), expected))
        self.assertEqual(f"{optimizer.state[model[0].weight]['step']:.0f}", "2")
        for asks in (state.data_ptr, lambda: torch.utils.dlpack.to_dlpack(state), state.share_memory_, lambda: state.resize_(4),
                     lambda: state.t_(), lambda: state.set_(expected), lambda: torch._neg_view(state)):
            with self.assertRaises(RuntimeError):
                asks()
        with torch.inference_mode():
            self.assertEqual(float(state[3].sum()), float(expected[3].sum()))
            state[4] = 0
        self.assertEqual(float(state[4].abs().sum()), 0)
        self.refused("a parameter is a state", self.tiered, [nn.Parameter(state)])
        model[0].weight.grad = state
        self.refused("a gradient is a state", optimizer.step)

    def test_what_others_put_into_state_stays_there(self):
        for state_dict in ("reference", "full"):
            model, optimizer = loop(lambda *p, of=state_dict, **o: self.tiered(*p, state_dict=of, **o), steps=2)
            state = optimizer.state[model[0].weight]
            state["slow"], optimizer.state["all"] = torch.ones(3), {"n": 3}
            state["exp_avg"] = torch.zeros(48, 16)
            loop(None, steps=1, model=model, optimizer=optimizer)
            self.assertIs(state["slow"], optimizer.state[model[0].weight]["slow"])
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(saved)
            self.assertTrue(torch.equal(optimizer.state[model[0].weight]["slow"], torch.ones(3)))
            self.assertEqual(optimizer.state["all"], {"n": 3})
            loop(None, steps=1, model=model, optimizer=optimizer)
        groups = optimizer.state_dict()["param_groups"]
        lives = {"state": {i: dict(optimizer.state[p]) for i, p in enumerate(model.parameters())}, "param_groups": groups}
        another = self.tiered((copied := copy.deepcopy(model)).parameters())
        another.load_state_dict(lives)
        self.assertTrue(torch.equal(another.state[copied[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"]))

    def test_state_that_is_none(self):
        model, optimizer = loop(self.tiered, steps=2)
        p, state = model[0].weight, optimizer.state[model[0].weight]
        for name, value, why in (("exp_avg", torch.ones(3), "exp_avg of parameter 0 is of shape (3,); (48, 16) expected"),
                                 ("exp_avg", state["exp_avg"].numpy(), "is ndarray; a dense tensor of numbers expected"),
                                 ("exp_avg", torch.ones(48, 16, device="meta"), "on meta"),
                                 ("exp_avg_sq", torch.ones(48, 16, dtype=torch.complex64), "complex64"),
                                 ("step", torch.tensor(1.5), "a whole number up to 2^52"), ("step", 2.0**64, "2^52"),
                                 ("step", "two", "2^52")):
            with self.subTest(name=name, why=why):
                before = dict(optimizer.state[p])
                optimizer.state[p][name] = value
                p.grad = torch.ones_like(p)
                self.refused(why, optimizer.step)
                optimizer.state[p] = before
                optimizer.step()
        self.refused("2^52", optimizer.state[p]["step"].fill_, 0.5)
        del optimizer.state[p]["exp_avg"]
        self.refused("state of parameter 0 has no exp_avg", optimizer.step)
        optimizer.state[p] = {}
        optimizer.step()
        self.assertEqual(float(optimizer.state[p]["step"]), 1)
        held = optimizer.state[p]["exp_avg"]
        del optimizer
        gc.collect()
        self.refused("its optimizer is gone", held.sum)

    def test_default_types_and_devices_of_tensors_are_for_others(self):
        self.addCleanup(torch.set_default_dtype, torch.float32)
        self.addCleanup(torch.set_default_device, None)

        def scenario(make):
            torch.manual_seed(SEED)
            model = torch.nn.Sequential(nn.Linear(16, 48), nn.Linear(48, 16), nn.Linear(16, 16))
            model[1].weight.data = model[1].weight.data.t().contiguous().t()
            optimizer = make(model[:2].parameters(), lr=1e-2)
            for s in range(6):
                for p in model.parameters():
                    p.grad = torch.full_like(p, 0.1 * s - 0.2)
                if isinstance(optimizer, penstock.AdamW):
                    torch.set_default_dtype(torch.bfloat16)
                    torch.set_default_device("meta")
                if s == 2:
                    optimizer.state.clear()
                if s == 4:
                    optimizer.add_param_group(dict(params=list(model[2].parameters())))
                optimizer.step()
                torch.set_default_dtype(torch.float32)
                torch.set_default_device(None)
            return model, optimizer

        self.same(scenario)

    def test_state_that_is_asked_for_after_close(self):
        for state_dict in ("reference", "full"):
            model, optimizer = loop(lambda *p, of=state_dict, **o: self.tiered(*p, state_dict=of, **o), steps=2)
            state = optimizer.state[next(model.parameters())]
            optimizer.close()
            self.refused("no store is open; resume() opens it", optimizer.state_dict)
            self.refused("no store is open; resume() opens it", state["exp_avg"].sum)
            self.assertEqual(optimizer.resume(), 2)
            self.assertEqual(len(optimizer.state_dict()["state"]), 6)

    def test_a_store_that_was_made_and_never_stepped(self):
        """Its process was killed in the first step. The next one has other weights to begin with."""
        store = self.folder / "store"
        first = self.tiered(net().parameters(), store=store)
        first._penstock.open(first.param_groups)
        first.close()

        def scenario(make):
            model = net()
            with torch.no_grad():
                each(lambda p: p.mul_(0.5))(0, model, None)
            return loop(make, model=model)[0]

        ours = scenario(lambda params, lr: self.tiered(params, lr=lr, store=store))
        self.assertEqual(words_different(scenario(self.fused).parameters(), ours.parameters()), 0)
