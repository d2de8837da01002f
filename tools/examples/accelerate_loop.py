"""A loop of Accelerate's, whose checkpoints name the store's step. Kill it at any time and start it again.

    python accelerate_loop.py FOLDER
"""
import glob
import sys

import torch
from accelerate import Accelerator
from torch import nn

import penstock

folder = sys.argv[1]
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
optimizer = penstock.AdamW(model.parameters(), lr=1e-3, store=folder + "/store", budget="host=64MiB")
model, optimizer = accelerator.prepare(model, optimizer)

# "whole" is written when all else is: a checkpoint that a kill has cut short does not have it.
whole = [int(file.split("/")[-2]) for file in glob.glob(folder + "/checkpoints/*/whole")]
if whole:
    accelerator.load_state(f"{folder}/checkpoints/{max(whole)}")  # the store rolls back to it if it is ahead
for step in range(max(whole, default=0), 20):
    for half in range(2):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2 * step + half))
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(f"step {step + 1} loss {loss.item():.17g}", flush=True)
    if step % 5 == 4:
        accelerator.save_state(f"{folder}/checkpoints/{step + 1}")
        open(f"{folder}/checkpoints/{step + 1}/whole", "w").close()
