#!/usr/bin/env python3
"""README's table of what training keeps where: ours by `penstock plan`, others' by the bytes that each keeps a parameter.

usage: memory_table.py PENSTOCK [--check README.md]

--check compares the table in that file with this one; exit code 1 where they differ.
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

MODELS = {"1.3B": "1.3e9", "7B": "7e9", "13B": "13e9", "70B": "70e9"}
# What the plans are for does not matter much: the machine of one RTX 4090 and two drives.
MACHINE = "rtx4090-2gen4"

# Bytes a parameter in GPU memory, in host memory, on NVMe.
PEERS = {
    # fp32 weights under autocast 4, gradients 4, moments 8.
    "`torch.optim.AdamW`": (16, 0, 0),
    # The same weights and gradients; two moments of a byte, each with a float for 256 of them, which the driver pages out
    # to host memory where the GPU has no room.
    "bitsandbytes, paged 8-bit AdamW": (8, 2 * (1 + 4 / 256), 0),
    # 16-bit weights 2 and the gradients on their way 2; fp32 masters 4, moments 8, gradients 4.
    "DeepSpeed ZeRO-Offload": (4, 16, 0),
}
OPTIMIZER = ["--update-only", "--clip", "off", "--budget", "host=4GiB"]
# Bytes a parameter of the trainer's own, and the plan.
OURS = {
    # bf16 weights 2 and their gradients 2.
    "`penstock.AdamW`, 4 GiB": (4, OPTIMIZER),
    # The weights alone: of gradients there are those that backward is at.
    'the same, `gradients="taken"`': (2, OPTIMIZER),
    "`penstock train`, planned":
        (0, ["--tokens", "4096", "--activations", "recompute", "--budget", "device=20GiB,host=60GiB"]),
}


def planned(penstock, params, options):
    """Parameters, and bytes by tier."""
    command = [penstock, "plan", "--params", params, "--machine", MACHINE, *options, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    if not found["fits"]:
        sys.exit(f"{' '.join(command)}: does not fit: {found['needed_bytes']}")
    needed = found["needed_bytes"]
    return found["model"]["parameters"], {tier: needed.get(tier, {}).get("total", 0) for tier in ("device", "host", "nvme")}


def cell(amounts):
    """GB in GPU memory + host memory + NVMe."""
    return " + ".join(f"{amount / 1e9:.0f}" if amount >= 9.95e9 else f"{amount / 1e9:.1f}" if amount else "0"
                      for amount in amounts)


def table(penstock):
    lines = ["| GB in GPU memory + host memory + NVMe | " + " | ".join(MODELS) + " |", "|---" * (1 + len(MODELS)) + "|"]
    sizes = [float(params) for params in MODELS.values()]
    for name, each in PEERS.items():
        lines.append(f"| {name} | " + " | ".join(cell([size * n for n in each]) for size in sizes) + " |")
    for name, (own_bytes, options) in OURS.items():
        cells = []
        for params in MODELS.values():
            parameters, tiers = planned(penstock, params, options)
            cells.append(cell([tiers["device"] + own_bytes * parameters, tiers["host"], tiers["nvme"]]))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("--check", type=Path, metavar="FILE")
    options = parser.parse_args()
    made = table(options.penstock)
    if options.check is None:
        print(made, end="")
    elif made not in options.check.read_text(encoding="utf-8"):
        print(f"{options.check}: has another table than this, which is what the plans are now:\n{made}", end="")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
