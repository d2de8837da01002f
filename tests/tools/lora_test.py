#!/usr/bin/env python3
"""LoRA of `penstock train` against PEFT and torch, and its files against PEFT's.

Usage: lora_test.py PENSTOCK [CLASS]. Ends with 77 where torch, transformers or peft is absent.
"""
import json
import math
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

try:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import peft
    import torch
    import transformers
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from machine_support import machine_profile
from train_support import PENSTOCK, TEXT, USAGE, TrainCase

LENGTH, STEPS = 16, 20
LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=257, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)


# Of the normal distribution: QLoRA, appendix E.
QUANTILES = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
             -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
             0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def through_nf4(weight):
    """What is left of a matrix in blocks of 64 codes."""
    blocks = weight.detach().float().reshape(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    quantiles = torch.tensor(QUANTILES)
    middles = (quantiles[1:].double() + quantiles[:-1].double()).div(2).float()
    return (quantiles[torch.bucketize(blocks * (1 / largest), middles)] * largest).bfloat16().reshape(weight.shape)


def through_int8(weight):
    blocks = weight.detach().float().reshape(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    factor = torch.tensor(127.0).div(largest)  # 127 / largest is two roundings in torch
    return (torch.round(blocks * factor) * largest / 127).bfloat16().reshape(weight.shape)


class LoraCase(TrainCase):
    def setUp(self):
        super().setUp()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        text = (TEXT * 2)[:8 * LENGTH + 1].encode()
        (self.folder / "all.txt").write_bytes(text)
        self.samples = [list(text[i * LENGTH:i * LENGTH + LENGTH + 1]) for i in range(8)]

    def base(self, kind, dtype=torch.float32):
        """A model in a folder, with biases and norms that are no zeros and ones."""
        t = transformers
        torch.manual_seed(5)
        config = {"llama": lambda: t.LlamaConfig(**LLAMA),
                  "qwen2": lambda: t.Qwen2Config(**LLAMA, tie_word_embeddings=True),
                  "gpt2": lambda: t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=257, n_positions=64,
                                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)}[kind]()
        model = t.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        model.to(dtype).save_pretrained(self.path(kind))
        return self.path(kind)

    def load(self, folder, dtype=torch.float32):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def lora(self, name, model, lora, **changes):
        """A run's config; every step learns from all samples."""
        return self.config(**{
            "model": model, "data": self.path("all.txt"), "held_out_share": 0, "max_steps": STEPS, "precision": "fp32",
            "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "lora": lora,
            "optimizer": {"params": {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "scheduler": {"type": "constant"}, **changes,
            "penstock": {"stores": [self.path(name)], "run": self.path(name + "_run"),
                         "machine": machine_profile(PENSTOCK), **changes.get("penstock", {})}})

    def export(self, store, name, *more):
        return self.json_of("checkpoint", "export", self.path(store), self.path(name), *more)

    def logits(self, model):
        tokens = torch.arange(48).reshape(2, 24) * 5 % 257
        with torch.no_grad():
            return model.eval()(input_ids=tokens).logits.float()

    def with_peft(self, folder, adapter, dtype=torch.float32):
        return peft.PeftModel.from_pretrained(self.load(folder, dtype), self.path(adapter), is_trainable=True)

    def train_with_torch(self, model, steps):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW([{"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
                                       {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0}],
                                      lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
        tokens, targets = (torch.tensor([sample[shift:shift + LENGTH] for sample in self.samples]) for shift in (0, 1))
        losses = []
        for _ in range(steps):
            logits = model(input_ids=tokens).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 257), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def tensors(self, folder):
        with safe_open(self.folder / folder / "adapter_model.safetensors", "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}

    def relative_difference(self, ours, theirs):
        self.assertEqual(set(ours), set(theirs))
        squares = sum(b.double().square().sum().item() for b in theirs.values())
        apart = sum((ours[key].double() - b.double()).square().sum().item() for key, b in theirs.items())
        return math.sqrt(apart / squares)


class FollowsPeft(LoraCase):
    CASES = {
        "llama": ("llama", {"rank": 4, "alpha": 8}),
        "llama, chosen, rsLoRA": ("llama", {"rank": 4, "alpha": 6, "rslora": True, "targets": r".*\.(q|v|down)_proj"}),
        "llama, head and embedding": ("llama", {"rank": 2, "targets": ["q_proj", "k_proj"],
                                                "modules_to_save": ["embed_tokens", "lm_head"]}),
        "gpt2, Conv1D": ("gpt2", {"rank": 3, "alpha": 12, "targets": ["c_attn", "mlp.c_proj"]}),
        "qwen2, biases": ("qwen2", {"rank": 4, "targets": ["q_proj", "o_proj", "gate_proj"]}),
    }

    def test_twenty_steps_follow_peft_and_files_go_both_ways(self):
        for number, (name, (kind, lora)) in enumerate(self.CASES.items()):
            with self.subTest(name):
                base, store = self.base(kind), f"store{number}"
                # What training begins with, as PEFT reads it.
                begun = self.json_of("checkpoint", "import", base, "--config", self.lora(store, base, lora))
                self.assertGreater(begun["parameters"], begun["trained_parameters"])
                self.export(store, f"begin{number}", "--adapter")
                theirs = self.with_peft(base, f"begin{number}")
                trained = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
                self.assertEqual(trained, begun["trained_parameters"])
                self.assertTrue(torch.equal(self.logits(theirs), self.logits(self.load(base))), "B is zero")

                losses = self.train_with_torch(theirs.train(), STEPS)
                self.json_of("train", self.lora(store, base, lora))
                log = self.log(store + "_run")
                for ours, other in zip((step["loss"] for step in log), losses):
                    self.assertLess(abs(ours - other), 1e-5)
                self.assertLess(losses[-1], 0.9 * losses[0])
                self.export(store, f"out{number}")  # an adapter is what is written of such a run
                theirs.save_pretrained(self.path(f"theirs{number}"))
                apart = self.relative_difference(self.tensors(f"out{number}"), self.tensors(f"theirs{number}"))
                print(f"{name}: adapters apart by {apart:.2e} after {STEPS} steps", flush=True)
                self.assertLess(apart, 1e-5)

                # The adapter in PEFT, and added to the weights, are one model.
                loaded = self.logits(self.with_peft(base, f"out{number}"))
                self.assertEqual(self.export(store, f"merged{number}", "--merged")["kind"], "merged")
                merged = self.logits(self.load(self.path(f"merged{number}")))
                self.assertLess((loaded - merged).abs().max().item(), 1e-5)
                self.assertGreater((loaded - self.logits(self.load(base))).abs().max().item(), 1e-2)

                # PEFT's own adapter in ours: what it has learnt is where another run begins.
                again = f"again{number}"
                self.json_of("train", self.lora(again, base, {"adapter": self.path(f"theirs{number}")}), "--steps", 1)
                theirs_loss = self.train_with_torch(self.with_peft(base, f"theirs{number}").train(), 1)[0]
                self.assertLess(abs(self.log(again + "_run")[0]["loss"] - theirs_loss), 1e-5)
                config = json.loads((self.folder / (again + "_run") / "config.json").read_text())
                self.assertEqual(config["lora"]["rank"], lora["rank"])

    def test_a_begins_as_peft_begins_it(self):
        base = self.base("llama")
        self.json_of("checkpoint", "import", base, "--config", self.lora("store", base, {"rank": 16}))
        self.export("store", "begin", "--adapter")
        torch.manual_seed(3)
        theirs = peft.get_peft_model(self.load(base), peft.LoraConfig(r=16, target_modules="all-linear"))
        theirs.save_pretrained(self.path("theirs"))
        ours, theirs = self.tensors("begin"), self.tensors("theirs")
        self.assertEqual(set(ours), set(theirs))
        for key, their in theirs.items():
            our = ours[key]
            self.assertEqual(our.shape, their.shape)
            if "lora_B" in key:
                self.assertEqual(our.abs().max().item(), 0)
                continue
            bound = 1 / math.sqrt(our.shape[1])  # kaiming_uniform_(a=sqrt(5))
            for values in (our, their):
                self.assertLessEqual(values.abs().max().item(), bound)
                self.assertGreater(values.abs().max().item(), 0.98 * bound)
                # Of a uniform distribution; the mean of n has a deviation of bound / sqrt(3 n).
                self.assertLess(abs(values.mean().item()), 5 * bound / math.sqrt(3 * values.numel()))
                self.assertAlmostEqual(values.std().item(), bound / math.sqrt(3), delta=0.06 * bound)


class Tiers(LoraCase):
    def test_the_bits_are_those_of_a_plain_loop(self):
        bf16 = {"precision": "bf16", "max_steps": 6, "gradient_accumulation_steps": 2}
        for name, kind, lora, changes in (
                ("dropout, base on nvme", "llama", {"rank": 4, "alpha": 8, "dropout": 0.2},
                 {**bf16, "penstock": {"weights": "nvme"}}),
                ("all on nvme, offered room for keeping", "gpt2", {"rank": 4, "dropout": 0.1},
                 {**bf16, "penstock": {"weights": "nvme", "host_state_share": 0, "activations": "keep"}}),
                ("the head too", "llama", {"rank": 4, "targets": ["v_proj"], "modules_to_save": ["lm_head"]}, bf16),
                ("int8 moments, computed again", "qwen2", {"rank": 4, "targets": ["v_proj"]},
                 {**bf16, "penstock": {"moments": "int8", "activations": "recompute"}})):
            with self.subTest(name):
                config = self.lora("store", self.base(kind, torch.bfloat16), lora, **changes)
                answer = self.json_of("verify", config, "--steps", 6)
                self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
                self.assertGreater(answer["words_compared"], 80_000)
                self.assertLess(answer["log"][-1]["tiered_loss"], answer["log"][0]["tiered_loss"])

    def test_a_base_in_codes_is_computed_with_as_the_weights_that_they_stand_for(self):
        base = self.base("llama", torch.bfloat16)
        changes = {"precision": "bf16", "max_steps": 6}
        for code in ("nf4", "int8"):
            with self.subTest(code):
                lora = {"rank": 4, "alpha": 8, "dropout": 0.1, "base": code}
                answer = self.json_of("verify", self.lora(code, base, lora, **changes), "--steps", 6)
                self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
                # B is zero: what is merged is what the codes stand for.
                config = self.lora(code, base, lora, **changes)
                self.json_of("checkpoint", "import", base, "--config", config)
                self.export(code, code + "_begin", "--adapter")
                self.export(code, code + "_weights", "--merged")
                before, after = self.load(base, torch.bfloat16), self.load(self.path(code + "_weights"), torch.bfloat16)
                kept = 0
                for (name, of_base), ours in zip(before.named_parameters(), after.parameters()):
                    if of_base.dim() == 2 and "layers" in name:
                        expected = (through_nf4 if code == "nf4" else through_int8)(of_base)
                        self.assertTrue(torch.equal(ours, expected), name)
                        self.assertFalse(torch.equal(ours, of_base), name)
                    else:
                        kept += 1
                        self.assertTrue(torch.equal(ours, of_base), name)
                self.assertEqual(kept, 2 * 2 + 3)  # norms of the blocks, embedding, last norm, head
                # Training over these weights, at rest in bf16, leaves the same bits.
                for store, model, given in ((code + "_a", base, {"base": code}), (code + "_b", self.path(code + "_weights"), {})):
                    lora = {"adapter": self.path(code + "_begin"), "dropout": 0.1, **given}
                    self.json_of("train", self.lora(store, model, lora, **changes))
                    self.export(store, store + "_out", "--adapter")
                files = [(self.folder / (code + end) / "adapter_model.safetensors").read_bytes() for end in ("_a_out", "_b_out")]
                self.assertEqual(*files)
                self.assertNotEqual(files[0], (self.folder / (code + "_begin") / "adapter_model.safetensors").read_bytes())

    def test_what_codes_stand_for_is_rounded_to_even_where_it_lies_between_two_weights(self):
        model = self.load(self.base("llama"))
        torch.manual_seed(7)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2 and "layers" in name:
                    # Each block's scale is 127 times 3 / 1024: its larger codes stand for numbers of nine bits.
                    codes = torch.randint(-127, 128, parameter.shape)
                    codes.view(-1)[::64] = 127
                    parameter.copy_(codes * 3 / 1024)
        model.save_pretrained(self.path("ties"))
        lora = {"rank": 4, "alpha": 8, "base": "int8"}
        answer = self.json_of("verify", self.lora("ties_store", self.path("ties"), lora, precision="bf16"), "--steps", 2)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))

    def test_the_frozen_base_is_read_once_a_pass_and_nothing_else_is(self):
        # Each block's matrices are tiles of their own size; the adapters are a fraction of them.
        wide = {**LLAMA, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
        torch.manual_seed(5)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**wide)).to(torch.bfloat16).save_pretrained(self.path("wide"))
        base = self.load(self.path("wide"), torch.bfloat16)
        block = 2 * sum(p.numel() for p in base.model.layers[0].parameters())
        head = 2 * sum(p.numel() for m in (base.model.norm, base.lm_head) for p in m.parameters())
        embedding = 2 * base.model.embed_tokens.weight.numel()
        # Forward reads all, and backward ends at the first block with adapters.
        passes = 2 * (4 * block + head) + embedding
        steps = 8
        config = self.lora("store", self.path("wide"), {"rank": 4}, precision="bf16", max_steps=steps,
                           penstock={"weights": "nvme", "host_state_share": 1, "durability": "exit"})
        answer = self.json_of("train", config)
        read = sum(step["nvme_read_bytes"] for step in self.log("store_run")) / steps
        self.assertAlmostEqual(read / passes, 1, delta=0.01)
        planned = answer["planned_bytes_per_parameter"]["read"] * answer["parameters"]
        self.assertAlmostEqual(planned / passes, 1, delta=0.01)
        # Adapters rest in host memory, with their state, as was asked for: it does not take the frozen weights along.
        lines = {line["line"]: line["bytes"] for line in answer["budget"]}
        self.assertIn("resting state", lines)
        self.assertGreater(lines["resting state"], 8 * answer["trained_parameters"])
        self.assertLess(lines["resting weights"], block)

    def test_a_killed_run_goes_on_with_the_same_bits(self):
        base = self.base("llama", torch.bfloat16)
        changes = {"precision": "bf16", "max_steps": 40}
        lora = {"rank": 4, "dropout": 0.1}
        self.json_of("train", self.lora("store", base, lora, **changes))
        whole = {step["step"]: step["loss"] for step in self.log("store_run")}
        config = self.lora("store2", base, lora, **changes, penstock={"durability": "step"})
        log = self.folder / "store2_run" / "log.jsonl"
        for _ in range(3):
            run = subprocess.Popen([PENSTOCK, "train", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
            seen = len(log.read_text().splitlines()) if log.exists() else 0
            while run.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < seen + 5):
                time.sleep(0.01)
            run.send_signal(signal.SIGKILL)
            run.wait(timeout=300)
        self.json_of("train", config)
        resumed = {}
        for line in log.read_text().splitlines():
            step = json.loads(line)
            self.assertEqual(resumed.setdefault(step["step"], step["loss"]), step["loss"])
        self.assertEqual(resumed, whole)
        self.export("store", "a")
        self.export("store2", "b")
        self.assertEqual((self.folder / "a" / "adapter_model.safetensors").read_bytes(),
                         (self.folder / "b" / "adapter_model.safetensors").read_bytes())


class Words(LoraCase):
    def test_what_trains_is_said_and_what_cannot_is_refused(self):
        base = self.base("llama")
        done = self.run_command("train", self.lora("store", base, {"rank": 4}), "--dry-run")
        self.assertRegex(done.stdout, r"[0-9]+ parameters, of which 7424 \([0-9.]+ %\) are trained")
        # Of frozen weights there is no gradient: two of the three products are computed.
        operations = []
        for name, rank in (("whole", 0), ("adapters", 4)):
            self.json_of("train", self.lora(name, base, {"rank": rank}), "--steps", 1)
            [step] = self.log(name + "_run")
            operations.append(step["tflops"] * step["step_s"])
        self.assertAlmostEqual(operations[1] / operations[0], 2 / 3, places=6)
        for lora, said in (({"rank": 4, "targets": ["q_prj"]}, "'q_prj' fits no matrix"),
                           ({"rank": 4, "targets": ["q_prj"]}, "q_proj, k_proj, v_proj, o_proj"),
                           ({"rank": 4, "targets": ["lm_head"]}, "'lm_head' fits no matrix"),
                           ({"rank": 4, "targets": "(q"}, "not a regular expression"),
                           ({"rank": 400}, "at most 64 expected"),
                           ({"alpha": 4}, "lora.rank: is missing"),
                           ({"rank": 4, "modules_to_save": ["norm"]}, "neither embedding nor head"),
                           ({"rnak": 4}, "lora.rank"),
                           ({"adapter": self.path("nowhere")}, "nowhere")):
            with self.subTest(said):
                done = self.run_command("train", self.lora("refused", base, lora), code=USAGE)
                self.assertIn(said, done.stderr)
                self.assertFalse((self.folder / "refused").exists())
        tied = self.lora("refused", self.base("qwen2"), {"rank": 4, "modules_to_save": ["embed_tokens"]})
        self.assertIn("ties them", self.run_command("train", tied, code=USAGE).stderr)

    def test_adapters_that_peft_computes_otherwise_are_refused(self):
        base = self.base("llama")
        model = peft.get_peft_model(self.load(base), peft.LoraConfig(r=4, target_modules=["q_proj"]))
        for key, value in {"use_dora": True, "bias": "all", "rank_pattern": {"q_proj": 8}, "peft_type": "IA3", "r": 0,
                           "layers_to_transform": [1], "target_modules": None}.items():
            with self.subTest(key):
                model.save_pretrained(self.path("bad"))
                path = self.folder / "bad" / "adapter_config.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
                done = self.run_command("train", self.lora("refused", base, {"adapter": self.path("bad")}), code=USAGE)
                self.assertIn(key, done.stderr)
        # Adapters of another model.
        model.save_pretrained(self.path("llama_adapter"))
        done = self.run_command("train", self.lora("refused", self.base("gpt2"), {"adapter": self.path("llama_adapter")}),
                                code=USAGE)
        self.assertIn("q_proj", done.stderr)

    def test_what_is_exported_is_said(self):
        base = self.base("llama")
        self.json_of("train", self.lora("store", base, {"rank": 4}, max_steps=1))
        self.assertEqual(self.export("store", "a")["kind"], "adapter")
        self.run_command("checkpoint", "export", self.path("store"), self.path("b"), "--adapter", "--merged", code=USAGE)
        os.rename(base, base + "_moved")
        self.assertEqual(self.export("store", "c")["kind"], "merged")
        self.json_of("train", self.config(max_steps=1, penstock={"stores": [self.path("plain")]}))
        done = self.run_command("checkpoint", "export", self.path("plain"), self.path("d"), "--merged", code=USAGE)
        self.assertIn("no adapters", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
