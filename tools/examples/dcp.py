"""torch.distributed.checkpoint: weights in its files, the optimizer's state in the store, whose step they name.

    python dcp.py FOLDER
"""
import os
import sys

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import penstock

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
whole = [int(name[4:]) for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/.metadata")]
first = max(whole, default=0)  # .metadata is written last
optimizer = penstock.AdamW(model.parameters(), lr=1e-3, store=folder + "/store", budget="host=64MiB",
                           existing="refuse" if first else "replace")
if first:
    optimizer.resume()  # else torch would take a step to see what state there is
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = dict(model=model_state, optimizer=optimizer_state)
    checkpoint.load(state, checkpoint_id=f"{folder}/step{first}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
for step in range(first, 20):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
    loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.17g}", flush=True)
    if step % 5 == 4:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        checkpoint.save(dict(model=model_state, optimizer=optimizer_state), checkpoint_id=f"{folder}/step{step + 1}")
