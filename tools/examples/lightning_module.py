"""A LightningModule whose optimizer state rests on a drive. Kill it at any time and start it again.

    python lightning_module.py FOLDER
"""
import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import penstock

folder = sys.argv[1]


class Rolls(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))

    def training_step(self, x, number):
        loss = nn.functional.mse_loss(self.net(x), x.roll(1, dims=1))
        print(f"step {self.global_step + 1} loss {loss.item():.17g}", flush=True)
        return loss

    def configure_optimizers(self):
        return penstock.AdamW(self.parameters(), lr=1e-3, store=folder + "/store", budget="host=64MiB")


torch.manual_seed(0)
model, last = Rolls(), folder + "/last.ckpt"
data = torch.utils.data.DataLoader(torch.randn(80, 64), batch_size=16)
saves = ModelCheckpoint(folder, save_last=True)  # after each epoch; Lightning repeats one that was cut short
trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[saves])
there = dict(ckpt_path=last, weights_only=True) if os.path.exists(last) else {}
trainer.fit(model, data, **there)
