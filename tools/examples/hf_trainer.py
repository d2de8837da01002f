"""Hugging Face Trainer with the optimizer state on a drive: one argument more. It resumes from its own checkpoints.

    python hf_trainer.py FOLDER
"""
import glob
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import penstock

folder = sys.argv[1]
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=2, bos_token_id=0,
                                   eos_token_id=0))
text = torch.tensor(list(b"It was the best of times, it was the worst of times, " * 200))
data = [dict(input_ids=x, labels=x) for x in text[: len(text) // 64 * 64].view(-1, 64)]

optimizer = penstock.AdamW(model.parameters(), lr=1e-3, store=folder + "/store", budget="host=64MiB")
arguments = TrainingArguments(folder + "/run", max_steps=30, per_device_train_batch_size=8, save_steps=10,
                              save_total_limit=1, logging_steps=10, report_to=[], use_cpu=True)


class DropsDeleted(TrainerCallback):
    """The store keeps the step of each checkpoint until it is told that the checkpoint is gone."""
    def on_save(self, arguments, *_, **__):
        there = {int(name.rpartition("-")[2]) for name in glob.glob(folder + "/run/checkpoint-*")}
        for step in set(optimizer.kept()) - there:
            optimizer.drop(step)


trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[DropsDeleted()])

# Trainer writes this file of a checkpoint last; one that a kill has cut short does not have it.
whole = [file.rpartition("/")[0] for file in glob.glob(folder + "/run/checkpoint-*/trainer_state.json")]
trainer.train(resume_from_checkpoint=max(whole, key=lambda name: int(name.rpartition("-")[2]), default=None))
