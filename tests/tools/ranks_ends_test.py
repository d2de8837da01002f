#!/usr/bin/env python3
"""How several ranks end: killed, stopped, interrupted or refused, each says so and leaves nothing behind.

Usage: ranks_ends_test.py PENSTOCK [CLASS].
"""
import os
import re
import signal
import unittest

from ranks_support import DOES_NOT_FIT, ENVIRONMENT, INTERRUPTED, USAGE, RanksCase, processes_of, rank_of


class Ends(RanksCase):
    def test_a_killed_rank_is_named_and_a_restart_ends_with_the_same_bits(self):
        self.json_of("train", self.config("whole", max_steps=30), "--ranks", 2)
        masters = self.weights("whole", "fp32")
        for victim in (1, 0):
            config = self.config(f"killed{victim}", max_steps=30, penstock={"hangs_after_s": 60})
            run = self.start(config)
            self.wait_for_steps(run, f"killed{victim}", 3)
            os.kill(next(process for process in processes_of(config) if rank_of(process) == victim), signal.SIGKILL)
            said = run.communicate(timeout=120)[1]
            self.assertEqual(run.returncode, ENVIRONMENT, said)
            refusals = re.findall("^penstock: .*", said, re.M)
            self.assertEqual(len(refusals), 1, said)
            self.assertRegex(refusals[0], f"^penstock: rank {victim} died in step [0-9]+$")
            self.expect_nothing_left(config)
            self.json_of("train", config, "--ranks", 2)
            losses = {}
            for step in self.log(f"killed{victim}"):
                self.assertEqual(losses.setdefault(step["step"], step["loss"]), step["loss"])
            self.assertEqual([losses[step] for step in sorted(losses)], [step["loss"] for step in self.log("whole")])
            self.assertEqual(self.weights(f"killed{victim}", "fp32"), masters)

    def test_a_stopped_rank_is_named_and_all_end(self):
        for victim in (1, 0):
            config = self.config(f"stopped{victim}", max_steps=100000, penstock={"hangs_after_s": 5})
            run = self.start(config)
            self.wait_for_steps(run, f"stopped{victim}", 2)
            os.kill(next(process for process in processes_of(config) if rank_of(process) == victim), signal.SIGSTOP)
            said = run.communicate(timeout=120)[1]
            self.assertEqual(run.returncode, ENVIRONMENT, said)
            self.assertRegex(said, f"(?m)^penstock: rank {victim} hangs in step [0-9]+: no sign of life for ")
            self.expect_nothing_left(config)

    def test_an_interrupt_commits_the_same_step_of_all(self):
        config = self.config("asked", max_steps=100000)
        run = self.start(config)
        self.wait_for_steps(run, "asked", 3)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=120)[1]
        self.assertEqual(run.returncode, INTERRUPTED, said)
        committed = int(re.search("step ([0-9]+) is committed", said).group(1))
        self.assertEqual(len(self.log("asked")), committed)
        self.expect_nothing_left(config)
        self.weights("asked")  # of stores that are at one step

    def test_no_rank_outlives_a_killed_launcher(self):
        config = self.config("orphans", max_steps=100000)
        run = self.start(config)
        self.wait_for_steps(run, "orphans", 1)
        run.kill()
        run.communicate(timeout=120)
        self.expect_nothing_left(config)

    def test_a_rank_that_cannot_begin_is_named(self):
        config = self.config("small", penstock={"host_budget": "20MiB"})
        said = self.run_command("train", config, "--ranks", 2, code=DOES_NOT_FIT).stderr
        self.assertEqual(len(re.findall("^penstock: ", said, re.M)), 1, said)
        self.expect_nothing_left(config)


class Refusals(RanksCase):
    def test_each_says_what_to_do(self):
        def refused(said, *arguments, environ=None):
            done = self.run_command(*arguments, code=USAGE, environ=environ)
            self.assertIn(said, done.stderr)

        self.json_of("train", self.config("two"), "--ranks", 2)
        refused("made by 2 ranks, 1 is here", "train", self.config("two"))
        refused("made by 2 ranks, 3 are here", "train", self.config("two"), "--ranks", 3)
        (self.folder / "two.store" / "rank1.tiles").unlink()
        refused("no store for rank 1, although rank 0 has one", "train", self.config("two"), "--ranks", 2)
        self.json_of("train", self.config("one"))
        refused("made by 1 rank, 2 are here", "train", self.config("one"), "--ranks", 2)
        refused("at most 64", "train", self.config("many"), "--ranks", 65)
        refused("MASTER_PORT", "train", self.config("env"), environ={"RANK": "0", "WORLD_SIZE": "2"})
        slurm = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
        refused("MASTER_ADDR is not set", "train", self.config("env"), environ=slurm)
        refused("SLURM_NTASKS", "train", self.config("env"), environ={"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"})
        refused("where 1 were started", "train", self.config("env"), "--ranks", 2, environ={"RANK": "0", "WORLD_SIZE": "1"})
        refused("--grid", "verify", self.config("grid"), "--ranks", 2, "--grid")
        for changes, said in (({"zero_optimization": {"stage": 4}}, "0 to 3"), ({"train_batch_size": 6}, "train_batch"),
                              ({"penstock": {"moments": "bf16"}}, "bf16"),
                              ({"penstock": {"space": "single"}}, "one slot"), ({"penstock": {"hangs_after_s": 0}}, "hangs_after_s")):
            refused(said, "train", self.config("refused", **changes), "--ranks", 2)
            self.assertFalse((self.folder / "refused.store").exists(), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
