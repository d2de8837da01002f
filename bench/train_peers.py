"""Training with all state on NVMe against plain PyTorch with everything in memory, and against DeepSpeed, in turns.

compute: GPT-2 124M, 512 tokens x 4 micro-batches: what a byte costs is hidden behind what it computes, so <= 1.05 of
PyTorch's step, keeping activations and recomputing them. drive: 621M, 128 tokens: 26 B a parameter at the drive's mix
are the floor, and <= 1.08 of it.

usage: train_peers.py PENSTOCK FOLDER --case compute|drive [--length TOKENS] [--rounds 3] [--steps 6] [--alone]
       [--deepspeed "COMMAND"] [--json]
       train_peers.py PENSTOCK FOLDER --case compute --quick
To be run with a Python that has torch and transformers. COMMAND: prints a JSON line a step with step_s. A ratio is the
median of the rounds' own, and a round's is that of medians of steps, the first of which does not count.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from array import array
from pathlib import Path

CASES = {"compute": dict(layers=12, width=768, heads=12, vocab=50257, length=512, accumulation=4, memory="6GiB"),
         "drive": dict(layers=12, width=2048, heads=16, vocab=8192, length=128, accumulation=1, memory="3GiB"),
         "quick": dict(layers=2, width=64, heads=2, vocab=257, length=32, accumulation=2, memory="1GiB")}
WAYS = ("keep", "recompute")


def model_of(case):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    shape = GPT2Config(n_layer=case["layers"], n_embd=case["width"], n_head=case["heads"], n_positions=case["length"],
                       vocab_size=case["vocab"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    return GPT2LMHeadModel(shape).to(torch.bfloat16).train()


def train_in_memory(case, way, steps):
    """The worker: the same shapes, bf16, fused AdamW, the norm clipped."""
    import time

    import torch
    torch.set_num_threads(os.cpu_count())
    model = model_of(case)
    if way == "recompute":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, case["vocab"], (1, case["length"]))
    for _ in range(steps):
        began = time.perf_counter()
        for _ in range(case["accumulation"]):
            loss = model(input_ids=tokens, labels=tokens).loss / case["accumulation"]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(json.dumps({"step_s": time.perf_counter() - began}), flush=True)


def median_of(key, lines):
    return statistics.median(json.loads(line)[key] for line in lines[1:])


def median_step_s(lines):
    return median_of("step_s", lines)


def step_lines(said):
    return [line for line in said.splitlines() if line.startswith("{") and "step_s" in line]


ON_THE_DRIVE = {"weights": "nvme", "host_state_share": 0}


class Ours:
    """Runs of `penstock train` with arguments, and keys of the config's section `penstock`."""

    def __init__(self, options, case, arguments=(), placement=None):
        self.options, self.case, self.arguments = options, case, arguments
        self.placement = ON_THE_DRIVE if placement is None else placement
        self.stage = 0
        self.folder = Path(options.folder) / "penstock-train-peers"
        self.folder.mkdir(parents=True)
        draw = random.Random(0)
        count = (case["length"] + 1) * case["accumulation"] * options.steps * 2
        tokens = array("H", (draw.randrange(case["vocab"]) for _ in range(count)))
        (self.folder / "tokens.bin").write_bytes(tokens.tobytes())
        (self.folder / "model.json").write_text(json.dumps({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": case["width"], "n_layer": case["layers"],
            "n_head": case["heads"], "vocab_size": case["vocab"], "n_positions": case["length"], "resid_pdrop": 0,
            "embd_pdrop": 0, "attn_pdrop": 0}))
        probed = [options.penstock, "nvme", "probe", self.folder, "--duration", options.probe, "--profile",
                  self.folder / "machine.json"]
        subprocess.run(probed, check=True, capture_output=True)

    def run(self, way):
        """The medians of its steps and of what was predicted of them, and the answer of the run."""
        for left in ("store", "run"):
            shutil.rmtree(self.folder / left, ignore_errors=True)
        config = self.folder / "config.json"
        config.write_text(json.dumps({
            "model": str(self.folder / "model.json"), "data": str(self.folder / "tokens.bin"), "token_bytes": 2,
            "held_out_share": 0, "sequence_length": self.case["length"], "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self.case["accumulation"], "max_steps": self.options.steps, "seed": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "gradient_clipping": 1.0, "zero_optimization": {"stage": self.stage},
            "penstock": {"stores": [str(self.folder / "store")], "run": str(self.folder / "run"),
                         "host_budget": self.case["memory"], "activations": way,
                         "machine": str(self.folder / "machine.json"), **self.placement}}))
        said = subprocess.run([self.options.penstock, "train", config, "--json", *self.arguments], check=True,
                              capture_output=True, text=True)
        lines = (self.folder / "run" / "log.jsonl").read_text().splitlines()
        return median_step_s(lines), median_of("predicted_s", lines), json.loads(said.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("folder")
    parser.add_argument("--case", choices=CASES, default="compute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--probe", default="5s", help="how long the drive is measured")
    parser.add_argument("--length", type=int, help="tokens of a sample, where not the case's")
    parser.add_argument("--alone", action="store_true", help="without PyTorch: against the prediction and the floor")
    parser.add_argument("--deepspeed", help="a command that trains the same with DeepSpeed")
    parser.add_argument("--quick", action="store_true", help="a small model, one round: whether it works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.case, options.rounds, options.steps, options.probe = "quick", 1, 3, "1s"
    case = {**CASES[options.case], **({"length": options.length} if options.length else {})}
    if options.worker:
        return train_in_memory(case, options.worker, options.steps)
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    peers = {way: [sys.executable, __file__, options.penstock, options.folder, "--case", options.case, "--steps",
                   str(options.steps), "--length", str(case["length"]), "--worker", way] for way in WAYS}
    rows = []
    ours = Ours(options, case)
    try:
        for _ in range(options.rounds):
            for way in WAYS:
                step_s, predicted_s, answer = ours.run(way)
                row = {"way": way, "step_s": step_s, "predicted_s": predicted_s, "floor_s": answer["floor_s"]}
                row["of_prediction"] = row["step_s"] / row["predicted_s"]
                if not options.alone:
                    peer = subprocess.run(peers[way], check=True, capture_output=True, text=True).stdout
                    row["in_memory_s"] = median_step_s(step_lines(peer))
                    row["of_memory"] = row["step_s"] / row["in_memory_s"]
                if answer["floor_s"]:
                    row["of_floor"] = row["step_s"] / answer["floor_s"]
                if options.deepspeed:
                    said = subprocess.run(options.deepspeed, shell=True, check=True, capture_output=True, text=True).stdout
                    row["deepspeed_s"] = median_step_s(step_lines(said))
                    row["of_deepspeed_speed"] = row["deepspeed_s"] / row["step_s"]
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(ours.folder, ignore_errors=True)
    if options.json:
        print(json.dumps(rows))
        return
    for way in WAYS:
        mine = [row for row in rows if row["way"] == way]
        words = [f"{way}: {statistics.median(row['step_s'] for row in mine):.2f} s a step"]
        for name, said in (("of_memory", "of PyTorch in memory"), ("of_prediction", "of the prediction"),
                           ("of_floor", "of the drive's floor"), ("of_deepspeed_speed", "times DeepSpeed's speed")):
            values = [row[name] for row in mine if name in row]
            if values:
                words.append(f"{statistics.median(values):.3f} {said} [{min(values):.3f}-{max(values):.3f}]")
        print("; ".join(words))


if __name__ == "__main__":
    main()
