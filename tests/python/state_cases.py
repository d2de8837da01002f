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

    def test_a_load_that_is_refused_leaves_what_was(self):
        for existing in ("refuse", "resume", "replace"):
            model, optimizer = loop(lambda *p, of=existing, **o: self.tiered(*p, existing=of, **o), steps=3)
            _, theirs = loop(self.fused, steps=2)
            theirs = theirs.state_dict()
            store, away = self.folder / str(self.made), self.folder / "away"
            moment = optimizer.state[model[0].weight]["exp_avg"].clone()
            store.rename(away)
            self.refused("the store is no longer in", optimizer.load_state_dict, theirs)
            away.rename(store)
            reference = optimizer.state_dict()
            loop(None, steps=1, model=model, optimizer=optimizer)
            reference["param_groups"][0]["lr"] = "fast"
            self.refused("lr='fast'", optimizer.load_state_dict, reference)
            self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 4)
            self.assertFalse(torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment))
            optimizer.close()  # and a store that was open once is not replaced
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            if existing == "resume":
                optimizer.step()
            else:
                self.refused("holds step 4 of an earlier run; call resume()", optimizer.step)
                self.assertEqual(optimizer.resume(), 4)
                optimizer.step()
            self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 5)

    def test_a_state_dict_without_state_begins_anew(self):
        for state_dict in ("reference", "full"):
            def again(s, m, o):
                if s == 0:
                    self.empty = copy.deepcopy(o.state_dict())
                if s == 3:
                    o.load_state_dict(self.empty)

            theirs, _ = loop(self.fused, before=again)
            ours, optimizer = loop(lambda *p, of=state_dict, **o: self.tiered(*p, state_dict=of, **o), before=again)
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)
            self.assertEqual(float(optimizer.state[ours[0].weight]["step"]), 3)

    def test_a_reference_names_one_state_and_no_other_of_the_same_step(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda *p, **o: self.tiered(*p, store=store, **o), steps=3)
        early, weights = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        loop(None, steps=2, model=model, optimizer=optimizer)
        one, moment = optimizer.state_dict(), optimizer.state[model[0].weight]["exp_avg"].clone()
        loop(None, steps=1, model=model, optimizer=optimizer)
        optimizer.load_state_dict(copy.deepcopy(early))
        model.load_state_dict(weights)
        for s in (30, 31):  # another branch, to the same step
            mse(model, X[s]).backward()
            optimizer.step(), optimizer.zero_grad()
        optimizer.load_state_dict(copy.deepcopy(one))
        self.assertTrue(torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment))
        optimizer.state[model[0].weight]["exp_avg"].zero_()
        optimizer.load_state_dict(copy.deepcopy(one))
        self.assertTrue(torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment))
        again = optimizer.state_dict()
        self.assertEqual(again["penstock"], one["penstock"])
        optimizer.state[model[0].weight]["exp_avg"].zero_()
        other = optimizer.state_dict()
        self.refused("names another step 5", optimizer.load_state_dict, copy.deepcopy(one))
        optimizer.load_state_dict(copy.deepcopy(other))
        self.assertEqual(float(optimizer.state[model[0].weight]["exp_avg"].sum()), 0)
        optimizer.close()
        third = self.tiered((model := net()).parameters(), lr=1e-2, store=store)
        third.load_state_dict(copy.deepcopy(other))
        self.assertEqual(float(third.state[model[0].weight]["exp_avg"].sum()), 0)

    def test_hooks_of_state_dicts(self):
        seen = []

        def scenario(make):
            model = net()
            optimizer = make(model.parameters(), lr=1e-2)
            optimizer.register_state_dict_post_hook(lambda o, d: {**d, "state": {k: dict(v) for k, v in d["state"].items()}})

            def mirrored(o, d):
                first, second = d["param_groups"][0]["params"][1], d["param_groups"][0]["params"][3]
                return {**d, "state": {**d["state"], first: d["state"][second], second: d["state"][first]}}

            optimizer.register_load_state_dict_pre_hook(mirrored)
            optimizer.register_load_state_dict_post_hook(
                lambda o: seen.append(float(o.state[model[0].weight]["exp_avg"].abs().sum())))
            loop(None, steps=3, model=model, optimizer=optimizer)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            return loop(None, steps=2, model=model, optimizer=optimizer)

        self.same(lambda make: scenario(lambda *p, **o: make(*p, **o, **({} if make == self.fused else {"state_dict": "full"}))))
        self.assertEqual(len(set(seen)), 1)

    def test_the_state_dict_of_an_optimizer_that_does_more(self):
        model, optimizer = loop(self.tiered, steps=2)
        for more in (dict(amsgrad=True), dict(maximize=True)):
            _, theirs = loop(lambda params, lr, more=more: torch.optim.AdamW(params, lr=lr, **more), steps=2)
            self.refused(next(iter(more)), optimizer.load_state_dict, theirs.state_dict())
        _, theirs = loop(self.fused, steps=2)
        wrong = theirs.state_dict()
        wrong["param_groups"][0]["lr"] = "fast"
        self.refused("lr='fast'", optimizer.load_state_dict, wrong)
        loop(None, steps=1, model=model, optimizer=optimizer)

    def test_the_state_dict_of_another_model(self):
        model, optimizer = loop(self.tiered, steps=2)
        weights, moment = copy.deepcopy(list(model.parameters())), optimizer.state[model[0].weight]["exp_avg"]
        for shape in ((24, 16), (96, 16)):
            other = net()
            other[0] = nn.Linear(16, shape[0])
            other[2] = nn.Linear(shape[0], 48)
            _, theirs = loop(self.fused, model=other, steps=2)
            self.refused("exp_avg", optimizer.load_state_dict, theirs.state_dict())
        with self.assertRaisesRegex(ValueError, "parameter group"):
            optimizer.load_state_dict(self.fused(net()[0].parameters()).state_dict())
        self.assertTrue(torch.equal(moment, optimizer.state[model[0].weight]["exp_avg"]))
        self.assertEqual(words_different(weights, model.parameters()), 0)
        loop(None, steps=1, model=model, optimizer=optimizer)

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
