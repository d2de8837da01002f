"""DistributedDataParallel, each rank with a store of its own: all do the same updates, so none has to be sent weights.

    torchrun --nproc-per-node 2 ddp.py FOLDER
"""
import os
import sys

import torch
from torch import distributed, nn

import penstock

distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
folder = f"{sys.argv[1]}/rank{rank}"  # on a drive of its own, where there are several
os.makedirs(folder, exist_ok=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))

# A kill leaves ranks at different steps: the newest checkpoint that all of them have counts.
have = [None] * ranks
distributed.all_gather_object(have, {int(name[:-3]) for name in os.listdir(folder) if name.endswith(".pt")})
first = max(set.intersection(*have), default=0)
optimizer = penstock.AdamW(model.parameters(), lr=1e-3, store=folder + "/store", budget="host=64MiB",
                           existing="resume" if first else "replace")
if first:
    checkpoint = torch.load(f"{folder}/{first}.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])  # the store rolls back if it is ahead
parallel = nn.parallel.DistributedDataParallel(model)
for step in range(first, 20):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * ranks + rank))
    loss = nn.functional.mse_loss(parallel(x), x.roll(1, dims=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.17g}\n" if rank == 0 else "", end="", flush=True)
    if step % 5 == 4:
        torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict()), folder + "/new")
        os.rename(folder + "/new", f"{folder}/{step + 1}.pt")
