#!/usr/bin/env python3
"""Where a run's folder, its store and its data lie, and what becomes of them when it goes on from elsewhere or a disk is
full.

Usage: train_folders_test.py PENSTOCK [CLASS].
"""
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import unittest

from train_support import PENSTOCK, TEXT, TINY, USAGE, TrainCase

DOES_NOT_FIT = 3


class Folders(TrainCase):
    @contextlib.contextmanager
    def full_disk(self):
        """A run's folder on a small drive, and a file that leaves next to no space on it."""
        if os.geteuid() != 0:
            self.skipTest("needs root")
        folder = self.folder / "run"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
        try:
            self.json_of("train", self.config(max_steps=2))  # its config and plan are there
            filler = folder / "filler"
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(512))
            os.truncate(filler, filler.stat().st_size - 12288)  # for its config and plan, and some lines
            yield filler
        finally:
            subprocess.run(["umount", folder], check=True)

    def steps_of_log(self):
        return [entry["step"] for entry in self.log()]

    def test_a_log_that_the_disk_has_no_space_for_is_written_when_it_has(self):
        with self.full_disk() as filler:
            run = subprocess.Popen([PENSTOCK, "train", "--store", self.path("store"), "--steps", "60", "--json"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for line in run.stderr:
                if "log: write" in line:
                    self.assertIn("log.jsonl: ENOSPC (No space left on device); its lines wait in memory", line)
                    filler.unlink()
                    break
            said = run.communicate(timeout=120)
            self.assertEqual(run.returncode, 0, said)
            self.assertEqual(json.loads(said[0])["steps"], 60)
            self.assertEqual(self.steps_of_log(), list(range(1, 61)))

    def test_a_run_whose_log_is_not_all_there_says_so(self):
        with self.full_disk() as filler:
            done = self.run_command("train", "--store", self.path("store"), "--steps", 40, "--json", code=DOES_NOT_FIT)
            self.assertIn("steps are committed, and missing in the log: write", done.stderr)
            self.assertEqual(json.loads(done.stdout)["steps"], 40)
            there = self.steps_of_log()
            self.assertEqual(there, list(range(1, there[-1] + 1)), "whole lines, up to where it was full")
            self.assertLess(there[-1], 40)
            filler.unlink()
            self.json_of("train", "--store", self.path("store"), "--steps", 42)
            self.assertEqual(self.steps_of_log()[-2:], [41, 42])

    def test_the_stores_folder_is_not_the_runs(self):
        for run in ("store", "store/../store/"):
            done = self.run_command("train", self.config(penstock={"run": self.path(run)}), code=USAGE)
            self.assertRegex(done.stderr, "penstock: --run: .*: is the store's folder\ntry: --run .*/run\n")
            self.assertFalse((self.folder / "store").exists())
        self.json_of("train", self.config(penstock={"run": self.path("store/run")}))
        shutil.rmtree(self.folder / "store")
        # A run's folder is made where it is missing, and so a store may be made in it.
        within = {"run": self.path("new"), "stores": [self.path("new/store")]}
        self.json_of("train", self.config(penstock=within))
        self.assertEqual(self.log("new")[-1]["step"], 4)

    def test_a_run_that_goes_on_from_another_folder_says_that_its_log_is_not_there(self):
        (self.folder / "elsewhere").mkdir()
        config = self.config(penstock={"run": "runs/a", "stores": ["store"]})

        def train(*arguments, within="."):
            return subprocess.run([PENSTOCK, "train", *arguments], cwd=self.folder / within, check=True, capture_output=True, text=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"}).stderr

        self.assertNotIn("is new here", train(config))
        self.assertNotIn("is new here", train("--store", "store", "--steps", "5"))
        self.assertIn("run: runs/a: is new here, and gets the log from step 6 on; that of the steps before is not here",
                      train("--store", "../store", "--steps", "6", within="elsewhere"))
        self.assertNotIn("is new here", train("--store", "../store", "--steps", "7", "--run", "other", within="elsewhere"))
        self.assertEqual([entry["step"] for entry in self.log("runs/a")], [1, 2, 3, 4, 5])
        self.assertEqual([entry["step"] for entry in self.log("elsewhere/runs/a")], [6])

    def test_advice_holds_for_names_with_spaces(self):
        store = self.folder / "with space" / "it's a store"
        done = self.run_command("train", self.config(penstock={"stores": [str(store)]}), code=USAGE)
        advice = done.stderr.splitlines()[-1].removeprefix("try: ")
        self.assertEqual(shlex.split(advice), ["mkdir", "-p", str(store.parent)])
        subprocess.run(advice, shell=True, check=True)
        self.json_of("train", self.config(penstock={"stores": [str(store)]}))

    def test_text_that_a_model_with_a_tokenizer_learns_byte_by_byte_is_told_of(self):
        model, text, other = self.path("model"), self.path("text.txt"), self.path("other.txt")
        self.json_of("train", self.config(max_steps=1))
        self.json_of("checkpoint", "export", self.path("store"), model)
        usual = ("train", "--model", model, "--budget", "host=1GiB", "--seq", 16)
        before = self.run_command(*usual, "--store", self.path("before"), "--steps", 1, "--data", text)
        self.assertNotIn("byte by byte", before.stderr)
        (self.folder / "model" / "tokenizer.json").write_text("{}")
        (self.folder / "other.txt").write_text(TEXT * 30)
        for store, data in (("new", text), ("before", other)):
            done = self.run_command(*usual, "--store", self.path(store), "--steps", 2, "--data", data)
            self.assertIn(f"data: {data} is learnt byte by byte, although the model in {model} reads tokens of its tokenizer.json; "
                          f"`penstock data {data} --model {model} --out DIR` makes such tokens of it", done.stderr)
        again = self.run_command("train", "--store", self.path("before"), "--steps", 3)
        self.assertNotIn("byte by byte", again.stderr, "it has learnt from it before")

    def test_the_time_of_a_step_is_the_steps_alone(self):
        ran = self.json_of("train", self.config(max_steps=8, held_out_share=0.5, eval_every=1))
        steps = [entry["step_s"] for entry in self.log()]
        evaluations = [entry["eval_s"] for entry in self.log()]
        self.assertLess(ran["step_s"], (sum(steps) + sum(evaluations)) / 8)

    def test_a_models_folder_is_told_from_a_config(self):
        model = self.folder / "a model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(TINY))
        done = self.run_command("train", model, "--store", self.path("store"), code=USAGE)
        self.assertIn(f"CONFIG: {model}: is a folder, with a config.json of its own\ntry: `penstock train --model '{model}'` for a model", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
