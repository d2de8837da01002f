#!/usr/bin/env python3
"""What users do to an optimizer that no manual mentions: each leaves torch's bits, or is refused in a sentence, and the
process lives.

Usage: hostile_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import copy
import os
import resource
import shutil
import time
import unittest
import warnings

from loading_cases import Loading  # noqa: F401
from optimizer_support import X, Case, each, in_child, loop, mse, net, nn, torch, words_different
from process_cases import Forks, Hooks, Interrupts, Threads  # noqa: F401
from state_cases import State  # noqa: F401

import penstock
from penstock._fingerprint import fingerprint


class Weights(Case):
    """Weights that are resized, retyped, moved, replaced or written between steps."""

    def test_moved_in_memory(self):
        self.same(lambda make: loop(make, post=each(lambda p: setattr(p, "data", p.data.clone()))))

    def test_moved_twice_and_back_to_where_they_were(self):
        """By an allocator that gives the same memory again."""
        def twice(p):
            for _ in range(2):
                p.data = p.data * 0.5
                p.data = p.data * 0.5

        self.same(lambda make: loop(make, post=each(twice)))

    def test_a_gradient_that_is_edited_through_data_or_numpy(self):
        """Which no version counter tells of."""
        for edit in (lambda p: p.grad.data.mul_(0.5), lambda p: p.grad.data.neg_(), lambda p: p.grad.data.clamp_(-1e-4, 1e-4),
                     lambda p: p.grad.numpy().flat.__setitem__(0, 1.0)):
            self.same(lambda make, edit=edit: loop(make, k=2, pre=each(edit)))

    def test_gradients_whose_changes_balance(self):
        """As many signs of each in every row and column of whatever adds them up."""
        signs = torch.ones(64, 1024)
        signs[::2, ::2] = signs[1::2, 1::2] = -1
        for edit in (lambda g: g.neg_(), lambda g: g.copy_(g.flip(0)), lambda g: g.data.mul_(-1)):
            results = []
            for make in (self.fused, lambda *p, **o: self.tiered(*p, begin="backward", **o)):
                p = nn.Parameter(torch.ones(64, 1024))
                optimizer = make([p], lr=1e-2)
                for s in range(4):
                    (p * signs).sum().backward()
                    if s == 2:
                        edit(p.grad)
                    optimizer.step(), optimizer.zero_grad()
                results.append(p)
            self.assertEqual(words_different([results[0]], [results[1]]), 0)

    def test_gradients_whose_rows_change_places(self):
        """And add up to the same, by rows and by columns."""
        for exchanged in ((0, 1), (0, 3), (1, 2)):
            def scenario(make, exchanged=exchanged):
                p = nn.Parameter(torch.zeros(4, 1024))
                optimizer = make([p], lr=1e-2)
                for s in range(3):
                    sum(p[row, 2 * row] for row in range(4)).backward()
                    if s == 2:
                        p.grad[list(exchanged)] = p.grad[list(reversed(exchanged))]
                    optimizer.step(), optimizer.zero_grad()
                return [p]

            ours = scenario(lambda *p, **o: self.tiered(*p, begin="backward", **o))
            self.assertEqual(words_different(scenario(self.fused), ours), 0, exchanged)

    def test_another_default_device(self):
        p = nn.Parameter(torch.ones(3000))
        optimizer = self.tiered([p], lr=0.5, weights="fingerprint", begin="backward")
        with torch.device("meta"):
            for _ in range(3):
                optimizer.zero_grad()
                p.sum().backward()
                optimizer.step()
        self.assertLess(p.max().item(), 0)

    def test_gradients_with_the_negative_bit(self):
        negative = torch.complex(torch.zeros(64), torch.linspace(-1, 1, 64)).conj().imag
        self.assertTrue(negative.is_neg())
        for begin in ("step", "backward"):
            p, q = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(64))
            ours, theirs = self.tiered([p], begin=begin), self.fused([q])
            p.grad, q.grad = negative, negative.resolve_neg().clone()
            ours.step(), theirs.step()
            self.assertEqual(words_different([p], [q]), 0)

    def test_weights_that_change_places_through_data(self):
        theirs, _ = loop(self.fused, post=each(lambda p: p.data.copy_(p.data.flip(0))))
        for begin in ("step", "backward"):
            ours, _ = loop(lambda params, lr: self.tiered(params, lr=lr, weights="fingerprint", begin=begin),
                           post=each(lambda p: p.data.copy_(p.data.flip(0))))
            self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)

    def test_a_fingerprint_of_halves_changes_with_them(self):
        for dtype in (torch.bfloat16, torch.float16):
            values = torch.linspace(1, 2, 4096).to(dtype)
            one, two = values.clone(), values.clone()
            one[77], two[3::4093] = 0.5, -two[3::4093]
            others = [fingerprint(each) for each in (values, -values, values.flip(0), one, two)]
            self.assertEqual((len(set(others)), fingerprint(values.clone())), (5, others[0]), dtype)

    def test_another_size_is_refused(self):
        for begin in ("step", "backward"):
            model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin), steps=2)
            whole = model[0].weight.data
            for other in (torch.zeros(4, 16), torch.zeros(480, 16)):
                model[0].weight.data = other
                model[0].weight.grad = torch.ones_like(other)
                self.refused("has 768 values", optimizer.step)
                self.refused("has 768 values", optimizer.resume)
            model[0].weight.data, model[0].weight.grad = whole, None
            loop(None, steps=1, model=model, optimizer=optimizer)

    def test_another_dtype(self):
        model, optimizer = loop(self.tiered, steps=2)
        model.bfloat16()
        model(X[0].bfloat16()).sum().backward()
        optimizer.step()
        self.assertEqual(model[0].weight.dtype, torch.bfloat16)
        model.double().zero_grad()
        model(X[0].double()).sum().backward()
        self.refused("float64", optimizer.step)
        late = self.tiered((model := net()).parameters())
        model.double()
        model(X[0].double()).sum().backward()
        self.refused("parameter 0 is of torch.float64", late.step)

    def test_gradients_of_another_dtype(self):
        if not hasattr(torch.Tensor, "grad_dtype"):
            self.skipTest("this torch has no grad_dtype")

        def scenario(make):
            p = nn.Parameter(torch.ones(64))
            p.grad_dtype = None
            optimizer = make([p], lr=1e-2)
            for dtype in (torch.float64, torch.bfloat16, torch.float16):
                p.grad = torch.linspace(-1, 1, 64).to(dtype)
                optimizer.step()
            return [p]

        exact = nn.Parameter(torch.ones(64))
        optimizer = self.fused([exact], lr=1e-2)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            exact.grad = torch.linspace(-1, 1, 64).to(dtype).float()
            optimizer.step()
        self.assertEqual(words_different([exact], scenario(self.tiered)), 0)

    def test_a_parameter_in_two_groups_or_twice_in_one(self):
        p = nn.Parameter(torch.ones(16))
        with self.assertRaisesRegex(ValueError, "some parameters appear in more than one parameter group"):
            self.tiered([dict(params=[p]), dict(params=[p])])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.refused("twice", self.tiered, [p, p])

    def test_parameters_that_share_memory(self):
        p = nn.Parameter(torch.ones(32))
        optimizer = self.tiered([p, nn.Parameter(p.data[16:])])
        for q in optimizer.param_groups[0]["params"]:
            q.grad = torch.ones_like(q)
        self.refused("share memory", optimizer.step)

    def test_parameters_that_come_to_share_memory(self):
        p, q = nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(32))
        optimizer = self.tiered([p, q])
        for time in range(2):
            p.grad, q.grad = torch.ones(32), torch.ones(32)
            if time == 0:
                optimizer.step()
                q.data = p.data
        self.refused("parameters 0 and 1 share memory", optimizer.step)
        q.data = q.data.clone()
        optimizer.step()

    def test_parameters_that_lie_within_each_other(self):
        """Columns of one matrix are apart, or not, by their elements."""
        whole = torch.ones(8, 6)
        apart = [whole[:, :2], whole[:, 2:3], whole[:, 3:].t()]
        optimizer = self.tiered([nn.Parameter(one) for one in apart])
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        optimizer.step()
        self.assertTrue((whole < 1).all())
        for shares in ([whole[:, :3], whole[:, 2:]], [whole[::2], whole[:, 5]], [whole, whole.t()]):
            optimizer = self.tiered([nn.Parameter(one) for one in [torch.ones(3), *shares]])
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.ones_like(p)
            self.refused("parameters 1 and 2 share memory", optimizer.step)
        # The last begins behind the end of the second, and not of the first.
        optimizer = self.tiered([nn.Parameter(one) for one in (whole[:, :1], whole[:1, 2:4], whole[4:5, :2])])
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        self.refused("parameters 0 and 2 share memory", optimizer.step)
        for shares in (torch.ones(1).expand(4), torch.ones(8).as_strided((4, 4), (1, 1)), torch.ones(9).as_strided((3, 2), (2, 3))):
            p = nn.Parameter(shares)
            p.grad = torch.ones(p.shape)
            if len({int(i) for i in (torch.arange(9).as_strided(p.shape, p.stride())).flatten()}) < p.numel():
                self.refused("is expanded", self.tiered([p]).step)
            else:
                self.tiered([p]).step()

    def test_parameters_that_lie_side_by_side(self):
        flat = torch.ones(32)
        parameters = [nn.Parameter(flat[:16]), nn.Parameter(flat[16:])]
        optimizer = self.tiered(parameters)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        self.assertTrue((flat < 1).all())

    def test_parameters_that_are_replaced_or_taken_away(self):
        def change(optimizer, edit):
            groups = optimizer.param_groups
            kept = [list(group["params"]) for group in groups], list(groups)
            edit(groups)
            self.refused("are not those that the store was made for", optimizer.step)
            groups[:] = kept[1]
            for group, params in zip(groups, kept[0], strict=True):
                group["params"] = params

        model = net()
        optimizer = self.tiered([dict(params=list(model[0].parameters())), dict(params=list(model[2].parameters()))])
        mse(lambda x: model(x), X[0]).backward()
        optimizer.step()
        change(optimizer, lambda groups: groups.pop())
        change(optimizer, lambda groups: groups.reverse())
        change(optimizer, lambda groups: groups[0]["params"].pop())
        change(optimizer, lambda groups: groups[0]["params"].__setitem__(0, nn.Parameter(torch.ones(48, 16))))
        optimizer.step()

    def test_named_parameters_and_rates_as_tensors(self):
        def scenario(make):
            model = net()
            return loop(make, model=model, optimizer=make(model.named_parameters(), lr=torch.tensor(1e-2)))

        self.same(scenario)

    def test_rates_that_make_no_sense(self):
        p = nn.Parameter(torch.ones(16))
        for more in ({}, {"momentum": 0.9, "dampening": 0.1}):
            self.refused("penstock.SGD: nesterov=True: a momentum, and no dampening, expected", lambda more=more: penstock.SGD(
                [p], nesterov=True, store=self.folder / "none", budget="host=64MiB", **more))
        for wrong in (dict(lr=-1.0), dict(lr=float("nan")), dict(betas=(1.0, 0.999)), dict(eps=-1e-8),
                      dict(weight_decay=float("inf")), dict(lr=None), dict(lr="fast"), dict(lr=torch.ones(2)),
                      dict(betas=0.9), dict(betas=(0.9,)), dict(betas=(0.9, None)), dict(eps=[1e-8]), dict(eps=0)):
            with self.subTest(**wrong):
                p.grad = torch.ones(16)
                self.refused(f"{next(iter(wrong))}=", lambda wrong=wrong: self.tiered([p], **wrong))
                optimizer = self.tiered([p])
                optimizer.param_groups[0].update(wrong)
                self.refused(f"{next(iter(wrong))}=", optimizer.step)
                self.assertEqual(float(p.detach().sum()), 16)

    def test_what_torch_takes_besides(self):
        p = nn.Parameter(torch.ones(16))
        for more in (dict(fused=True), dict(foreach=None), dict(capturable=False), dict(amsgrad=False)):
            self.tiered([p], **more)
        for more in (dict(amsgrad=True), dict(maximize=True), dict(differentiable=True)):
            self.refused(next(iter(more)), lambda: self.tiered([p], **more))


class Drives(Case):
    def test_two_optimizers_on_one_store(self):
        store = self.folder / "store"
        model, optimizer = loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=1)
        other = self.tiered(net().parameters(), store=store)
        began = time.monotonic()
        self.refused("is open in this process already, in another optimizer (close() that one first)", other.resume)
        self.assertLess(time.monotonic() - began, 5)
        loop(None, steps=1, model=model, optimizer=optimizer)
        del optimizer  # and what nobody holds any longer is no obstacle
        self.assertEqual(other.resume(), 2)

    def test_the_store_of_other_shapes(self):
        """As many values in each parameter, and of another shape."""
        store = self.folder / "store"
        loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=2)[1].close()
        transposed = [nn.Parameter(p.detach().t().contiguous()) if p.dim() > 1 else p for p in net().parameters()]
        self.refused("from 0 [16, 48] in the model, from 0 [48, 16] in the store", self.tiered(transposed, store=store).resume)

    def test_stores_that_are_none(self):
        for store in ([], None, 5, "", b"", "a\0b", [None], ["a", ""], ["a", "./a"], [str(self.folder), self.folder]):
            self.refused("store=", lambda store=store: self.tiered(net().parameters(), store=store))
        self.assertEqual(loop(lambda *p, **o: self.tiered(*p, store=os.fsencode(self.folder / "bytes"), **o), 2)[1].kept(), [])

    def test_a_store_or_a_budget_that_is_missing(self):
        p = [nn.Parameter(torch.ones(16))]
        for kind in (penstock.AdamW, penstock.Adam, penstock.Adagrad, penstock.Lion, penstock.SGD):
            for more, what in (({"budget": "1GiB"}, 'store= is missing, a folder for the state, or one on each drive (store="'),
                               ({"store": self.folder / "x"}, 'budget= is missing, the host memory that the engine may take (budget="'),
                               ({}, "store= is missing")):
                self.refused(f"penstock.{kind.__name__}: {what}", lambda kind=kind, more=more: kind(p, **more))

    def test_places_where_no_store_can_be(self):
        """They are refused at once, not in the first step."""
        file = self.folder / "file"
        file.write_text("mine")
        for store in (file, file / "store", [self.folder / "a", file / "b" / "c"]):
            self.refused(f"store: {file}: is not a folder", lambda store=store: self.tiered(net().parameters(), store=store))
        locked = self.folder / "locked"
        locked.mkdir()
        self.folder.chmod(0o755)
        locked.chmod(0o555)

        def work():
            if os.geteuid() == 0:
                os.setuid(65534)
            for store, what in ((locked, "may not be written to"),
                                (locked / "new" / "store", f"may not be written to, so {locked}/new/store cannot be made")):
                self.refused(f"store: {locked}: {what}", lambda store=store: self.tiered(net().parameters(), store=store))

        in_child(self, work)
        self.assertEqual(sorted(one.name for one in self.folder.iterdir()), ["file", "locked"])

    def test_a_first_step_that_is_refused_leaves_no_folder(self):
        there = self.folder / "there"
        there.mkdir()
        for stores in ([self.folder / "new" / "a"], [self.folder / "new" / "a", self.folder / "new" / "b"], [there], [there / "c"]):
            optimizer = self.tiered((model := net()).parameters(), store=stores, budget="host=1KiB")
            mse(model, X[0]).backward()
            self.refused("host budget", optimizer.step)
            self.assertEqual((list(self.folder.iterdir()), list(there.iterdir())), ([there], []))

    def test_a_folder_of_the_users_where_a_larger_store_would_be_made(self):
        store = self.folder / "store"
        theirs = store / "growing" / "poem"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("mine")
        model = net()
        optimizer = self.tiered(model[0].parameters(), store=store)
        mse(model, X[0]).backward()
        optimizer.step()
        optimizer.add_param_group(dict(params=list(model[2].parameters())))
        self.refused(f"{theirs.parent}: is there already, and is not of a store (move it away)", optimizer.step)
        self.assertEqual(theirs.read_text(), "mine")
        theirs.parent.rename(self.folder / "elsewhere")
        optimizer.step()
        self.assertEqual(optimizer.statistics()["parameters"], 4)

    def test_a_damaged_store_is_told_in_words_of_python(self):
        store = self.folder / "store"
        loop(lambda params, lr: self.tiered(params, lr=lr, store=store), steps=1)[1].close()
        (store / "rank0.tiles").write_bytes(b"x" * 65536)
        refused = self.tiered(net().parameters(), store=store)
        self.refused('existing="replace"', refused.resume)

    def test_parameters_without_elements_alone(self):
        p = nn.Parameter(torch.ones(0))
        p.grad = torch.ones(0)
        self.refused("no parameter has elements", self.tiered([p]).step)

    def test_a_store_that_vanishes(self):
        model, optimizer = loop(self.tiered, steps=2)
        mse(model, X[2]).backward()
        os.rename(self.folder / "1", self.folder / "elsewhere")
        for verb in (optimizer.step, optimizer.state_dict):
            self.refused(f"the store is no longer in {self.folder / '1'}", verb)
        os.rename(self.folder / "elsewhere", self.folder / "1")
        optimizer.step()
        shutil.rmtree(self.folder / "1")
        optimizer.close()
        self.assertEqual(optimizer.resume(), 0)

    def test_a_relative_store_where_the_process_changes_its_folder(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        model, optimizer = loop(lambda *p, **o: self.tiered(*p, store="relative", **o), steps=2)
        os.chdir(before)
        mse(model, X[2]).backward()
        optimizer.step()
        self.assertEqual(optimizer.state_dict()["penstock"]["step"], 3)
        self.assertTrue((self.folder / "relative").is_dir())

    def test_a_budget_that_is_too_small_is_raised_as_advised(self):
        budget, model = 16 << 20, nn.Linear(3000, 3000)
        model(torch.ones(1, 3000)).sum().backward()
        with self.assertRaises(penstock.PenstockError) as caught:
            self.tiered(model.parameters(), budget=f"host={budget}").step()
        self.assertRegex(caught.exception.remedy, r'^raise budget="host=\.\.\." by at least [0-9.]+ [KM]iB$')
        more, unit = caught.exception.remedy.split()[-2:]
        budget += int(float(more) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]) + 1
        self.tiered(model.parameters(), budget=f"host={budget}").step()

    def test_budgets_and_threads_that_no_machine_has(self):
        for budget in (-5, -1, 0, 2**63, 2**64, 10**30):
            self.refused(f"budget {budget}: a number of bytes", lambda budget=budget: self.tiered(net().parameters(), budget=budget))
        for threads in (-1, 1.5):
            self.refused(f"threads={threads}: 0 or more", lambda threads=threads: self.tiered(net().parameters(), threads=threads))

    def test_a_disk_that_is_full(self):
        """As far as a process can be told so: no file of its own may grow."""
        theirs, _ = loop(self.fused)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        for begin in ("step", "backward"):
            for at, way in ((0, "resume"), (3, "resume"), (3, "load")):
                with self.subTest(begin=begin, at=at, way=way):
                    def fill(s, m, o, at=at, way=way):
                        if s != at or not isinstance(o, penstock.AdamW):
                            return
                        weights, saved = copy.deepcopy(m.state_dict()), o.state_dict() if at > 0 else None
                        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
                        self.refused("rank0.tiles: EFBIG (File too large)", o.step)
                        if at > 0:
                            state = o.state[m[0].weight]["exp_avg"]
                            for asks in (o.step, o.state_dict, o.kept, o.statistics, lambda: o.drop(1), state.sum, state.zero_):
                                self.refused("the last step failed", asks)
                        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
                        if way == "load":
                            m.load_state_dict(weights)
                            o.load_state_dict(saved)
                        else:
                            self.assertEqual(o.resume(), at)
                        o.zero_grad()
                        mse(m, X[at]).backward()

                    def work(begin=begin, fill=fill, store=self.folder / f"{begin}{at}{way}"):
                        ours, _ = loop(lambda params, lr: self.tiered(params, lr=lr, begin=begin, store=store), pre=fill)
                        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0)

                    in_child(self, work)


if __name__ == "__main__":
    unittest.main(verbosity=2)
