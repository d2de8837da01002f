#!/usr/bin/env python3
"""penstock.AdamW inside Hugging Face Trainer, with and without an adapter of PEFT, against torch.optim.AdamW in its place.

Usage: hugging_face_test.py [CASE...], with PENSTOCK_LIBRARY and PYTHONPATH set. Ends with 77 where a library is absent.
"""
import json
import logging
import os
import random
import select
import shutil
import sys
import time
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import accelerate  # noqa: F401, which Trainer needs
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from frameworks_support import of_example, run
from optimizer_support import SEED, Case, Child, words_different

logging.disable(logging.WARNING)
DATA = torch.randint(0, 64, (88, 12), generator=torch.Generator().manual_seed(SEED))


class Trainers(Case):
    MANNERS = (dict(max_grad_norm=0.0), dict(max_grad_norm=0.1), dict(bf16=True), dict(gradient_checkpointing=True),
               dict(lr_scheduler_type="cosine", warmup_steps=3))
    STOPS = (4, 6)

    def trained(self, make, steps=-1, resume=None, lora=False, **arguments):
        """Eight updates of a GPT-2 whose sizes are multiples of 16. The model, the optimizer and the Trainer."""
        torch.manual_seed(SEED)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        if lora:  # rank 16, so that sizes are multiples of 16
            model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["c_attn"], fan_in_fan_out=True))
        optimizer = make([p for p in model.parameters() if p.requires_grad], lr=1e-2)
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
        for arguments in self.MANNERS:
            with self.subTest(**arguments):
                theirs, _, trainer = self.trained(self.fused, **arguments)
                begin = dict(begin="backward" if "bf16" in arguments or "lr_scheduler_type" in arguments else "step")
                if arguments.get("max_grad_norm") == 0:
                    begin = dict(begin="backward", gradients="taken")
                ours, _, tiered = self.trained(lambda params, lr: self.tiered(params, lr=lr, **begin), **arguments)
                self.assert_same(theirs, ours)
                norms = [[row["grad_norm"] for row in of.state.log_history if "grad_norm" in row]
                         for of in (trainer, tiered)]
                self.assertEqual(*norms)

    def test_updates_that_began_in_backward_are_not_done_again(self):
        """Trainer measures the norm by a clip that does not strike."""
        for max_grad_norm in (0, 1e6):
            _, optimizer, _ = self.trained(
                lambda params, lr: self.tiered(params, lr=lr, begin="backward", accumulation=4),
                max_grad_norm=max_grad_norm)
            early = optimizer._penstock.early
            # Of 12 steps: the first makes the store, and the last one of each epoch has fewer micro-batches.
            self.assertEqual((early.published, early.redone), (9, 0))

    def test_resumes_from_its_checkpoint_with_the_store_there_or_ahead(self):
        """Killed, the Trainer goes on from its own checkpoint of step 4; the store has gone on to `stop`."""
        for stop in self.STOPS:
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
        def example():
            return run(of_example("hf_trainer.py"), self.folder / "example")

        with example() as program:
            for line in program.stdout:
                if "'epoch': '0.95" in line:  # at the checkpoint of step 20, or behind it
                    program.kill()
                    break
        with example() as program:
            text = program.communicate()[0]
        self.assertEqual(program.returncode, 0, text)
        self.assertIn("'epoch': '1.4", text)
        self.assertNotIn("'epoch': '0.47", text, "step 10 was made again")
        kept = (self.folder / "example" / "store" / "kept").glob("*/rank0.tiles")
        self.assertEqual([path.parent.name for path in kept], ["30"], "steps of checkpoints that are gone")


class KilledTrainers(Case):
    trained, assert_same = Trainers.trained, Trainers.assert_same

    def test_resume_from_their_own_checkpoints_with_the_store_ahead(self):
        """PENSTOCK_KILLS sets how often it is killed, at some time of the run; then it goes on from its newest checkpoint
        that is whole, or from the start. Where it ends before, it begins anew."""
        kills, draw = int(os.environ.get("PENSTOCK_KILLS", "4")), random.Random(SEED)
        theirs, _, _ = self.trained(self.fused)
        result = self.folder / "weights"

        def checkpoint():
            whole = [path.parent for path in self.folder.glob("run/checkpoint-*/trainer_state.json") if parses(path)]
            return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)

        def work(tell):
            found, begin = checkpoint(), draw.choice(("step", "backward"))

            def make(params, lr):
                existing = "refuse" if found else "replace"
                return self.tiered(params, lr=lr, store=self.folder / "store", existing=existing, begin=begin)

            tell("begins")
            model, _, _ = self.trained(make, resume=found and str(found), save_strategy="steps", save_steps=2,
                                       save_total_limit=2)
            torch.save(list(model.parameters()), result)
            tell("done")

        def ended(lasts_s):
            """Whether it did so within the time."""
            with Child(work) as child:
                child.told.readline()
                began = time.monotonic()
                if lasts_s is not None:
                    select.select([child.told], [], [], lasts_s)
                    if not result.exists():
                        return False, 0.0
                self.assertEqual(child.told.readline(), "done\n", f"seed {SEED}")
                took_s = time.monotonic() - began
            model, _, _ = self.trained(self.fused, steps=1)
            for p, q in zip(model.parameters(), torch.load(result, weights_only=True), strict=True):
                p.data = q.data
            self.assert_same(theirs, model)
            for made in (self.folder / "run", self.folder / "store"):
                shutil.rmtree(made)
            result.unlink()
            return True, took_s

        _, whole_s = ended(None)
        killed, resumed = 0, 0
        while killed < kills:
            resumed += checkpoint() is not None
            killed += not ended(draw.uniform(0, whole_s))[0]
        resumed += checkpoint() is not None
        self.assertTrue(ended(None)[0])
        print(f"killed {killed} times, resumed from a checkpoint {resumed} times", file=sys.stderr)

    def test_steps_of_deleted_checkpoints_stay_until_they_are_dropped(self):
        """Nobody tells the optimizer of save_total_limit. Another process still sees each step, and can drop it."""
        def make(params, **more):
            return self.tiered(params, store=self.folder / "kept", **more)

        def checkpoints():
            return sorted(int(path.name.split("-")[1]) for path in self.folder.glob("run/checkpoint-*"))

        saves = dict(save_strategy="steps", save_steps=2, save_total_limit=1)
        model, optimizer, _ = self.trained(make, steps=6, **saves)
        self.assertEqual((optimizer.kept(), checkpoints()), ([2, 4, 6], [6]))
        optimizer.close()
        another = make(model.parameters())
        self.assertEqual(another.resume(), 6)
        self.assertEqual(another.kept(), [2, 4, 6])
        for step in set(another.kept()) - set(checkpoints()):
            another.drop(step)
        self.assertEqual(another.kept(), [6])
        another.close()
        self.assertEqual([path.name for path in (self.folder / "kept" / "kept").iterdir()], ["6"])  # and no room is taken
        _, last, _ = self.trained(make, steps=8, resume=str(self.folder / "run" / "checkpoint-6"), **saves)
        self.assertEqual(last.kept(), [6, 8])
        last.close()


def parses(path):
    try:
        return bool(json.loads(path.read_text()))
    except ValueError:
        return False


class Adapters(Trainers):
    """PEFT: the base stays as it is, and the store has the adapter alone."""

    MANNERS = (dict(max_grad_norm=0.1), dict(bf16=True))
    STOPS = (6,)

    def trained(self, make, **arguments):
        return super().trained(make, lora=True, **arguments)

    def assert_same(self, theirs, ours):
        """All weights to the bit: an adapter has no direction without effect."""
        self.assertEqual(words_different(theirs.parameters(), ours.parameters()), 0, f"seed {SEED}")

    def test_the_example_goes_on_from_its_last_checkpoint(self):
        losses = []
        for folder, stop in (("whole", None), ("killed", 12), ("killed", None)):
            lines = []
            with run(of_example("peft_lora.py"), self.folder / folder) as program:
                for line in program.stdout:
                    lines.append(line)
                    if stop and line.startswith(f"step {stop} "):
                        program.kill()
                        break
            losses.append([line for line in lines if line.startswith("step")])
        whole, killed, rest = losses
        self.assertEqual(len(whole), 20, lines)
        self.assertLess(len(rest), 20)
        self.assertEqual(whole[-len(rest):], rest)


if __name__ == "__main__":
    unittest.main(verbosity=2)
