#!/usr/bin/env python3
"""penstock.AdamW inside Hugging Face Trainer and Accelerate, against torch.optim.AdamW in the same place.

Usage: frameworks_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set. Ends with 77 where a library is absent.
"""
import logging
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import accelerate
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from optimizer_test import SEED, Case, X, mse, net, words_different

logging.disable(logging.WARNING)
DATA = torch.randint(0, 64, (88, 12), generator=torch.Generator().manual_seed(SEED))


class Trainers(Case):
    def trained(self, make, steps=-1, resume=None, **arguments):
        """Eight updates of a GPT-2 whose sizes are multiples of 16. The model, the optimizer and the Trainer."""
        torch.manual_seed(SEED)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        optimizer = make(model.parameters(), lr=1e-2)
        settings = transformers.TrainingArguments(
            self.folder / "run", use_cpu=True, gradient_accumulation_steps=4, per_device_train_batch_size=4,
            report_to=[], num_train_epochs=2, max_steps=steps, logging_steps=1, disable_tqdm=True,
            **{"save_strategy": "no", **arguments})
        data = [dict(input_ids=x, labels=x) for x in DATA]
        trainer = transformers.Trainer(model, settings, train_dataset=data, optimizers=(optimizer, None))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return model, optimizer, trainer

    def assert_same(self, theirs, ours):
        """The biases of attention's keys have no effect: their gradients are rounding errors, some below the 3e-14 of
        which penstock_optim.h says that they leave no variance, and so the biases may differ by as little."""
        for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
            if name.endswith("c_attn.bias"):
                torch.testing.assert_close(p[16:32], q[16:32], rtol=0, atol=1e-12)
                p, q = torch.cat([p[:16], p[32:]]), torch.cat([q[:16], q[32:]])
            self.assertEqual(words_different([p], [q]), 0, f"{name}, seed {SEED}")

    def test_the_same_weights(self):
        for arguments in (dict(max_grad_norm=0.0), dict(max_grad_norm=0.1), dict(bf16=True),
                          dict(gradient_checkpointing=True),
                          dict(lr_scheduler_type="cosine", warmup_steps=3)):
            with self.subTest(**arguments):
                theirs, _, trainer = self.trained(self.fused, **arguments)
                begin = "backward" if "bf16" in arguments or "lr_scheduler_type" in arguments else "step"
                ours, _, tiered = self.trained(lambda params, lr: self.tiered(params, lr=lr, begin=begin), **arguments)
                self.assert_same(theirs, ours)
                norms = [[row["grad_norm"] for row in of.state.log_history if "grad_norm" in row]
                         for of in (trainer, tiered)]
                self.assertEqual(*norms)

    def test_resumes_from_its_checkpoint_with_the_store_there_or_ahead(self):
        """Killed, the Trainer goes on from its own checkpoint of step 4; the store has gone on to `stop`."""
        for stop in (4, 6):
            with self.subTest(stop=stop):
                store = self.folder / f"store{stop}"

                def make(params, **more):
                    return self.tiered(params, store=store, **more)

                _, optimizer, _ = self.trained(make, steps=stop, save_strategy="steps", save_steps=4)
                optimizer.close()
                checkpoint = self.folder / "run" / "checkpoint-4"
                self.assertLess((checkpoint / "optimizer.pt").stat().st_size, 65536)
                model, optimizer, _ = self.trained(make, resume=str(checkpoint))
                optimizer.close()
                # A Trainer's schedule depends on how many steps it is made for: the reference stops there, too.
                self.trained(self.fused, steps=stop, save_strategy="steps", save_steps=4)
                theirs, _, _ = self.trained(self.fused, resume=str(checkpoint))
                self.assert_same(theirs, model)


    def test_the_example_goes_on_from_its_last_checkpoint(self):
        example = Path(__file__).parents[2] / "tools" / "examples" / "hf_trainer.py"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

        def run(**more):
            arguments = [sys.executable, example, self.folder / "example"]
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    env=environment, **more)

        with run() as program:
            for line in program.stdout:
                if "'epoch': '0.95" in line:  # at the checkpoint of step 20, or behind it
                    program.kill()
                    break
        with run() as program:
            text = program.communicate()[0]
        self.assertEqual(program.returncode, 0, text)
        self.assertIn("'epoch': '1.4", text)
        self.assertNotIn("'epoch': '0.47", text, "step 10 was made again")


class Accelerators(Case):
    def prepared(self, make, clip=True, save_at=None, precision=None):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision=precision)
        model = net()
        optimizer = make(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        batches = torch.utils.data.DataLoader(list(X[:22]), batch_size=None)
        model, optimizer, scheduler, batches = accelerator.prepare(model, optimizer, scheduler, batches)
        for epoch in range(2):
            for x in batches:
                with accelerator.accumulate(model):
                    accelerator.backward(mse(model, x))
                    if accelerator.sync_gradients and clip:
                        accelerator.clip_grad_norm_(model.parameters(), 0.05)
                    optimizer.step(), scheduler.step(), optimizer.zero_grad()
            if save_at == epoch:
                with tempfile.TemporaryDirectory() as folder:
                    accelerator.save_state(folder)
                    accelerator.load_state(folder)
        return model

    def test_the_same_weights(self):
        for manner in (dict(clip=False), dict(clip=True), dict(save_at=0), dict(precision="bf16")):
            with self.subTest(**manner):
                theirs = self.prepared(self.fused, **manner)
                for begin in ("step", "backward"):
                    ours = self.prepared(lambda params, lr: self.tiered(params, lr=lr, begin=begin), **manner)
                    self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
