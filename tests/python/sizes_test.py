#!/usr/bin/env python3
"""Many parameters, more state than memory, two stores, two ranks.

Usage: sizes_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import functools
import os
import re
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optimizer_support import BUDGET, SEED, X, Case, filled_up, loop, mse, net, nn, torch, words_different

import penstock


class Course:
    """Fifty steps: groups with rates of their own, a schedule, gradients that are absent or taken away, and sizes that
    are multiples of nothing. The same for every optimizer; it may run beside others."""

    SIZES = (200_003, 1, 1_003, 7, 130_001, 13)
    STEPS = 50

    def __init__(self, make, fill=lambda values: values):
        self.noise = torch.randn(max(self.SIZES) + self.STEPS, generator=torch.Generator().manual_seed(SEED))
        self.fill = fill
        self.params = [nn.Parameter(values.clone()) for values in self.drawn(0)]
        groups = [dict(params=self.params[::2], weight_decay=0.1),
                  dict(params=self.params[1::2], lr=3e-3, weight_decay=0.0, betas=(0.8, 0.99))]
        self.optimizer = make(groups, lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, [1e-2, 3e-3], total_steps=self.STEPS + 1)

    def drawn(self, step):
        return [self.fill(self.noise[step : step + n]) for n in self.SIZES]

    def run(self):
        """The weights, and the optimizer."""
        for step in range(self.STEPS):
            terms = zip(self.params, self.drawn(step + 1), strict=True)
            sum((p * x).sum() for number, (p, x) in enumerate(terms) if (step + number) % 6).backward()
            if step % 10 == 4:
                self.params[4].grad = None
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
        return [p.detach() for p in self.params], self.optimizer


class Sizes(Case):
    def test_a_thousand_parameters_of_a_hundred(self):
        def scenario(make, fill=lambda values: values):
            torch.manual_seed(SEED)
            params = [nn.Parameter(fill(torch.randn(100))) for _ in range(1000)]
            optimizer = make(params, lr=1e-2)
            for _ in range(3):
                for i, p in enumerate(params):
                    gradient = fill(torch.randn(100))
                    p.grad = gradient if i % 7 else None
                optimizer.step()
            return [p.detach() for p in params]

        self.assert_vector_rule(scenario(self.fused, filled_up), scenario(self.fused), scenario(self.tiered))

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
        # Master and moments, each once: gradients are handed over in the order in which the engine reads ahead.
        read = optimizer._penstock.report.read_bytes / sum(p.numel() for p in ours)
        self.assertLess(read, 14)

    def test_fifty_steps_wherever_the_state_rests(self):
        """On the drive, in part, or in host memory: that is how much of 8 B an element of moments rests there."""
        budgets = ("host=18MiB", "host=23.5MiB", "host=64MiB")
        kinds = [(budget, begin) for budget in budgets for begin in ("step", "backward")]
        courses = [Course(functools.partial(self.tiered, budget=budget, begin=begin)) for budget, begin in kinds]
        with ThreadPoolExecutor(len(courses)) as threads:  # most of a step's time the drive is flushed
            found = list(threads.map(Course.run, courses))
        (theirs_filled_up, _), (theirs, _) = Course(self.fused, filled_up).run(), Course(self.fused).run()
        shares = []
        for (budget, begin), (ours, optimizer) in zip(kinds, found, strict=True):
            with self.subTest(budget=budget, begin=begin):
                self.assert_vector_rule(theirs_filled_up, theirs, ours)
                if early := optimizer._penstock.early:
                    self.assertGreater(early.published, 25)
                    self.assertGreater(early.redone, 0)
                resting = re.search(r"resting state +([\d.]+) MiB", optimizer._penstock.store.description())
                shares.append(float(resting[1]) * (1 << 20) / (8 * sum(Course.SIZES)) if resting else 0)
        self.assertEqual(shares[:2], [0, 0])
        self.assertTrue(0.3 < shares[2] == shares[3] < 0.7, shares)
        self.assertGreaterEqual(min(shares[4:]), 0.99)

    def test_a_part_in_host_memory_that_is_durable_seldom(self):
        torch.manual_seed(SEED)
        start = [torch.randn(300_000) for _ in range(4)]
        for durability in (2, "exit"):
            params = [nn.Parameter(value.clone()) for value in start]
            optimizer = self.tiered(params, lr=1e-2, budget="host=34MiB", durability=durability)
            for _ in range(3):
                for p in params:
                    p.grad = torch.full_like(p, 1e-3)
                optimizer.step()
            self.assertIn("resting state", optimizer._penstock.store.description())

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
    os._exit(0)  # a thread of gloo's may let go of a Python object while the interpreter ends: PyTorch 2.13 aborts then


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


if __name__ == "__main__":
    unittest.main(verbosity=2)
