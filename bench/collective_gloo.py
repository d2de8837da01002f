"""One rank of bench/collective's gloo: gathers and adds up units of as many bytes when a line says so.

usage: collective_gloo.py RANK RANKS PORT UNIT_BYTES EACH
"""
import datetime
import sys
import time

import torch
import torch.distributed as dist

rank, ranks, port, unit_bytes, each = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds=60))
whole = torch.ones(unit_bytes // 4)
part = torch.ones(unit_bytes // 4 // ranks)
works = {"gather": lambda: dist.all_gather_into_tensor(whole, part),
         "reduce": lambda: dist.reduce_scatter_tensor(part, whole)}
for work in works.values():
    work()
print("ready", flush=True)
for line in sys.stdin:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(each):
        works[line.strip()]()
    print(f"{(time.perf_counter() - start) / each:.9f}", flush=True)
