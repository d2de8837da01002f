#!/usr/bin/env python3
"""How several ranks end: killed, stopped, interrupted or refused, each says so and leaves nothing behind.

Usage: ranks_ends_test.py PENSTOCK [CLASS].
"""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from ranks_support import (DOES_NOT_FIT, ENVIRON, ENVIRONMENT, INTERRUPTED, PENSTOCK, TORCHRUN, USAGE, RanksCase, processes_of,
                           rank_of)


def state_of(process):
    """As the kernel has it: R, S, T and so on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


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

    def test_no_rank_outlives_a_killed_torchrun(self):
        if not TORCHRUN.exists():
            self.skipTest("torchrun is not installed: `tools/setup`")
        config = self.config("agent", max_steps=100000)
        agent = subprocess.Popen([TORCHRUN, "--standalone", "--no-python", "--nproc-per-node", "2", PENSTOCK, "train", config],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRON)
        self.addCleanup(agent.kill)
        self.wait_for_steps(agent, "agent", 2)
        agent.kill()
        agent.communicate()
        self.expect_nothing_left(config)
        self.weights("agent")  # of stores that are at one step

    def test_what_stops_the_job_in_a_terminal_stops_all_ranks_until_it_is_continued(self):
        config = self.config("paused", max_steps=100000)
        run = self.start(config)
        self.wait_for_steps(run, "paused", 2)
        everyone = processes_of(config)
        self.assertEqual(len(everyone), 3)
        run.send_signal(signal.SIGTSTP)
        self.wait_until(lambda: all(state_of(process) == "T" for process in everyone))
        steps = len(self.log("paused"))
        time.sleep(1)
        self.assertEqual(len(self.log("paused")), steps)
        run.send_signal(signal.SIGCONT)
        self.wait_for_steps(run, "paused", steps + 2)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(timeout=120), INTERRUPTED)
        self.expect_nothing_left(config)

    def test_a_rank_that_was_stopped_before_all_have_met_is_named(self):
        config = self.config("early_stop")
        run = self.start(config)
        self.wait_until(lambda: 1 in map(rank_of, processes_of(config)))
        os.kill(next(process for process in processes_of(config) if rank_of(process) == 1), signal.SIGSTOP)
        said = run.communicate(timeout=60)[1]
        self.assertEqual(run.returncode, ENVIRONMENT, said)
        self.assertRegex(said, "(?m)^penstock: rank 1 was stopped by a signal, and did not go on for 20 s$")
        self.expect_nothing_left(config)

    def test_who_is_killed_at_the_start_is_named_and_not_whom_the_launcher_ended_for_it(self):
        config = self.config("early")
        run = self.start(config, ranks=3)
        while not (victim := [process for process in processes_of(config) if rank_of(process) == 2]):
            self.assertIsNone(run.poll())
        os.kill(victim[0], signal.SIGKILL)
        said = run.communicate(timeout=120)[1]
        self.assertEqual(run.returncode, ENVIRONMENT, said)
        self.assertRegex(said, "(?m)^penstock: rank 2 (was killed by signal 9|died)")
        self.expect_nothing_left(config)

    def test_an_interrupt_at_the_start_is_no_failure_of_a_rank(self):
        config = self.config("asked_early")
        run = self.start(config, ranks=3)
        while not [process for process in processes_of(config) if rank_of(process) == 2]:
            self.assertIsNone(run.poll())
        run.send_signal(signal.SIGTERM)
        said = run.communicate(timeout=120)[1]
        self.assertEqual(run.returncode, INTERRUPTED, said)
        self.expect_nothing_left(config)

    def test_a_rank_that_waits_for_others_says_so_and_ends_when_asked(self):
        alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(os.getpid() % 50000 + 1024)}
        run = subprocess.Popen([PENSTOCK, "train", self.config("alone")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**ENVIRON, **alone})
        self.addCleanup(run.kill)
        for line in run.stderr:
            if f"rank 0 of 2 waits for the others at 127.0.0.1:{alone['MASTER_PORT']}" in line:
                break
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=20)[1]
        self.assertEqual(run.returncode, INTERRUPTED, said)
        self.assertIn("while rank 0 waited for the others", said)

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
                              ({"penstock": {"space": "single"}}, "one slot"), ({"penstock": {"hangs_after_s": 0}}, "hangs_after_s")):
            refused(said, "train", self.config("refused", **changes), "--ranks", 2)
            self.assertFalse((self.folder / "refused.store").exists(), said)

    def test_where_one_ranks_store_is_missing_none_is_made(self):
        for missing in (0, 1):
            name = f"lost{missing}"
            self.json_of("train", self.config(name, max_steps=1), "--ranks", 2)
            (self.folder / f"{name}.store" / f"rank{missing}.tiles").unlink()
            said = self.run_command("train", self.config(name), "--ranks", 2, code=USAGE).stderr
            self.assertRegex(said, f"no store for rank {missing}, although rank {1 - missing} has one\ntry: give each rank the folders")
            self.assertFalse((self.folder / f"{name}.store" / f"rank{missing}.tiles").exists())

    def test_two_runs_that_make_the_same_store_leave_a_whole_one_or_none(self):
        config = self.config("twice")
        runs = [self.start(config) for _ in range(2)]
        for run in runs:
            run.communicate(timeout=120)
        self.json_of("train", config, "--ranks", 2)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("twice.store"))["step"], 4)

    def test_what_a_kill_leaves_half_made_the_same_command_makes_anew(self):
        self.json_of("train", self.config("whole"), "--ranks", 2)
        config = self.config("made")
        store = self.folder / "made.store"
        half_made = 0
        for delay in range(0, 16, 2):
            run = self.start(config)
            while run.poll() is None and not (store / "rank0.tiles").exists():
                time.sleep(0.001)
            time.sleep(delay / 1000)
            run.kill()
            run.communicate(timeout=120)
            self.expect_nothing_left(config)
            if self.log("made"):
                break
            half_made += subprocess.run([PENSTOCK, "checkpoint", "ls", store], capture_output=True, check=False).returncode != 0
        self.assertGreater(half_made, 0)
        self.json_of("train", config, "--ranks", 2)
        self.assertEqual(self.weights("made", "fp32"), self.weights("whole", "fp32"))

    def test_stores_that_have_changed_places_are_named(self):
        self.json_of("train", self.config("swapped", max_steps=1), "--ranks", 2)
        store = self.folder / "swapped.store"
        (store / "rank0.tiles").rename(store / "between")
        (store / "rank1.tiles").rename(store / "rank0.tiles")
        (store / "between").rename(store / "rank1.tiles")
        for verb in ("ls", "scrub"):
            said = self.run_command("checkpoint", verb, store, code=USAGE).stderr
            self.assertRegex(said, "rank0.tiles: is the store of rank 1\ntry: give it its name again: rank1.tiles")

    def test_a_file_of_a_rank_beyond_the_last_is_no_part_of_the_run(self):
        self.json_of("train", self.config("stray", max_steps=1), "--ranks", 2)
        store = self.folder / "stray.store"
        shutil.copy(store / "rank1.tiles", store / "rank2.tiles")
        self.assertEqual(self.json_of("checkpoint", "ls", store)["ranks"], 2)

    def test_stores_of_two_runs_are_not_read_as_one(self):
        for name, seed in (("first", 3), ("second", 4)):
            self.json_of("train", self.config(name, max_steps=1, seed=seed), "--ranks", 2)
        shutil.copy(self.folder / "second.store" / "rank1.tiles", self.folder / "first.store")
        store = self.path("first.store")
        for verb in (("export", store, self.path("out")), ("ls", store), ("scrub", store), ("snapshot", store)):
            done = self.run_command("checkpoint", *verb, code=USAGE)
            self.assertRegex(done.stderr, "store of rank 1: belongs to run [0-9a-f]+, rank 0's to [0-9a-f]+\ntry: the folders of one run")
        self.assertFalse((self.folder / "out").exists())

    def test_ranks_that_read_other_data_of_the_same_length_are_refused(self):
        text = (self.folder / "text.txt").read_text()
        (self.folder / "other.txt").write_text(text.replace("Fruit", "Flute"))
        place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid() % 50000 + 1025)}
        ranks = []
        for rank, data in enumerate(("text.txt", "other.txt")):
            config = self.config(f"reads_{data}", data=self.path(data), penstock={"stores": [self.path("data.store")]})
            ranks.append(subprocess.Popen([PENSTOCK, "train", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                          env={**ENVIRON, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
            self.addCleanup(ranks[-1].kill)
        for rank in ranks:
            said = rank.communicate(timeout=120)[1]
            self.assertEqual(rank.returncode, USAGE, said)
            self.assertIn("rank 1: what it trains, by config, model and data, differs from that of rank 0", said)

    def test_what_a_rank_says_to_do_is_said_for_it(self):
        self.json_of("train", self.config("made", max_steps=1), "--ranks", 2)
        store = self.folder / "made.store"
        (store / "rank0.tiles").unlink()
        done = self.run_command("train", self.config("made", max_steps=1), "--ranks", 2, code=USAGE)
        self.assertRegex(done.stderr, "(?m)^try: .*--force")


if __name__ == "__main__":
    unittest.main(verbosity=2)
