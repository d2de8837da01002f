"""Training in ranks against PyTorch's DDP and FSDP2 over gloo, in turns: is sharding state in tiers as fast as in theirs?

GPT-2 124M, 512 tokens, 4 micro-batches a step shared by the ranks, one thread each, everything in memory. What a rank
sends is 2 B of each weight's gradient, and with stage 3 its weights twice: 0.3 to 0.7 GB a step and rank through shared
memory, a few tenths of a second beside some ten of computing. So at least as fast as each is asked for.

usage: rank_peers.py PENSTOCK FOLDER [--ranks 2] [--stages 0 3] [--rounds 5] [--steps 4] [--json] [--quick]
To be run with a Python that has torch and transformers. A ratio is the median of the rounds' own, theirs by ours, and a
round's is that of medians of steps, the first of which does not count.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from train_peers import CASES, Ours, median_step_s, model_of, step_lines

PEERS = ("ddp", "fsdp2")


def train_as_rank(case, peer, steps):
    """The worker: one rank of the peer, started with torchrun's environment."""
    import contextlib

    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = model_of(case)
    if peer == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard
        for block in model.transformer.h:
            fully_shard(block)
        trained = fully_shard(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, case["vocab"], (1, case["length"]))
    micro_batches = case["accumulation"] // dist.get_world_size()

    def waits_for_the_last(number):
        """Gradients are added up among ranks once a step."""
        last = number == micro_batches - 1
        if peer == "ddp":
            return contextlib.nullcontext() if last else trained.no_sync()
        trained.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    for _ in range(steps):
        dist.barrier()
        began = time.perf_counter()
        for number in range(micro_batches):
            with waits_for_the_last(number):
                (trained(input_ids=tokens, labels=tokens).loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps({"step_s": time.perf_counter() - began}), flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def peer_step_s(options, peer):
    port = str(free_port())
    command = [sys.executable, __file__, options.penstock, options.folder, "--case", options.case, "--steps",
               str(options.steps), "--worker", peer]
    ranks = []
    for rank in range(options.ranks):
        environ = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(options.ranks), "LOCAL_RANK": str(rank),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE))
    said = ranks[0].communicate()[0]
    if any([rank.wait() for rank in ranks]):
        sys.exit(f"rank_peers: a rank of {peer} failed")
    return median_step_s(step_lines(said))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("folder")
    parser.add_argument("--case", choices=CASES, default="compute")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--probe", default="5s", help="how long the drive is measured")
    parser.add_argument("--quick", action="store_true", help="a small model, one round: whether it works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.case, options.rounds, options.steps, options.probe = "quick", 1, 3, "1s"
    case = dict(CASES[options.case])
    if options.worker:
        return train_as_rank(case, options.worker, options.steps)
    if case["accumulation"] % options.ranks:
        sys.exit(f"rank_peers: {case['accumulation']} micro-batches for {options.ranks} ranks: each takes as many")
    options.penstock = str(Path(options.penstock).resolve())
    case["memory"] = "12GiB"
    case["accumulation"] //= options.ranks  # what DeepSpeed's key counts is a rank's
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    in_memory = {"weights": "host", "host_state_share": 1, "durability": "exit"}
    ours = Ours(options, case, ["--ranks", str(options.ranks)], in_memory)
    rows = []
    try:
        for _ in range(options.rounds):
            peers = {peer: peer_step_s(options, peer) for peer in PEERS}
            for stage in options.stages:
                ours.stage = stage
                step_s, _, _ = ours.run("keep")
                rows.append({"stage": stage, "step_s": step_s, **{f"{peer}_s": peers[peer] for peer in PEERS}})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(ours.folder, ignore_errors=True)
    for stage in options.stages:
        mine = [row for row in rows if row["stage"] == stage]
        for peer in PEERS:
            ratios = [row[f"{peer}_s"] / row["step_s"] for row in mine]
            figure = {"bench": "rank_peers", "case": f"{options.ranks} ranks, stage {stage}",
                      "value": statistics.median(row["step_s"] for row in mine), "unit": "s", "against": peer,
                      "against_value": statistics.median(row[f"{peer}_s"] for row in mine),
                      "ratio": statistics.median(ratios), "goal": 1.0}
            if options.json:
                print(json.dumps(figure), flush=True)
            else:
                print(f"{figure['case']}: {figure['value']:.2f} s a step; {figure['ratio']:.3f} times the speed of {peer} "
                      f"[{min(ratios):.3f}-{max(ratios):.3f}]")


if __name__ == "__main__":
    main()
