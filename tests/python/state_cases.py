"""optimizer.state, as users read it, write it, and load other optimizers' into it. hostile_test.py runs these."""
import collections
import copy
import pickle

from optimizer_support import Case, each, loop, net, nn, torch, words_different


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
            view = optimizer.state[optimizer.param_groups[0]["params"][0]]
            self.assertEqual(["exp_avg" in view, view.get("exp_avg_sq").shape, view.get("nothing", 5), "nothing" in view],
                             [True, torch.Size([48, 16]), 5, False])

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

    def test_copies_of_state(self):
        model, optimizer = loop(self.tiered, steps=2)
        state = optimizer.state[model[0].weight]
        old, whole = state["exp_avg"], state["exp_avg_sq"].clone()
        for other in (copy.deepcopy(old), old.clone(), old * 1, pickle.loads(pickle.dumps(old))):
            self.assertIs(type(other), torch.Tensor)
            self.assertTrue(torch.equal(other.fill_(1.0), torch.ones(48, 16)))
        self.assertFalse((state["exp_avg"] == 1).any())
        self.refused("exp_avg of parameter 0 is of shape (3,); (48, 16) expected", state.__setitem__, "exp_avg", torch.ones(3))
        self.refused("a whole number expected", state.__setitem__, "step", torch.tensor(1.5))
        loop(None, steps=1, model=model, optimizer=optimizer)
        self.refused("was read at step 2, and the store is at step 3", old.zero_)
        self.assertFalse(torch.equal(whole, state["exp_avg_sq"]))
        self.assertTrue((state["exp_avg"] != 0).any())

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
            self.refused("no store is open; resume() opens it", lambda state=state: state["exp_avg"])
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
