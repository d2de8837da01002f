"""A LoRA adapter of PEFT, trained by Hugging Face Trainer: the base stays in memory, the adapter's state on a drive.

    python peft_lora.py FOLDER
"""
import glob
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import penstock

folder = sys.argv[1]
torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                                  eos_token_id=0))  # yours: GPT2LMHeadModel.from_pretrained(...)
model = get_peft_model(base, LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True))
text = torch.tensor(list(b"It was the best of times, it was the worst of times, " * 200))
data = [dict(input_ids=x, labels=x) for x in text[: len(text) // 64 * 64].view(-1, 64)]


class Print(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **more):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)


adapter = [p for p in model.parameters() if p.requires_grad]
optimizer = penstock.AdamW(adapter, lr=1e-2, store=folder + "/store", budget="host=64MiB")
arguments = TrainingArguments(folder + "/run", max_steps=20, per_device_train_batch_size=8, save_steps=5,
                              logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[Print])
# Trainer writes this file of a checkpoint last; one that a kill has cut short does not have it.
whole = [file.rpartition("/")[0] for file in glob.glob(folder + "/run/checkpoint-*/trainer_state.json")]
trainer.train(resume_from_checkpoint=max(whole, key=lambda name: int(name.rpartition("-")[2]), default=None))
