"""Small runs of `penstock train`, with a store and a folder of their own: for the tests that start them.

The first argument of a test is the command, PENSTOCK.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from machine_support import machine_profile

PENSTOCK = Path(sys.argv.pop(1)).resolve()
USAGE, ENVIRONMENT, CORRUPT = 2, 4, 5
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
                "penstock": {"stores": [self.path("store")], "run": self.path("run"), "host_budget": "1GiB",
                             "machine": machine_profile(PENSTOCK)}}
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
