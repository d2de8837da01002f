#!/usr/bin/env python3
"""What does the optimizer of somebody else's loop cost when its state is on a drive? In turns, each run in a process of
its own:

  backward   GPT-2 124M, 512 tokens x 4: a step of torch.optim.AdamW(fused=True) with all in memory against one of
             penstock.AdamW(begin="backward"). Computing takes longer than the drive, so <= 1.05 of torch's.
  step       the same model, begin="step": what the optimizer's step takes against the time in which the drive alone
             moves the same bytes, so <= 1.05 of that floor: 24 B a parameter at the drive's rate for both directions.
  trainer    both questions once more, with the same model in Hugging Face Trainer, whose loop accumulates and makes the
             steps: of_torch for begin="backward", of_floor for begin="step". Trainer's own work is the same for any
             optimizer, so the same bounds hold. max_grad_norm=0: clipping would take the updates back.
  optimizer  the step alone, --params bf16 weights, durable each step and at exit, against --deepspeed COMMAND, which
             prints a JSON line a step with "optimizer_s" (>= 1.6 times its speed, >= 3 with --budget a third of its
             memory and durability at exit), and against bitsandbytes' 8-bit AdamW in memory, where it is installed.

    PENSTOCK_LIBRARY=build/lib/libpenstock.so PENSTOCK_COMMAND=build/bin/penstock PYTHONPATH=runtime/python \\
        .venv/bin/python bench/python_speed.py FOLDER [--case NAME] [--rounds 5] [--steps 6] [--json] [--quick]

FOLDER is on the drive; what is made there is removed. A run's figure is the median of its steps, of which the first does
not count; a ratio is the median of the rounds' own. --json prints a line for each round.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

import penstock

transformers.logging.set_verbosity_error()
SHAPES = {False: dict(n_layer=12, n_embd=768, n_head=12, vocab_size=50257, n_positions=512),
          True: dict(n_layer=2, n_embd=64, n_head=2, vocab_size=512, n_positions=32)}
MICRO_BATCHES = 4
CASES = ("backward", "step", "trainer", "optimizer")


def model_and_tokens(options):
    torch.manual_seed(0)
    shape = SHAPES[options.quick]
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False, bos_token_id=0, eos_token_id=0)).train()
    return model, torch.randint(0, shape["vocab_size"], (1, shape["n_positions"]))


def gpt2(options, make):
    """Yields a step's seconds, of which the optimizer's step took the second number."""
    model, tokens = model_and_tokens(options)
    optimizer = make(model.parameters())
    for _ in range(options.steps):
        began = time.perf_counter()
        for _ in range(MICRO_BATCHES):
            words = model(input_ids=tokens).logits
            loss = torch.nn.functional.cross_entropy(words[0, :-1], tokens[0, 1:])
            (loss / MICRO_BATCHES).backward()
        computed = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        ended = time.perf_counter()
        yield dict(step_s=ended - began, optimizer_s=ended - computed, **moved_bytes(optimizer))


class Watch(transformers.TrainerCallback):
    """Trainer's steps, as gpt2() yields them."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, []

    def on_step_begin(self, *_, **__):
        self.began = time.perf_counter()

    def on_pre_optimizer_step(self, *_, **__):
        self.computed = time.perf_counter()

    def on_step_end(self, *_, **__):
        ended = time.perf_counter()
        self.steps.append(
            dict(step_s=ended - self.began, optimizer_s=ended - self.computed, **moved_bytes(self.optimizer)))


def in_trainer(options, make):
    model, tokens = model_and_tokens(options)
    watch = Watch(make(model.parameters()))
    data = [dict(input_ids=tokens[0], labels=tokens[0])] * (MICRO_BATCHES * options.steps)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, use_cpu=True, max_steps=options.steps, per_device_train_batch_size=1,
            gradient_accumulation_steps=MICRO_BATCHES, max_grad_norm=0, save_strategy="no", logging_strategy="no",
            report_to=[], disable_tqdm=True)
        trainer = transformers.Trainer(model, arguments, train_dataset=data, optimizers=(watch.optimizer, None),
                                       callbacks=[watch])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return watch.steps


def alone(options, make):
    """Parameters as large as a block's, with gradients that stay."""
    each, rest = 1 << (18 if options.quick else 24), int(options.params)
    tensors = []
    while rest > 0:
        tensors.append(torch.nn.Parameter(torch.full((min(each, rest),), 0.5, dtype=torch.bfloat16)))
        tensors[-1].grad = torch.full_like(tensors[-1], 1e-3)
        rest -= each
    optimizer = make(tensors)
    for _ in range(options.steps):
        began = time.perf_counter()
        optimizer.step()
        yield dict(optimizer_s=time.perf_counter() - began, **moved_bytes(optimizer))


def moved_bytes(optimizer):
    """Up to now."""
    if not isinstance(optimizer, penstock.AdamW):
        return dict(moved_bytes=0)
    statistics_now = optimizer.statistics()
    return dict(moved_bytes=statistics_now["read_bytes"] + statistics_now["written_bytes"])


def measured(options, loop, make):
    """The medians of the steps, the first left out, of a run in a child of its own: memory, threads and all are new."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            torch.set_num_threads(os.cpu_count())
            with os.fdopen(writer, "w") as told:
                told.writelines(json.dumps(step) + "\n" for step in loop(options, make))
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        steps = [json.loads(line) for line in told]
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("a run failed")
    found = {name: statistics.median(step[name] for step in steps[1:]) for name in steps[0] if name != "moved_bytes"}
    found["bytes"] = (steps[-1]["moved_bytes"] - steps[0]["moved_bytes"]) / (len(steps) - 1)
    return found


class Bench:
    def __init__(self, options):
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-speed-", dir=options.folder))

    def tiered(self, **more):
        """A store that the run makes anew."""
        def make(params):
            return penstock.AdamW(params, lr=1e-4, store=self.folder / "store", existing="replace", **more)
        return make

    def drive_gbps(self):
        """Of as much reading as writing."""
        duration, size = ("1s", "16MiB") if self.options.quick else ("10s", "2GiB")
        probed = penstock.nvme.probe(self.folder, duration=duration, size=size, profile=self.folder / "profile.json")
        curve = probed["drives"][0]["mix_curve"]
        return min(curve, key=lambda point: abs(point[0] - 0.5))[1]

    def backward(self, loop=gpt2):
        budget = dict(budget=self.options.budget or "host=1GiB")
        torchs = measured(self.options, loop, lambda params: torch.optim.AdamW(params, lr=1e-4, fused=True))
        ours = measured(self.options, loop, self.tiered(begin="backward", accumulation=MICRO_BATCHES, **budget))
        return dict(step_s=ours["step_s"], torch_s=torchs["step_s"], of_torch=ours["step_s"] / torchs["step_s"])

    def step(self, loop=gpt2):
        gbps = self.drive_gbps()
        ours = measured(self.options, loop, self.tiered(budget=self.options.budget or "host=512MiB"))
        floor_s = ours["bytes"] / gbps / 1e9
        return dict(step_s=ours["step_s"], compute_s=ours["step_s"] - ours["optimizer_s"],
                    optimizer_s=ours["optimizer_s"], floor_s=floor_s, of_floor=ours["optimizer_s"] / max(floor_s, 1e-9))

    def trainer(self):
        backward, step = self.backward(in_trainer), self.step(in_trainer)
        return {**backward, "begin_step_s": step.pop("step_s"), **step}

    def optimizer(self):
        options, row = self.options, {}
        budget = options.budget or ("host=64MiB" if options.quick else "host=1.75GiB")
        larger = "host=64MiB" if options.quick else "host=4GiB"
        for name, more in (("each_step", dict(budget=budget)), ("at_exit", dict(budget=larger, durability="exit"))):
            row[f"{name}_s"] = measured(options, alone, self.tiered(**more))["optimizer_s"]
        if options.deepspeed:
            said = subprocess.run(options.deepspeed, shell=True, check=True, capture_output=True, text=True).stdout
            steps = [json.loads(line)["optimizer_s"] for line in said.splitlines() if '"optimizer_s"' in line]
            row["deepspeed_s"] = statistics.median(steps[1:])
        try:
            import bitsandbytes
        except ImportError:
            pass
        else:
            def in_bytes(params):
                return bitsandbytes.optim.AdamW8bit(params, lr=1e-4)

            row["bitsandbytes_s"] = measured(options, alone, in_bytes)["optimizer_s"]
        for peer in ("deepspeed", "bitsandbytes"):
            if f"{peer}_s" in row:
                row[f"each_step_of_{peer}_speed"] = row[f"{peer}_s"] / row["each_step_s"]
                row[f"at_exit_of_{peer}_speed"] = row[f"{peer}_s"] / row["at_exit_s"]
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--params", type=float, default=621e6, help="of the optimizer alone")
    parser.add_argument("--budget", help="such as host=1GiB; the default is each case's own")
    parser.add_argument("--deepspeed", metavar="COMMAND", help="what prints DeepSpeed's steps")
    parser.add_argument("--quick", action="store_true", help="small models, one round: whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.params, options.budget = 1, 3, 1e6, options.budget or "host=64MiB"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    bench = Bench(options)
    rows = []
    try:
        for number in range(options.rounds):
            for case in options.case or CASES:
                rows.append(dict(case=case, round=number + 1, **getattr(bench, case)()))
                if options.json:
                    print(json.dumps(rows[-1]), flush=True)
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    if options.json:
        return
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        for name in mine[0]:
            if name not in ("case", "round"):
                values = [row[name] for row in mine]
                print(f"{case}: {name} {statistics.median(values):.3f} [{min(values):.3f}-{max(values):.3f}]")


if __name__ == "__main__":
    main()
