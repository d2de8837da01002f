#!/usr/bin/env python3
"""Does penstock.AdamW keep to its budget of host memory? Weights and gradients are the model's own; what comes on top of
them in the first steps, the creation of the store included, must be what the engine has planned, and 2 % at most.

Estimate: 600M parameters have 7.2 GB of state; of it 512 MiB may be in memory, 7 %.

    PENSTOCK_LIBRARY=build/lib/libpenstock.so PYTHONPATH=runtime/python .venv/bin/python bench/python_memory.py FOLDER

What is trained, --params in all (--of):

  tensors  16M each, with gradients that stay; --each sets another size, --each 1e9 --params 1e9 makes one of all
  layers   linear layers of 4096 x 4096, forward and backward before each step
  lora     the same, frozen, with adapters of rank 8 as PEFT makes them: the state is theirs alone

With --gradients taken, of layers or lora, gradients are the store's as soon as backward has made them: they count, too.

FOLDER gets the store, 24 B a parameter, which is removed. Where a memory cgroup (v1 or v2) can be made, the process is
put into one whose limit is what it has before the first step and 1.02 of the plan: it would not survive more.
Prints a line a step and a verdict; exit code 1 where the peak is above the plan by more than 2 %.
"""
import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

import penstock

MIB = 1 << 20
SLACK = 1.02


def status_bytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024


class Cgroup:
    """A memory cgroup of this process's own; `path` is None where none can be made."""

    def __init__(self, wanted):
        self.path = None
        roots = () if not wanted else (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
                                       ("/sys/fs/cgroup", "memory.max", "memory.current"))
        for root, limit, usage in roots:
            path = Path(root) / f"penstock-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            if not (path / limit).exists():
                path.rmdir()
                continue
            self.path, self.root, self.limit, self.usage = path, Path(root), limit, usage
            (path / "cgroup.procs").write_text(str(os.getpid()))
            return

    def limit_to(self, more_bytes):
        (self.path / self.limit).write_text(str(int((self.path / self.usage).read_text()) + more_bytes))

    def leave(self):
        if self.path:
            (self.path / self.limit).write_text("-1" if "limit" in self.limit else "max")
            (self.root / "cgroup.procs").write_text(str(os.getpid()))
            self.path.rmdir()


def tensors(chosen):
    """What is trained, and what makes a step's gradients: here they stay."""
    trained = []
    for first in range(0, chosen.params, chosen.each):
        p = torch.nn.Parameter(torch.full((min(chosen.each, chosen.params - first),), 0.5))
        p.grad = torch.full_like(p, 1e-3)
        trained.append(p)
    return trained, lambda: torch._foreach_add_([p.grad for p in trained], 0.0)


def layers(chosen, adapters=False):
    width = 512 if chosen.quick else 4096
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(chosen.params // width**2)))
    if adapters:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=r"\d+"))
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(1))
    trained = [p for p in model.parameters() if p.requires_grad]

    def gradients():
        for p in trained:
            p.grad = None
        torch.nn.functional.mse_loss(model(x), x).backward()

    return trained, gradients


def lora(chosen):
    return layers(chosen, adapters=True)


MODELS = dict(tensors=tensors, layers=layers, lora=lora)


def forget_gradient(p):
    p.grad = None


def measure(chosen, folder):
    """Planned bytes, and the peak above what there was before."""
    cgroup = Cgroup(not chosen.no_cgroup)
    budget = chosen.budget
    try:
        trained, gradients = MODELS[chosen.of](chosen)
        taken = chosen.gradients == "taken"
        torch.optim.SGD(trained[:1])  # the first optimizer loads much of torch
        Path("/proc/self/clear_refs").write_text("5")  # a peak begins here
        hooks = [p.register_post_accumulate_grad_hook(forget_gradient) for p in trained if taken]
        gradients()
        before = status_bytes("VmHWM")
        for hook in hooks:
            hook.remove()
        more = dict(begin="backward", gradients="taken") if taken else {}
        optimizer = penstock.AdamW(trained, lr=1e-3, store=folder, budget=budget, **more)
        if not taken:
            gradients()
        Path("/proc/self/clear_refs").write_text("5")
        own = max(status_bytes("VmRSS"), before)
        if cgroup.path:
            cgroup.limit_to(own - status_bytes("VmRSS") + int(penstock._sizes.bytes_of(budget) * SLACK))
        print(f"weights, {'' if taken else 'gradients '}and computing: {own / MIB:.1f} MiB; budget {budget};"
              f" limited by a cgroup: {'yes' if cgroup.path else 'no'}", flush=True)
        for step in range(chosen.steps):
            began = time.perf_counter()
            if taken or (step > 0 and chosen.of != "tensors"):
                gradients()
            optimizer.step()
            print(f"step {step + 1}: {time.perf_counter() - began:.2f} s, peak {(status_bytes('VmHWM') - own) / MIB:.1f}"
                  " MiB above", flush=True)
        planned = optimizer.statistics()["host_bytes"]
        peak = status_bytes("VmHWM") - own
        optimizer.close()
        return planned, peak
    finally:
        cgroup.leave()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder")
    number = lambda text: int(float(text))  # noqa: E731
    options.add_argument("--params", type=number, default=600_000_000)
    options.add_argument("--of", choices=MODELS, default="tensors")
    options.add_argument("--gradients", choices=("kept", "taken"), default="kept")
    options.add_argument("--each", type=number, default=1 << 24)
    options.add_argument("--budget", default="host=512MiB")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--no-cgroup", action="store_true", help="measure alone, without a limit")
    options.add_argument("--quick", action="store_true", help="20M parameters in 64 MiB")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.params, chosen.budget = 20_000_000, "host=64MiB"
    folder = tempfile.mkdtemp(prefix="penstock-memory-", dir=chosen.folder)
    try:
        planned, peak = measure(chosen, folder)
    finally:
        shutil.rmtree(folder)
    print(f"planned {planned / MIB:.1f} MiB, peak {peak / MIB:.1f} MiB: {peak / planned:.3f} of the plan")
    return 0 if peak <= SLACK * planned else 1


if __name__ == "__main__":
    sys.exit(main())
