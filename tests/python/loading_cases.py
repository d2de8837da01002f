"""State dicts, as users load, edit and mix them. hostile_test.py runs these."""
import copy
import functools

from optimizer_support import SEED, X, Case, clip, loop, mse, net, nn, torch, words_different

import penstock


class Loading(Case):
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

    def test_a_reference_that_an_older_version_gave_is_taken(self):
        """It names store and step, and has neither the state's mark nor its counts."""
        model, optimizer = loop(self.tiered, 2)
        saved = optimizer.state_dict()
        moment = optimizer.state[model[0].weight]["exp_avg"].clone()
        for reference in (saved["penstock"], saved["param_groups"][0]["penstock"]):
            del reference["mark"], reference["counts"]
        loop(None, 1, model=model, optimizer=optimizer)
        optimizer.load_state_dict(saved)
        self.assertTrue(torch.equal(optimizer.state[model[0].weight]["exp_avg"], moment))

    def test_every_group_of_a_state_dict_is_looked_at(self):
        model = net()
        groups = [dict(params=list(model[i].parameters())) for i in (0, 2)]
        _, optimizer = loop(None, 2, model=model, optimizer=self.tiered(groups, lr=1e-2))
        saved = optimizer.state_dict()
        loop(None, 1, model=model, optimizer=optimizer)
        edits = {"lr='fast'": lambda d: d["param_groups"][1].update(lr="fast"),
                 "maximize=True": lambda d: d["param_groups"][1].update(maximize=True),
                 'delete "penstock" from it': lambda d: d["state"][3].update(step=torch.tensor(1.0))}
        for why, edit in edits.items():
            edited = copy.deepcopy(saved)
            edit(edited)
            self.refused(why, optimizer.load_state_dict, edited)
            self.assertEqual(float(optimizer.state[model[2].bias]["step"]), 3)  # nothing has gone back
        optimizer.load_state_dict(saved)
        self.assertEqual(float(optimizer.state[model[2].bias]["step"]), 2)

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

    def test_weights_that_are_loaded_behind_the_optimizer(self):
        """In whatever order they come, and whether or not the dict has any state: they are what the next step begins
        with."""
        kinds = {"SGD": dict(lr=0.5), "Adagrad": dict(lr=0.5), "AdamW": dict(lr=1e-2, fused=True)}
        for kind, rates in kinds.items():
            for begin in ("step", "backward"):
                results = []
                for make in (getattr(torch.optim, kind), functools.partial(self.of, kind, begin=begin)):
                    model = net()
                    optimizer = make(model.parameters(), **rates)
                    saved = getattr(torch.optim, kind)(net().parameters(), **rates).state_dict()
                    if kind == "SGD":
                        saved["state"] = {0: {"momentum_buffer": None}}
                    optimizer.load_state_dict(saved)
                    if kind == "AdamW":
                        mse(model, X[0]).backward(), optimizer.step(), model.zero_grad()
                        optimizer.state.clear()
                    torch.manual_seed(5)
                    model.load_state_dict({name: torch.randn_like(p) for name, p in model.state_dict().items()})
                    results.append(loop(None, 2, model=model, optimizer=optimizer)[0])
                one, other = (torch.nn.utils.parameters_to_vector(model.parameters()) for model in results)
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=f"{kind}, {begin}, seed {SEED}")

    def test_a_reference_whose_state_is_edited_is_refused(self):
        """It would not do what was written there; without the name of the store it does."""
        model, optimizer = loop(self.tiered, 3, before=clip)
        saved = optimizer.state_dict()
        moments = {"step": torch.tensor(7.0), "exp_avg": torch.zeros(48, 16), "exp_avg_sq": torch.ones(48, 16)}
        edits = {
            "emptied": lambda d: d.update(state={}),
            "a parameter's moments": lambda d: d["state"][0].update(exp_avg=torch.zeros(48, 16)),
            "a parameter's step": lambda d: d["state"][0].update(step=torch.tensor(0.0)),
            "another's state": lambda d: d.update(state={0: moments}),
        }
        for what, edit in edits.items():
            edited = copy.deepcopy(saved)
            edit(edited)
            self.refused('delete "penstock" from it', optimizer.load_state_dict, edited)
            del edited["penstock"]
            self.refused('delete "penstock" from it', optimizer.load_state_dict, edited)
            self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 3, what)
        edited = copy.deepcopy(saved)
        del edited["penstock"], edited["param_groups"][0]["penstock"]
        edited["state"] = {0: moments}
        optimizer.load_state_dict(edited)
        self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 7)
        self.assertNotIn(model[2].weight, optimizer.state)
        optimizer.load_state_dict(saved)
        self.assertEqual(float(optimizer.state[model[2].weight]["step"]), 3)

    def test_a_hook_that_writes_state_before_it_is_saved(self):
        model, optimizer = loop(self.tiered, 2)

        def halved(optimizer):
            entry = optimizer.state[model[0].weight]
            entry["exp_avg"] = torch.full((48, 16), 0.5)

        optimizer.register_state_dict_pre_hook(halved)
        saved = optimizer.state_dict()
        loop(None, 2, model=model, optimizer=optimizer)
        optimizer.load_state_dict(saved)
        self.assertTrue((optimizer.state[model[0].weight]["exp_avg"] == 0.5).all())

    def test_a_reference_to_a_store_that_has_grown_since_tells_where_it_is(self):
        model = net()
        optimizer = self.tiered(model[0].parameters(), lr=1e-2)
        mse(model, X[0]).backward(), optimizer.step(), model.zero_grad()
        saved = optimizer.state_dict()
        optimizer.add_param_group(dict(params=list(model[2].parameters())))
        mse(model, X[1]).backward(), optimizer.step()
        saved["param_groups"].append(optimizer.state_dict()["param_groups"][1])
        self.refused("before parameters were added is in", optimizer.load_state_dict, saved)

    def test_sixteen_bits_of_a_full_state_are_all_of_a_weight(self):
        """Whatever the store's masters had besides: torch's layout has none."""
        def trained(state, steps):
            model, optimizer = net(torch.bfloat16), None
            optimizer = self.tiered(model.parameters(), lr=1e-2, state_dict="full")
            for s in range(steps):
                mse(model, X[s].bfloat16()).backward(), optimizer.step(), model.zero_grad()
            if state is None:
                return copy.deepcopy(model.state_dict()), optimizer.state_dict()
            model.load_state_dict(state[0]), optimizer.load_state_dict(state[1])
            for s in range(6):
                mse(model, X[s].bfloat16()).backward(), optimizer.step(), model.zero_grad()
            return list(model.parameters())

        state = trained(None, 3)
        self.assertEqual(words_different(trained(state, 0), trained(state, 5)), 0, f"seed {SEED}")

    def test_sixteen_bits_of_weights_that_nobody_loaded_keep_their_masters(self):
        """A load of the very state, as Accelerate's prepare() does one, changes nothing; nor does a reference between."""
        def trained(between):
            model = net(torch.bfloat16)
            optimizer = self.tiered(model.parameters(), lr=1e-3)
            for s in range(12):
                if s == 4:
                    between(model, optimizer)
                mse(model, X[s].bfloat16()).backward(), optimizer.step(), model.zero_grad()
            return list(model.parameters())

        def whole(optimizer):
            optimizer._penstock.full = True
            state = optimizer.state_dict()
            optimizer._penstock.full = False
            return state

        def load_weights(model, optimizer):
            model.load_state_dict(copy.deepcopy(model.state_dict())), optimizer.load_state_dict(whole(optimizer))

        def load_weights_and_keep(model, optimizer):
            load_weights(model, optimizer)
            weights, reference = copy.deepcopy(model.state_dict()), optimizer.state_dict()
            mse(model, X[9].bfloat16()).backward(), optimizer.step(), model.zero_grad()
            model.load_state_dict(weights), optimizer.load_state_dict(reference)

        untouched = trained(lambda model, optimizer: None)
        again = trained(lambda model, optimizer: optimizer.load_state_dict(whole(optimizer)))
        self.assertEqual(words_different(untouched, again), 0, f"seed {SEED}")
        loaded = trained(load_weights)
        self.assertGreater(words_different(untouched, loaded), 0)
        self.assertEqual(words_different(loaded, trained(load_weights_and_keep)), 0, f"seed {SEED}")

    def test_hooks_that_remove_themselves(self):
        _, optimizer = loop(self.tiered, 1)
        calls, handles = [], {}

        def once(name):
            def hook(*_):
                calls.append(name)
                handles[name].remove()
            return hook

        for name in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            handles[name] = getattr(optimizer, f"register_{name}_hook")(once(name))
        for _ in range(3):
            optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(sorted(calls), sorted(handles))

    def test_steps_that_are_no_numbers(self):
        _, optimizer = loop(self.tiered, 1)
        for step in (None, "x", float("nan")):
            state = optimizer.state_dict()
            state["state"][0]["step"] = step
            self.refused("a whole number up to 2^52 expected", optimizer.load_state_dict, state)

    def test_state_that_was_assigned_goes_along_at_close(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), 2)
        optimizer.state[model[0].weight]["exp_avg"] = torch.full((48, 16), 0.5)
        del optimizer.state[model[2].weight]  # as whoever frees memory does
        with torch.no_grad():
            model[4].weight.zero_()
        optimizer.close()
        again = self.tiered((other := net()).parameters(), store=store)
        self.assertEqual(again.resume(), 2)
        self.assertTrue((again.state[other[0].weight]["exp_avg"] == 0.5).all())
        self.assertEqual(float(again.state[other[2].weight]["step"]), 2)
        self.assertGreater(int(other[4].weight.count_nonzero()), 0)  # of the step, as close() says

    def test_a_store_that_another_has_trained_since_takes_the_weights_that_are_here(self):
        store = self.folder / "store"
        make = lambda params: self.tiered(params, lr=0.0, weight_decay=0.0, store=store, existing="resume")  # noqa: E731
        model, optimizer = loop(None, 1, model=(model := net()), optimizer=make(model.parameters()))
        before = copy.deepcopy(list(model.parameters()))
        optimizer.close()
        other = nn.Sequential(*copy.deepcopy(list(model)))
        with torch.no_grad():
            other[0].weight.fill_(9)
        loop(None, 1, model=other, optimizer=(behind := make(other.parameters())))
        behind.close()
        loop(None, 1, model=model, optimizer=optimizer)
        self.assertEqual(words_different(before, model.parameters()), 0)

    def of(self, kind, params, **more):
        self.made += 1
        return getattr(penstock, kind)(params, store=self.folder / str(self.made), budget="host=64MiB", **more)
