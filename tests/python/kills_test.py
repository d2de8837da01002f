#!/usr/bin/env python3
"""Processes that end in the middle: killed, by exit or by an exception, and what the store then has.

Usage: kills_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import copy
import os
import random
import subprocess
import sys
import time
import unittest
from pathlib import Path

from optimizer_support import SEED, WORKER, X, Case, Child, loop, mse, net, torch, words_different


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
        for durability in ("exit", 4):
            self.refused('begin="backward" takes updates back, which needs durability="step" or a clip_norm',
                         lambda durability=durability: self.tiered(net().parameters(), begin="backward", durability=durability))
            self.tiered(net().parameters(), begin="backward", durability=durability, clip_norm=1.0)
        self.refused("durability=0: 'step', 'exit' or a number of steps expected",
                     lambda: self.tiered(net().parameters(), durability=0))


class Kills(Case):
    def test_goes_on_at_the_committed_step(self):
        """PENSTOCK_KILLS sets how often it is killed: in some step of the next four, at some time."""
        kills, draw = int(os.environ.get("PENSTOCK_KILLS", "5")), random.Random(SEED)
        steps = 20 + 4 * kills
        theirs, _ = loop(self.fused, steps=steps)
        result = self.folder / "weights"
        for begin in ("step", "backward"):
            def work(tell, begin=begin):
                optimizer = self.tiered((model := net()).parameters(), lr=1e-2, store=self.folder / begin, begin=begin)
                for step in range(optimizer.resume(), steps):
                    tell(step)  # so many are committed
                    mse(model, X[step % 64]).backward()
                    optimizer.step(), optimizer.zero_grad()
                torch.save(list(model.parameters()), result)
                tell("done")

            reached = 0
            for patience in [*(draw.randint(1, 4) for _ in range(kills)), steps + 1]:
                with Child(work) as child:
                    for lines, line in enumerate(child.told, 1):
                        if line == "done\n":
                            break
                        self.assertGreaterEqual(int(line), reached, f"seed {SEED}: a committed step was lost")
                        reached = int(line)
                        if lines == patience:
                            time.sleep(draw.uniform(0, 0.03))
                            break
            self.assertEqual(line, "done\n", f"begin {begin}, seed {SEED}")
            ours = torch.load(result, weights_only=True)
            self.assertEqual(words_different(theirs.parameters(), ours), 0, f"begin {begin}, seed {SEED}")
            result.unlink()

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
