#!/usr/bin/env python3
"""What state_dict() names and load_state_dict() takes, and what the optimizers refuse.

Usage: state_dict_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import copy
import gc
import io
import os
import shutil
import signal
import sys
import unittest
import unittest.mock

from optimizer_support import BUDGET, X, Case, loop, mse, net, nn, torch, words_different

import penstock
from penstock import _library as lib


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

    def test_momentum_of_torch_sgd_which_counts_no_steps(self):
        """A first step would take the gradient for the momentum."""
        theirs, their_optimizer = loop(lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9), steps=3)
        model = net()
        model.load_state_dict(theirs.state_dict())
        optimizer = penstock.SGD(model.parameters(), lr=1e-2, momentum=0.9, store=self.folder / "sgd", budget=BUDGET)
        optimizer.load_state_dict(their_optimizer.state_dict())
        loop(None, steps=2, model=theirs, optimizer=their_optimizer)
        loop(None, steps=2, model=model, optimizer=optimizer)
        for p, q in zip(theirs.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)

    def test_momentum_of_torch_sgd_that_is_none_begins_undampened(self):
        """As in a first step, though the store has had steps; the second parameter goes on with its own."""
        results = []
        for make in (torch.optim.SGD, lambda *p, **o: penstock.SGD(*p, store=self.folder / "sgd", budget=BUDGET, **o)):
            params = [nn.Parameter(torch.ones(16)) for _ in range(2)]
            optimizer = make(params, lr=0.1, momentum=0.9, dampening=0.5)
            for step in range(5):
                if step == 3:
                    state = {0: {"momentum_buffer": None}, 1: {"momentum_buffer": torch.full((16,), 2.0)}}
                    optimizer.load_state_dict({"state": state, "param_groups": torch.optim.SGD(
                        params, lr=0.1, momentum=0.9, dampening=0.5).state_dict()["param_groups"]})
                for p in params:
                    p.grad = torch.linspace(-1, 1, 16)
                optimizer.step()
            results.append(params)
        for p, q in zip(*results, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)

    def test_full_state_of_bf16_weights_is_plain_and_stays_fp32(self):
        """torch's own load_state_dict would cast the moments to the weights' dtype."""
        p = nn.Parameter(torch.randn(1000).bfloat16())
        first = self.tiered([p], state_dict="full")
        for _ in range(3):
            p.grad = torch.randn(1000).bfloat16()
            first.step()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = self.tiered([p])
        second.load_state_dict(torch.load(file, weights_only=True))
        for name in ("exp_avg", "exp_avg_sq"):
            moment = second.state[p][name]
            self.assertEqual(moment.dtype, torch.float32)
            self.assertTrue(torch.equal(moment, first.state[p][name]), name)
            self.assertFalse(torch.equal(moment, moment.bfloat16().float()), name)

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


class Groups(Case):
    """Groups that come when the store is there: it is written anew, and goes on with its steps."""

    def trained(self, stores, groups, steps, **more):
        """The optimizer of the first layers, after so many steps of all of them."""
        model = net()
        optimizer = self.tiered(model[0].parameters(), lr=1e-2, store=stores, **more)
        for layer in groups:
            optimizer.add_param_group(dict(params=list(model[layer].parameters())))
        optimizer.resume()
        for s in range(steps):
            mse(model, X[s]).backward()
            optimizer.step(), optimizer.zero_grad()
        return model, optimizer

    def test_the_store_goes_on_with_its_steps(self):
        store = self.folder / "store"
        model, optimizer = self.trained(store, (), 3)
        kept = optimizer.state_dict()["penstock"]
        optimizer.add_param_group(dict(params=list(model[2].parameters())))
        mse(model, X[3]).backward()
        optimizer.step()
        self.assertEqual([float(optimizer.state[model[layer].weight]["step"]) for layer in (0, 2)], [4, 1])
        state = optimizer.state_dict()
        self.assertEqual(state["penstock"]["step"], 4)
        self.assertEqual(optimizer.kept(), [4])
        self.assertEqual(optimizer.statistics()["parameters"], 4)
        weights = copy.deepcopy(list(model.parameters()))
        optimizer.close()

        again, optimizer = self.trained(store, (2,), 0)
        self.assertEqual(words_different(weights, again.parameters()), 0)
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[1]["lr"], 1e-2)
        optimizer.close()
        # What was kept stays with the store that it was kept in.
        _, before = self.trained(store / f"before-{kept['store'][:8]}", (), 0)
        self.assertEqual((before.resume(), before.kept(), before._penstock.store.id), (3, [3], kept["store"]))

    def test_states_are_copied_and_emptied_run_by_run(self):
        """A parameter's values are more than are copied at once."""
        model, optimizer = self.trained(self.folder / "store", (), 3)
        p, weights = model[0].weight, copy.deepcopy(list(model[0].parameters()))
        moments = [optimizer.state[p][name].clone() for name in ("exp_avg", "exp_avg_sq")]
        with unittest.mock.patch.object(penstock._open_store, "_RUN_ELEMENTS", 100):  # of 768, and of 48
            optimizer.add_param_group(dict(params=list(model[2].parameters())))
            optimizer.state_dict()
            self.assertEqual([int((optimizer.state[p][name] != was).sum()) for name, was in zip(("exp_avg", "exp_avg_sq"), moments)], [0, 0])
            self.assertGreater(min(int(was.count_nonzero()) for was in moments), 700)
            optimizer.resume()
            self.assertEqual(words_different(weights, model[0].parameters()), 0)
            del optimizer.state[p]
            optimizer.state_dict()
        for role in (lib.MOMENTUM, lib.VARIANCE):
            self.assertEqual(int(optimizer._penstock.store.read(0, role).count_nonzero()), 0)

    def test_a_budget_that_is_too_small_for_both_leaves_the_store_as_it_was(self):
        model, optimizer = self.trained(self.folder / "store", (), 0, budget="host=24MiB")
        for s in range(4):
            mse(model, X[s]).backward()
            if s == 2:
                optimizer.add_param_group(dict(params=list(model[2].parameters())))
                self.refused("with half the budget for each: ", optimizer.step)
                del optimizer.param_groups[1]
            optimizer.step(), model.zero_grad()
        self.assertEqual(float(optimizer.state[model[0].weight]["step"]), 4)

    def test_a_crash_leaves_the_smaller_store_or_the_larger_one(self):
        """Killed at each of the calls that change files, on two drives, with a step that is kept."""
        made = [self.folder / "a", self.folder / "b"]
        model, optimizer = self.trained(made, (), 3)
        optimizer.state_dict()
        weights = copy.deepcopy(list(model.parameters()))
        moments = optimizer.state[model[0].weight]["exp_avg"].clone()
        optimizer.close()
        gc.collect()  # an engine of another test's would leave its children without threads
        outcomes = []
        while not outcomes or outcomes[-1] != "whole":
            stores = [self.folder / f"{len(outcomes)}{folder.name}" for folder in made]
            for folder, store in zip(made, stores, strict=True):
                shutil.copytree(folder, store)
            child = os.fork()
            if child == 0:
                self.grow_and_die(stores, len(outcomes) + 1)
            killed = os.waitpid(child, 0)[1] == signal.SIGKILL
            for layers in ((), (2,)):  # the smaller one, or else the larger one
                again = self.tiered((model := net())[0].parameters(), lr=1e-2, store=stores)
                for layer in layers:
                    again.add_param_group(dict(params=list(model[layer].parameters())))
                try:
                    self.assertEqual(again.resume(), 3)
                    break
                except penstock.PenstockError as error:
                    self.assertIn("another", str(error))
            else:
                self.fail(f"call {len(outcomes) + 1}: neither store is there")
            self.assertEqual(words_different(weights[:2], model[0].parameters()), 0)
            self.assertTrue(torch.equal(again.state[model[0].weight]["exp_avg"], moments))
            self.assertEqual([(store / "growing").exists() for store in stores], [False, False])
            again.close()
            for store in stores:
                shutil.rmtree(store)
            outcomes.append(("larger" if layers else "smaller") if killed else "whole")
        self.assertEqual(outcomes, sorted(outcomes[:-1], reverse=True) + ["whole"])
        self.assertIn("smaller", outcomes)
        self.assertIn("larger", outcomes)

    def grow_and_die(self, stores, at):
        """In a child: ends with 0 where there are fewer such calls."""
        calls = 0

        def hook(event, arguments):
            nonlocal calls
            changes = event in ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir") or (
                event == "open" and "growing" in str(arguments[0]) and arguments[1] == "w")
            if changes and (calls := calls + 1) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            model = net()
            optimizer = self.tiered(model[0].parameters(), lr=1e-2, store=stores)
            optimizer.resume()
            optimizer.add_param_group(dict(params=list(model[2].parameters())))
            sys.addaudithook(hook)
            optimizer.state_dict()
            os._exit(0)
        finally:
            os._exit(1)


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
        self.refused("float32, bfloat16 or float16 expected", optimizer.add_param_group,
                     dict(params=[nn.Parameter(torch.ones(3).double())]))
        self.refused("float32, bfloat16 or float16 expected", self.tiered, [nn.Parameter(torch.ones(3).double())])
        self.refused("begin='forward': one of 'step', 'backward' expected",
                     lambda: self.tiered(net().parameters(), begin="forward"))
        self.refused('accumulation=2: only begin="backward" asks', lambda: self.tiered(net().parameters(), accumulation=2))
        self.refused("accumulation=0: 1 or more micro-batches expected",
                     lambda: self.tiered(net().parameters(), begin="backward", accumulation=0))
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
