#!/usr/bin/env python3
"""`penstock train` and its files, as a user runs it: configs, resuming, Hugging Face folders.

Usage: train_test.py PENSTOCK [CLASS].
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PENSTOCK = Path(sys.argv.pop(1)).resolve()
USAGE = 2
TINY = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
        "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
TEXT = "Of Mans First Disobedience, and the Fruit Of that Forbidden Tree, whose mortal tast Brought Death into the World. "


class TrainCase(unittest.TestCase):
    def setUp(self):
        # Beside the build: /tmp may be a tmpfs, where no store can be.
        self.folder = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        self.addCleanup(shutil.rmtree, self.folder, True)
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        (self.folder / "text.txt").write_text(TEXT * 40)

    def path(self, name):
        return str(self.folder / name)

    def config(self, **changes):
        """A small run; a section in `changes` is merged with what is here."""
        file = {"model": self.path("tiny.json"), "data": self.path("text.txt"), "sequence_length": 16, "max_steps": 4,
                "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "seed": 3,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
                "penstock": {"stores": [self.path("store")], "run": self.path("run"), "host_budget": "1GiB"}}
        for key, value in changes.items():
            if isinstance(value, dict) and key in file:
                file[key] = {**file[key], **value}
            else:
                file[key] = value
        path = self.folder / "config.json"
        path.write_text("// What this run does.\n" + json.dumps(file))
        return str(path)

    def run_command(self, *arguments, code=0):
        # One thread: a product waits for its slowest, and tests run beside one another.
        done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done

    def json_of(self, *arguments, code=0):
        return json.loads(self.run_command(*arguments, "--json", code=code).stdout)

    def log(self, run="run"):
        return [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().splitlines()]


class Configs(TrainCase):
    def test_check_says_what_becomes_of_every_key_and_ends_with_2_where_one_cannot_be_followed(self):
        good = self.json_of("config", "check", self.config(zero_optimization={"stage": 3}))
        verdicts = {key["key"]: key["verdict"] for key in good["keys"]}
        self.assertEqual(verdicts["max_steps"], "honoured")
        self.assertEqual(verdicts["zero_optimization.stage"], "no effect")
        self.assertEqual(good["config"]["optimizer"]["params"]["lr"], 1e-2)
        bad = self.json_of("config", "check", self.config(gradient_cliping=1, amp={"enabled": True}), code=USAGE)
        verdicts = {key["key"]: key for key in bad["keys"]}
        self.assertEqual(verdicts["gradient_cliping"]["nearest"], "gradient_clipping")
        self.assertEqual(verdicts["amp.enabled"]["verdict"], "refused")
        self.assertIn("bf16.enabled", verdicts["amp.enabled"]["note"])
        # What no key is wrong in alone.
        bad = self.json_of("config", "check", self.config(train_batch_size=7), code=USAGE)
        self.assertIn("train_batch_size", bad["error"]["message"])
        self.run_command("config", "check", self.path("absent.json"), code=USAGE)

    def test_every_known_key_is_listed(self):
        keys = {key["key"] for key in self.json_of("config", "keys")["keys"]}
        self.assertIn("zero_optimization.offload_optimizer.nvme_path", keys)
        page = self.run_command("config", "keys", "--help").stdout
        for key in keys:
            self.assertIn(key, page)

    def test_a_run_follows_the_file_and_flags_change_it(self):
        config = self.config(scheduler={"type": "linear", "params": {"warmup_steps": 2, "end_ratio": 0.5}})
        answer = self.json_of("train", config, "--steps", 3, "--lr", "0.02")
        self.assertEqual(answer["steps"], 3)
        self.assertEqual(answer["config"]["optimizer"]["params"]["lr"], 0.02)
        self.assertEqual(json.loads((self.folder / "run" / "config.json").read_text()), answer["config"])
        log = self.log()
        self.assertEqual([step["lr"] for step in log], [0.01, 0.02, 0.01])
        self.assertEqual([step["step"] for step in log], [1, 2, 3])

    def test_another_run_on_the_store_asks_for_nothing_and_says_what_it_changes(self):
        self.json_of("train", self.config())
        (self.folder / "tiny.json").unlink()
        done = self.run_command("train", "--store", self.path("store"), "--steps", 6, "--json")
        self.assertEqual(json.loads(done.stdout)["steps"], 6)
        self.assertIn("changed: max_steps: 4, now 6", done.stderr)
        self.assertIn("resuming after step 4", done.stderr)
        # The numbers are those of a run that was not stopped.
        stopped = [step["loss"] for step in self.log()]
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        whole = self.config(max_steps=6, penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        self.json_of("train", whole)
        self.assertEqual(stopped, [step["loss"] for step in self.log("run2")])
        # What cannot change midway is refused.
        done = self.run_command("train", "--store", self.path("store"), "--seq", 8, "--steps", 7, code=USAGE)
        self.assertIn("sequence_length 8", done.stderr)

    def test_a_dry_run_says_what_would_be_done_and_leaves_nothing(self):
        answer = self.json_of("train", self.config(), "--dry-run")
        self.assertTrue(answer["dry_run"])
        self.assertGreater(answer["bytes_per_parameter"]["written"], 0)
        self.assertTrue(any(line["line"] == "program" for line in answer["budget"]))
        self.assertFalse((self.folder / "store").exists())
        self.assertFalse((self.folder / "run").exists())

    def test_refuses_before_anything_is_made(self):
        for changes, said in (({"optimizer": {"type": "Lamb"}}, "Lamb"), ({"model": "/no/such/model"}, "ENOENT"),
                              ({"parameters": [{"pattern": "lora", "frozen": True}]}, "lora"),
                              ({"penstock": {"device_budget": "1GiB"}}, "device_budget"),
                              ({"penstock": {"host_budget": "much"}}, "host_budget"),
                              ({"penstock": {"durability": "never"}}, "durability"),
                              ({"gradient_accumulation_steps": 70000}, "65536")):
            done = self.run_command("train", self.config(**changes), "--store", self.path("refused"), code=USAGE)
            self.assertIn(said, done.stderr)
            self.assertFalse((self.folder / "refused").exists(), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
