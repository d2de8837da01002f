"""A training loop of your own whose optimizer state rests on a drive. Kill it at any time and start it again.

    python torch_loop.py FOLDER STEPS
"""
import sys

import torch
from torch import nn

import penstock

folder, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))
optimizer = penstock.AdamW(model.parameters(), lr=1e-3, store=folder, budget="host=64MiB")

for step in range(optimizer.resume(), steps):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))  # a function of the step
    loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.17g}", flush=True)
