"""Small runs in several ranks, with stores and a folder of their own: for the tests that start them.

The first argument of a test is the command, PENSTOCK.
"""
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from machine_support import machine_profile
from train_support import PENSTOCK, TINY as TRAINED_TINY, USAGE, TrainCase  # noqa: F401, for those that import this

TORCHRUN = PENSTOCK.parents[2] / ".venv/bin/torchrun"
README = Path(__file__).resolve().parents[2] / "README.md"
DOES_NOT_FIT, ENVIRONMENT, CORRUPT, DIFFERS, INTERRUPTED = 3, 4, 5, 6, 130
TINY = {**TRAINED_TINY, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
# One thread: a product waits for its slowest, and tests run beside one another.
ENVIRON = {**{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE") and not name.startswith("SLURM_")}, "OMP_NUM_THREADS": "1"}


def processes_of(word):
    """Those whose command line has it, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if word in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def rank_of(process):
    for variable in (Path("/proc") / str(process) / "environ").read_bytes().decode(errors="replace").split("\0"):
        if variable.startswith("RANK="):
            return int(variable[5:])
    return None


class RanksCase(TrainCase):
    def setUp(self):
        super().setUp()
        self.machine = machine_profile(PENSTOCK)
        (self.folder / "tiny.json").write_text(json.dumps(TINY))

    def config(self, name="run", **changes):
        """A small run with a store and a folder of its own; a section in `changes` is merged with what is here."""
        file = {"model": self.path("tiny.json"), "data": self.path("text.txt"), "sequence_length": 16, "max_steps": 4,
                "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "seed": 3, "held_out_share": 0.1,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
                "penstock": {"stores": [self.path(name + ".store")], "run": self.path(name), "host_budget": "2GiB",
                             "durability": "step",  # else by what this machine measures
                             "machine": self.machine}}
        for key, value in changes.items():
            file[key] = {**file[key], **value} if isinstance(value, dict) and key in file else value
        path = self.folder / (name + ".json")
        path.write_text(json.dumps(file))
        return str(path)

    def run_command(self, *arguments, code=0, environ=None):
        done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
                              env={**ENVIRON, **(environ or {})})
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done

    def log(self, name="run"):
        path = self.folder / name / "log.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def weights(self, name="run", dtype="auto", *more):
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        self.run_command("checkpoint", "export", self.path(name + ".store"), out, "--dtype", dtype, *more)
        return (out / "model.safetensors").read_bytes()

    def start(self, config, ranks=2):
        run = subprocess.Popen([PENSTOCK, "train", config, "--ranks", str(ranks)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env=ENVIRON)
        self.addCleanup(run.kill)
        return run

    def wait_for_steps(self, run, name, steps):
        while run.poll() is None and len(self.log(name)) < steps:
            time.sleep(0.01)
        if run.poll() is not None:
            self.fail(f"the run ended early: {run.communicate()[1]}")

    def wait_until(self, holds):
        until = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)

    def expect_nothing_left(self, config):
        self.wait_until(lambda: not processes_of(config))  # the launcher has killed and reaped them, or is about to
