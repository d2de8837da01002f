#!/usr/bin/env python3
"""A training run that is killed with -9 again and again ends with the bits of one that was not: losses, weights, masters.

usage: train_kills.py PENSTOCK [--steps 200] [--every 3] [--model CONFIG.JSON] [--folder FOLDER] [--seed N] [--rule RULE] [--ranks N]

A run is killed when it has logged up to four steps and has lived for about --every seconds, by a random time.
With --rule skip or rollback the text has lines of noise, whose batches a rule about the loss leaves out; what was left
out must be the same, too.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_layer": 3, "n_head": 4,
         "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
WORDS, NOISE_EVERY = "the quick brown fox. ", 700


def noisy_text(draw):
    text = bytearray((WORDS * 4000).encode())
    for at in range(NOISE_EVERY, len(text) - 64, NOISE_EVERY):
        text[at:at + 64] = draw.randbytes(64)
    return text


class Run:
    def __init__(self, options, folder, name, machine):
        self.penstock, self.folder = options.penstock, folder / name
        self.in_ranks = ["--ranks", options.ranks] if options.ranks > 1 else []
        self.folder.mkdir()
        model = options.model or folder / "model.json"
        if not options.model:
            model.write_text(json.dumps(SMALL))
        self.config = self.folder / "config.json"
        more = {}
        if options.rule:
            text = self.folder / "noisy.txt"
            text.write_bytes(noisy_text(random.Random(options.seed)))
            more = {"data": str(text), "keep_every": 3, "loss_rules": {
                "spike": options.rule, "window": 4, "at_most": 100,
                "deviations": 0.5 if options.steps < 20 else 5}}  # a short run is to be killed around what it does, too
        self.config.write_text(json.dumps({
            "model": str(model), "max_steps": options.steps, "sequence_length": 32, "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": max(1, 2 // options.ranks), "seed": options.seed, "held_out_share": 0.1, "eval_every": 5, "eval_batches": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}, "gradient_clipping": 1.0,
            "penstock": {"stores": [str(self.folder / "store")], "run": str(self.folder / "run"), "host_budget": "1GiB",
                         "weights": "nvme", "host_state_share": 0, "activations": "offload", "machine": str(machine)}, **more}))

    def command(self, *words):
        return [self.penstock, *map(str, words)]

    def start(self):
        return subprocess.Popen(self.command("train", self.config, *self.in_ranks), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def lines(self):
        """Whole ones: a killed run may have left part of one."""
        log = self.folder / "run" / "log.jsonl"
        return log.read_text().splitlines(keepends=True) if log.exists() else []

    def steps(self):
        for line in self.lines():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def losses(self):
        """By step; a step that was lost with its process is there again, and must be the same: of the same batch, that
        is, since a rollback takes another for the step."""
        losses, taken = {}, {}
        for step in self.steps():
            before = taken.setdefault((step["step"], step["batch"]), step["loss"])
            if before != step["loss"]:
                sys.exit(f"step {step['step']}: loss {before}, and {step['loss']} when it was taken again")
            losses[step["step"]] = (step["batch"], step["loss"])
        return losses

    def left_out(self):
        return sorted({event["batch"] for step in self.steps() for event in step.get("loss_events", [])})

    def weights(self, dtype):
        out = self.folder / f"out-{dtype or 'own'}"
        subprocess.run(self.command("checkpoint", "export", self.folder / "store", out, *(["--dtype", dtype] if dtype else [])),
                       check=True, stdout=subprocess.DEVNULL)
        return (out / "model.safetensors").read_bytes()


def run_with_kills(run, every_s, draw):
    kills = 0
    while True:
        began, seen = time.monotonic(), len(run.lines())
        lives_s = every_s * draw.uniform(0.5, 1.5)
        takes = draw.randint(1, 4)  # steps; after three the first is durable, so that the run comes to its end
        process = run.start()
        while process.poll() is None and (len(run.lines()) < seen + takes or time.monotonic() - began < lives_s):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))  # into some step, or its commit
        ended = process.poll()
        process.kill()
        said = process.communicate()[1]
        if ended is not None:
            if ended != 0:
                sys.exit(f"after {kills} kills the run ended with {ended}: {said}")
            return kills
        kills += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=float, default=3, help="seconds")
    parser.add_argument("--model")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rule", choices=("skip", "rollback"))
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a product waits for its slowest thread
    folder = Path(tempfile.mkdtemp(prefix="train-kills-", dir=Path(options.folder).resolve()))
    try:
        machine = folder / "machine.json"
        subprocess.run([options.penstock, "nvme", "probe", folder, "--duration", "1s", "--size", "64MiB", "--profile", machine],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        whole, killed = Run(options, folder, "whole", machine), Run(options, folder, "killed", machine)
        if whole.start().wait() != 0:
            sys.exit("the run that is left alone did not end well")
        kills = run_with_kills(killed, options.every, random.Random(options.seed))
        if whole.losses() != killed.losses() or len(whole.losses()) != options.steps:
            sys.exit(f"seed {options.seed}: losses differ after {kills} kills")
        if options.rule and not whole.left_out():
            sys.exit(f"seed {options.seed}: no batch was left out")
        for dtype in (None, "fp32"):
            if whole.weights(dtype) != killed.weights(dtype):
                sys.exit(f"seed {options.seed}: {dtype or 'weights'} differ after {kills} kills")
        if options.rule:
            print(f"{options.rule}: left out because of batches {whole.left_out()}")
        print(f"{options.steps} steps, {kills} kills: every loss, weight and master is that of the run that was left alone")
        sys.exit(0 if kills > 0 else "nothing was killed: --steps is too small for --every")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
