#!/usr/bin/env python3
"""Snapshots of a run: their space, that each is the run stopped there, that training goes on from one as if it had never
gone further, and kill -9 at any time of snapshot, rollback and rm.

usage: train_snapshots.py PENSTOCK [--steps 200] [--every 10] [--kills 40] [--model CONFIG.JSON] [--folder FOLDER] [--seed N]

Kills are spread evenly, each at a random time of its share, over the time that the verb takes where it is left alone.
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

SMALL = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 8,
         "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
SPACE_OFF_AT_MOST = 0.02


class Store:
    def __init__(self, options, folder, name, machine, **more):
        self.penstock, self.seed = options.penstock, options.seed
        self.folder, self.exported = folder / name, folder / f"{name}-out"
        self.config = folder / f"{name}.json"
        model = options.model or folder / "model.json"
        self.config.write_text(json.dumps({
            "model": str(model), "max_steps": options.steps, "sequence_length": 32, "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2, "seed": options.seed, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "penstock": {"stores": [str(self.folder)], "host_budget": "1GiB", "weights": "nvme", "host_state_share": 0,
                         "machine": str(machine)}, **more}))

    def ask(self, *words):
        done = subprocess.run([self.penstock, *map(str, words), "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"seed {self.seed}: {words}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def train(self, until):
        return self.ask("train", self.config, "--steps", until)

    def ls(self):
        return self.ask("checkpoint", "ls", self.folder)

    def kept(self):
        return [one["step"] for one in self.ls()["snapshots"]]

    def roll_back(self, step):
        self.ask("checkpoint", "rollback", self.folder, "--step", step)

    def masters(self):
        shutil.rmtree(self.exported, ignore_errors=True)
        self.ask("checkpoint", "export", self.folder, self.exported, "--dtype", "fp32")
        return (self.exported / "model.safetensors").read_bytes()


def expect(what, options, good):
    if not good:
        sys.exit(f"seed {options.seed}: {what}")


def killed(store, words, after_s):
    """Whether the verb was killed before it ended."""
    process = subprocess.Popen([store.penstock, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    ended = process.poll() is not None
    process.kill()
    process.wait()
    return not ended


def kills_of(store, options, draw, verb, words, before, check):
    """Kills the verb again and again; before() makes what it begins with, check() looks at what is left."""
    before()
    begin = time.monotonic()
    store.ask(*words)
    takes_s = time.monotonic() - begin
    count = 0
    for number in range(options.kills):
        before()
        count += killed(store, words, takes_s * (number + draw.random()) / options.kills)
        check()
        store.ask("checkpoint", "scrub", store.folder)
    print(f"{verb}: {takes_s * 1e3:.0f} ms, killed {count} times of {options.kills}: nothing is lost")
    return count


def check_kills(store, options, steps, at):
    """`at`: the masters of each step that is kept."""
    draw = random.Random(options.seed)
    first, last = steps[0], steps[-1]
    # Rollback: the one step or the other, and the verb given again comes to its end.
    def check_rolled():
        step = store.ls()["step"]
        expect(f"after a killed rollback the store is at step {step}", options, step in (first, last))
        expect("a killed rollback left other bits", options, store.masters() == at[step])
        expect("a killed rollback lost a snapshot", options, store.kept() == steps)
    kills = kills_of(store, options, draw, "rollback", ["checkpoint", "rollback", store.folder, "--step", first],
                     lambda: store.roll_back(last), check_rolled)
    # Snapshot: there whole, or not at all.
    store.roll_back(last)
    words = ["checkpoint", "snapshot", store.folder]
    def without():
        if last in store.kept():
            store.ask("checkpoint", "rm", store.folder, "--step", last)
    def check_taken():
        if last in store.kept():
            store.roll_back(first)
            store.roll_back(last)
        expect("a killed snapshot left other bits", options, store.masters() == at[last])
        expect("a killed snapshot lost another", options, store.kept()[:len(steps) - 1] == steps[:-1])
    kills += kills_of(store, options, draw, "snapshot", words, without, check_taken)
    store.ask(*words)
    # Removal: the others stay, and what is left half removed is not taken for a snapshot.
    def check_removed():
        if last in store.kept():
            store.roll_back(first)
            store.roll_back(last)
        expect("a killed rm left other bits", options, store.masters() == at[last])
        expect("a killed rm lost another", options, store.kept()[:len(steps) - 1] == steps[:-1])
    kills += kills_of(store, options, draw, "rm", ["checkpoint", "rm", store.folder, "--step", last],
                      lambda: store.ask(*words), check_removed)
    expect("nothing was killed", options, kills > 0 or options.kills == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--kills", type=int, default=40, help="of each verb")
    parser.add_argument("--model")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a product waits for its slowest thread
    folder = Path(tempfile.mkdtemp(prefix="train-snapshots-", dir=Path(options.folder).resolve()))
    try:
        (folder / "model.json").write_text(json.dumps(SMALL))
        machine = folder / "machine.json"
        subprocess.run([options.penstock, "nvme", "probe", folder, "--duration", "1s", "--size", "64MiB", "--profile", machine],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        store = Store(options, folder, "kept", machine, keep_every=options.every)
        other = Store(options, folder, "stopped", machine)
        steps = list(range(options.every, options.steps + 1, options.every))
        # Predicted before anything is made: one of the two slots of each tile; the store's other pages come with it.
        planned = store.ask("train", store.config, "--dry-run")
        slots = sum(line["bytes"] for line in planned["budget"] if (line["tier"], line["line"]) == ("nvme", "slots"))
        store.train(options.steps)
        listed = store.ls()["snapshots"]
        expect(f"kept are {[one['step'] for one in listed]}", options, [one["step"] for one in listed] == steps)
        predicted = len(steps) * slots // 2
        taken = sum(path.stat().st_blocks * 512 for path in store.folder.glob("kept/*/rank0.tiles"))
        print(f"{len(steps)} snapshots take {taken} B, {predicted} B predicted: {taken / predicted:.4f} of it")
        expect("the snapshots take other space than predicted", options, abs(taken / predicted - 1) <= SPACE_OFF_AT_MOST)
        at = {}
        for step in steps:
            other.train(step)
            at[step] = other.masters()
        expect("masters do not change from snapshot to snapshot", options, len(set(at.values())) == len(steps))
        for step in random.Random(options.seed).sample(steps, len(steps)):
            store.roll_back(step)
            expect(f"the snapshot of step {step} is not the run that was stopped there", options, store.masters() == at[step])
        print(f"each of {len(steps)} is the run that was stopped there: every master")
        back = steps[len(steps) // 2 - 1]
        store.roll_back(back)
        store.train(options.steps)
        expect(f"from step {back} on the run is another", options, store.masters() == at[steps[-1]])
        print(f"rolled back to step {back}, the run ends as one that never went wrong: every master")
        check_kills(store, options, steps, at)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
