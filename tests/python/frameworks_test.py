#!/usr/bin/env python3
"""penstock.AdamW inside Accelerate and Lightning, against torch.optim.AdamW in its place.

Usage: frameworks_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set. Ends with 77 where a library is absent.
"""
import logging
import os
import sys
import tempfile
import unittest
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import accelerate
    import lightning
    import torch
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from frameworks_support import of_example, run
from optimizer_support import SEED, Case, X, mse, net, words_different

logging.disable(logging.WARNING)


class Accelerators(Case):
    def prepared(self, make, clip=True, save_at=None, precision=None):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4, mixed_precision=precision)
        if precision == "fp16":  # it has none of its own on the CPU
            accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
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
        for manner in (dict(clip=False), dict(clip=True), dict(save_at=0), dict(precision="bf16"),
                       dict(precision="fp16")):
            with self.subTest(**manner):
                theirs = self.prepared(self.fused, **manner)
                for begin in ("step", "backward"):
                    ours = self.prepared(lambda params, lr: self.tiered(params, lr=lr, begin=begin), **manner)
                    self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")


class Module(lightning.LightningModule):
    def __init__(self, make):
        super().__init__()
        self.net, self.make = net(), make

    def training_step(self, x, number):
        return mse(self.net, x)

    def configure_optimizers(self):
        self.optimizer = self.make(self.parameters(), lr=1e-2)
        return [self.optimizer], [torch.optim.lr_scheduler.LinearLR(self.optimizer)]


class Lightnings(Case):
    def fitted(self, make, steps=8, checkpoint=None, scaled=False, **arguments):
        """The module after `steps` updates of four micro-batches each, and its Trainer."""
        torch.manual_seed(SEED)
        if scaled:
            arguments["plugins"] = [lightning.pytorch.plugins.MixedPrecision(
                "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))]
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=steps, accumulate_grad_batches=4, logger=False, enable_model_summary=False,
            enable_checkpointing=False, enable_progress_bar=False, **arguments)
        module = Module(make)
        batches = torch.utils.data.DataLoader(list(X[:22]), batch_size=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, batches, ckpt_path=checkpoint, **(dict(weights_only=True) if checkpoint else {}))
        return module, trainer

    def test_the_same_weights(self):
        for manner in (dict(), dict(gradient_clip_val=0.05), dict(precision="bf16-mixed"),
                       dict(scaled=True, gradient_clip_val=0.05)):
            # Lightning refuses to clip for a fused optimizer under a GradScaler; torch's others round in another order.
            clips = "gradient_clip_val" in manner
            theirs, _ = self.fitted((lambda params, lr: torch.optim.AdamW(params, lr=lr)) if clips else self.fused,
                                    **manner)
            for begin in ("step", "backward"):
                with self.subTest(begin=begin, **manner):
                    ours, _ = self.fitted(lambda params, lr: self.tiered(params, lr=lr, begin=begin), **manner)
                    if clips:
                        for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
                            torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-7)
                    else:
                        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")

    def test_resumes_from_its_checkpoint_with_the_store_there_or_ahead(self):
        """In the middle of an epoch, whose batches Lightning then gives once more: to torch's optimizer as well."""
        _, trainer = self.fitted(self.fused, steps=5)
        trainer.save_checkpoint(self.folder / "theirs")
        whole, _ = self.fitted(self.fused, checkpoint=self.folder / "theirs")
        for ahead in (0, 2):
            with self.subTest(ahead=ahead):
                def make(params, lr, store=self.folder / f"store{ahead}"):
                    return self.tiered(params, lr=lr, store=store)

                module, trainer = self.fitted(make, steps=5)
                checkpoint = self.folder / f"checkpoint{ahead}"
                trainer.save_checkpoint(checkpoint)
                for _ in range(ahead):
                    mse(module.net, X[0]).backward()
                    module.optimizer.step(), module.optimizer.zero_grad()
                module.optimizer.close()
                resumed, _ = self.fitted(make, checkpoint=checkpoint)
                self.assertEqual(words_different(whole.parameters(), resumed.parameters()), 0, f"seed {SEED}")

    def test_the_example_goes_on_where_it_was_killed(self):
        results = []
        for folder, stop in (("whole", None), ("killed", 12), ("killed", None)):
            lines = []
            with run(of_example("lightning_module.py"), self.folder / folder) as program:
                for line in program.stdout:
                    if line.startswith("step"):
                        lines.append(line)
                        if stop and line.startswith(f"step {stop} "):
                            program.kill()
                            break
            results.append(lines)
        whole, killed, rest = results
        self.assertEqual(len(whole), 20, results)
        self.assertLess(len(rest), 20)
        self.assertEqual(whole[-len(rest):], rest)


if __name__ == "__main__":
    unittest.main(verbosity=2)
