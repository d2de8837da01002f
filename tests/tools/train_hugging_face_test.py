#!/usr/bin/env python3
"""Folders of Hugging Face's, into a run and out of it: against transformers and torch.

Usage: train_hugging_face_test.py PENSTOCK [CLASS].
"""
import copy
import math
import os
import shutil
import unittest

from train_support import TEXT, USAGE, TrainCase


class HuggingFace(TrainCase):
    """Against transformers and torch."""

    def setUp(self):
        super().setUp()
        try:
            os.environ["HF_HUB_OFFLINE"] = "1"
            import torch
            import transformers
        except ImportError as error:
            self.skipTest(f"{error} (tools/setup --checks installs it)")
        self.torch, self.transformers = torch, transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def model(self, kind, folder, dtype, shard="1GB"):
        t, torch = self.transformers, self.torch
        torch.manual_seed(5)
        common = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=257,
                      max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
        config = {"gpt2": lambda: t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=257, n_positions=64,
                                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
                  "llama": lambda: t.LlamaConfig(**common, num_key_value_heads=2),
                  "qwen3": lambda: t.Qwen3Config(**common, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
                  "gemma2": lambda: t.Gemma2Config(**common, num_key_value_heads=2, head_dim=32, sliding_window=7,
                                                   query_pre_attn_scalar=24, attn_logit_softcapping=5.0,
                                                   final_logit_softcapping=8.0),
                  "gemma3": lambda: t.Gemma3TextConfig(**common, num_key_value_heads=1, head_dim=32, sliding_window=7,
                                                       layer_types=["sliding_attention", "full_attention"]),
                  }[kind]()
        model = t.AutoModelForCausalLM.from_config(config).to(dtype)
        model.save_pretrained(self.path(folder), max_shard_size=shard)
        (self.folder / folder / "tokenizer_config.json").write_text('{"here": true}')
        return t.AutoModelForCausalLM.from_pretrained(self.path(folder), dtype=dtype)

    def logits(self, model):
        tokens = self.torch.arange(48).reshape(2, 24) * 5 % 257
        with self.torch.no_grad():
            return model.eval()(input_ids=tokens).logits.float()

    def test_what_is_imported_and_exported_has_identical_logits(self):
        for kind, dtype, precision in (("gpt2", self.torch.float32, "fp32"), ("llama", self.torch.bfloat16, "bf16"),
                                       ("qwen3", self.torch.float16, "fp16"), ("gemma3", self.torch.bfloat16, "bf16")):
            with self.subTest(kind):
                model = self.model(kind, kind, dtype, shard="100KB")
                config = self.config(model=self.path(kind), precision=precision, penstock={"stores": [self.path(kind + "_store")]})
                self.json_of("checkpoint", "import", self.path(kind), "--config", config)
                answer = self.json_of("checkpoint", "export", self.path(kind + "_store"), self.path(kind + "_out"),
                                      "--shard", "100kB")
                self.assertEqual(answer["step"], 0)
                self.assertTrue((self.folder / (kind + "_out") / "tokenizer_config.json").exists())
                self.assertTrue((self.folder / (kind + "_out") / "model.safetensors.index.json").exists())
                again = self.transformers.AutoModelForCausalLM.from_pretrained(self.path(kind + "_out"), dtype="auto")
                self.assertEqual(again.dtype, dtype)
                self.assertTrue(self.torch.equal(self.logits(model), self.logits(again)))

    def train_with_torch(self, model, steps, samples, rates, micro_batches=1):
        """Every step learns from all samples, as the command's here does."""
        torch = self.torch
        decaying = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW([{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}],
                                      lr=1.0, betas=(0.9, 0.95), eps=1e-8)
        tokens, targets = (torch.tensor([sample[shift:shift + 16] for sample in samples]) for shift in (0, 1))
        losses = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
            optimizer.zero_grad()
            losses.append(0)
            for some, of_some in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches)):
                logits = model(input_ids=some).logits.float()
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 257), of_some.reshape(-1)) / micro_batches
                loss.backward()
                losses[-1] += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return losses

    def test_twenty_steps_follow_pytorch_and_the_export_loads(self):
        text = (TEXT * 2)[:8 * 16 + 1].encode()
        (self.folder / "all.txt").write_bytes(text)
        samples = [list(text[i * 16:i * 16 + 17]) for i in range(8)]
        for kind in ("gpt2", "llama", "qwen3", "gemma2", "gemma3"):
            with self.subTest(kind):
                model = self.model(kind, kind, self.torch.float32)
                config = self.config(model=self.path(kind), data=self.path("all.txt"), held_out_share=0, max_steps=20,
                                     precision="fp32", train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=4,
                                     optimizer={"params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                                     scheduler={"type": "cosine", "params": {"warmup_steps": 3}},
                                     penstock={"stores": [self.path(kind + "_store")], "run": self.path(kind + "_run")})
                answer = self.json_of("train", config)
                log = self.log(kind + "_run")
                rates = [step["lr"] for step in log]
                in_micro_batches = copy.deepcopy(model)
                losses = self.train_with_torch(model, 20, samples, rates)
                self.train_with_torch(in_micro_batches, 20, samples, rates, micro_batches=4)
                self.assertLess(abs(losses[0] - answer["loss_first"]), 1e-5)
                for ours, theirs in zip((step["loss"] for step in log), losses):
                    self.assertLess(abs(ours - theirs), 1e-3)
                self.assertLess(losses[-1], 0.8 * losses[0])
                self.json_of("checkpoint", "export", self.path(kind + "_store"), self.path(kind + "_out"))
                exported = self.transformers.AutoModelForCausalLM.from_pretrained(self.path(kind + "_out"), dtype="auto")
                apart = self.relative_difference(exported, model)
                # AdamW makes as much of a gradient that is all rounding as of any other. Where the model has such a weight,
                # PyTorch's own steps are tens of times as far apart as elsewhere.
                own = self.relative_difference(in_micro_batches, model)
                print(f"{kind}: weights apart by {apart:.2e} after 20 steps, PyTorch's own by {own:.2e} with micro-batches", flush=True)
                self.assertLess(apart, max(1e-5, 10 * own))

    def relative_difference(self, ours, theirs):
        squares = apart = 0.0
        for a, b in zip(ours.parameters(), theirs.parameters()):
            squares += b.double().square().sum().item()
            apart += (a.double() - b.double()).square().sum().item()
        return math.sqrt(apart / squares)

    def test_a_trained_run_exports_what_it_computes_with(self):
        self.model("llama", "llama", self.torch.bfloat16)
        config = self.config(model=self.path("llama"), held_out_share=0.2, eval_every=4, max_steps=4)
        answer = self.json_of("train", config)
        self.json_of("checkpoint", "export", self.path("store"), self.path("out"))
        # The run that begins with the export computes the same held-out loss before it has learnt anything.
        again = self.config(model=self.path("out"), held_out_share=0.2, eval_every=1, max_steps=1,
                            optimizer={"params": {"lr": 0, "weight_decay": 0}},
                            penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        self.assertEqual(self.json_of("train", again)["eval_loss"], answer["eval_loss"])
        # The masters round to what forward computes with.
        self.json_of("checkpoint", "export", self.path("store"), self.path("masters"), "--dtype", "fp32")
        load = self.transformers.AutoModelForCausalLM.from_pretrained
        weights, masters = load(self.path("out"), dtype="auto"), load(self.path("masters"), dtype="auto")
        self.assertEqual(masters.dtype, self.torch.float32)
        differ = 0
        for a, b in zip(weights.parameters(), masters.parameters()):
            differ += int((a.float() != b).sum())
            self.assertLess(((a.float() - b).abs() / b.abs().clamp(min=1e-30)).max().item(), 2.0**-8 * 1.01)
        self.assertGreater(differ, 1000)

    def test_refuses_folders_that_do_not_suit(self):
        self.model("llama", "llama", self.torch.float32)
        for name in ("model.safetensors", "config.json"):
            broken = self.folder / ("without_" + name)
            shutil.copytree(self.path("llama"), broken)
            (broken / name).unlink()
            self.run_command("train", self.config(model=str(broken)), code=USAGE)
            self.assertFalse((self.folder / "store").exists())
        self.json_of("train", self.config(max_steps=1))
        self.run_command("checkpoint", "export", self.path("store"), self.path("llama"), code=USAGE)  # is there already
        self.run_command("checkpoint", "export", self.path("store"), code=USAGE)
        done = self.run_command("checkpoint", "import", self.path("llama"), "--store", self.path("store"), code=USAGE)
        self.assertIn("--force", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
