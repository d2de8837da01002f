#!/usr/bin/env python3
"""From a file of chats to a training step, by the command alone.

Usage: finetune_test.py [CASE...], with PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 where something is absent.
"""
import json
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import manual_page
from data_support import VOCABULARY, Folders, chat, model_folder, write_lines
from machine_support import machine_profile
from penstock import Refusal, Run, train
from penstock.data.prepared import PreparedSet

COMMAND = Path(os.environ["PENSTOCK_COMMAND"])
if not COMMAND.with_name("penstock-trainer").exists():
    print("skipped: this build has no trainer")
    sys.exit(77)
CHATS = [chat(f"What is {i} and {i}?", f"It is {2 * i}.", "Sure?", "Quite " * (1 + i % 5) + "sure.") for i in range(40)]


class Command(Folders):
    beside = COMMAND.parent  # /tmp may be a tmpfs, where no store can be

    def setUp(self):
        super().setUp()
        self.model = model_folder(self.folder / "model", "chatml")
        torch.manual_seed(5)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False)
        self.plain = transformers.LlamaForCausalLM(config)
        self.plain.save_pretrained(self.model)
        self.chats = write_lines(self.folder / "chats.jsonl", CHATS)

    def penstock(self, *words, code=0, **more):
        env = {**os.environ, "PENSTOCK_PYTHON": sys.executable, **more}
        ended = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, env=env)
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended

    def prepared(self, out, *options):
        self.penstock("data", self.chats, "--model", self.model, "--out", self.folder / out, *options)
        return PreparedSet(self.folder / out)


class FromChatsToSteps(Command):
    def train(self, name, data, rows, *more, precision="fp32", code=0):
        config = {"model": str(self.model), "data": [{"path": str(data)}], "sequence_length": 128, "max_steps": 1,
                  "train_micro_batch_size_per_gpu": rows, "gradient_accumulation_steps": 1, "precision": precision,
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": {"type": "constant"}, "eval_every": 1,
                  "penstock": {"stores": [str(self.folder / name)], "run": str(self.folder / f"{name}.run"),
                               "host_budget": "1GiB", "machine": machine_profile(COMMAND)}}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(config))
        return self.penstock("train", path, *more, code=code)

    def log(self, name):
        return [json.loads(line) for line in (self.folder / f"{name}.run" / "log.jsonl").read_text().splitlines()]

    def loss_of(self, found, part):
        """transformers' loss over a part of a set, one document after another."""
        total, count, entry = 0.0, 0, found.manifest["sets"][0][part]
        for row in range(entry["first_row"], entry["first_row"] + entry["rows"]):
            for number in found.row(row):
                tokens, learnt = (torch.tensor(x.astype("int64")) for x in found.document(int(number)))
                with torch.no_grad():
                    logits = self.plain(tokens[None]).logits[0, :-1]
                wanted = torch.where(learnt[1:] > 0, tokens[1:], -100)
                total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=-100).item()
                count += int((wanted >= 0).sum())
        return total / count

    def test_the_loss_is_that_of_transformers_packed_or_padded(self):
        for layout in ("packed", "padded"):
            with self.subTest(layout):
                found = self.prepared(layout, "--layout", layout, "--length", 128, "--validation", 0.2)
                self.train(f"{layout}-store", self.folder / layout, found.manifest["sets"][0]["train"]["rows"])
                [line] = self.log(f"{layout}-store")
                self.assertAlmostEqual(line["loss"] / self.loss_of(found, "train"), 1, delta=2e-6)
                self.assertEqual(line["eval_tokens"], sum(
                    int(found.document(int(i))[1].sum()) for row in range(found.manifest["rows"])
                    if row >= found.manifest["sets"][0]["validation"]["first_row"] for i in found.row(row)))

    def test_a_run_goes_on_with_the_data_it_began_with(self):
        found = self.prepared("set", "--length", 128)
        self.train("store", self.folder / "set", 1)
        config = json.loads((self.folder / "store.run" / "config.json").read_text())
        self.assertEqual(config["data"][0]["hash"], found.manifest["hash"])
        self.penstock("data", self.chats, "--model", self.model, "--out", self.folder / "set", "--length", 64, "--force")
        ended = self.penstock("train", "--store", self.folder / "store", "--steps", 2, code=2)
        self.assertIn(f"the run was told {found.manifest['hash']}", ended.stderr)

    def test_rows_that_do_not_fit_are_refused(self):
        self.prepared("set", "--length", 200)
        self.assertIn("rows of 200 tokens do not fit into samples of 128",
                      self.train("store", self.folder / "set", 1, code=2).stderr)


class SamplesOfRuns(Command):
    """A run answers as transformers does with what is exported of it."""

    CHATS = ["What is 3 and 3?", {"messages": [{"role": "user", "content": "What is 5 and 5?"},
                                              {"role": "assistant", "content": "It is 10."},
                                              {"role": "user", "content": "Sure?"}]}]

    def model_of(self, kind):
        torch.manual_seed(7)
        small = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=512)
        t = transformers
        model = {"llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**small)),
                 "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**small, head_dim=32, tie_word_embeddings=True)),
                 "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY,
                                                                n_positions=512, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))}
        family = {"llama": "mistral", "qwen3": "qwen3", "gpt2": "chatml"}[kind]
        folder = model_folder(self.folder / kind, family)
        end = json.loads((folder / "config.json").read_text())["eos_token_id"]
        made = model[kind]()
        made.config.eos_token_id = made.generation_config.eos_token_id = end
        made.config.bos_token_id = made.generation_config.bos_token_id = None
        made.save_pretrained(folder)
        return folder

    def answers_of(self, folder, prompts, new_tokens):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for prompt in prompts:
            if isinstance(prompt, dict) and "text" in prompt:
                asked = tokenizer(prompt["text"], return_tensors="pt")
            else:
                chat = prompt["messages"] if isinstance(prompt, dict) else [{"role": "user", "content": prompt}]
                asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
            asked.pop("token_type_ids", None)
            out = model.generate(**asked, max_new_tokens=new_tokens, do_sample=False)[0].tolist()
            first = asked["input_ids"].shape[1]
            text = tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            before = tokenizer.decode(out[:first], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            ends = out[-1] == tokenizer.eos_token_id
            yield out[first:-1] if ends else out[first:], text[len(before):], ends

    def test_the_export_answers_in_transformers_as_the_run_did(self):
        for kind, steps in (("qwen3", 40), ("gpt2", 40), ("llama", 40)):
            with self.subTest(kind):
                folder, prompts = self.model_of(kind), [*self.CHATS, {"text": "Of Mans First"}]
                self.penstock("data", self.chats, "--model", folder, "--out", self.folder / f"{kind}-set", "--length", 128)
                config = {"model": str(folder), "data": str(self.folder / f"{kind}-set"), "sequence_length": 128,
                          "max_steps": steps, "precision": "fp32", "train_micro_batch_size_per_gpu": 4,
                          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "gradient_accumulation_steps": 1,
                          "sample_every": steps, "samples": {"prompts": prompts, "max_new_tokens": 40},
                          "penstock": {"stores": [str(self.folder / f"{kind}-store")], "run": str(self.folder / f"{kind}-run"),
                                       "host_budget": "1GiB", "machine": machine_profile(COMMAND), "weights": "nvme", "host_state_share": 0}}
                path = self.folder / "config.json"
                path.write_text(json.dumps(config))
                self.penstock("train", path)
                samples = Run(self.folder / f"{kind}-run").log[-1]["samples"]
                out = self.folder / f"{kind}-out"
                self.penstock("checkpoint", "export", self.folder / f"{kind}-store", out)
                expected = list(self.answers_of(out, prompts, 40))
                self.assertEqual([(s["tokens"], s["text"], s["ended"]) for s in samples], expected)
                self.assertTrue(any(ended for _, _, ended in expected))  # it has learnt how an answer ends


class Verbs(Command):
    def test_data_and_show_are_of_the_command(self):
        self.prepared("set")
        ended = self.penstock("data", "show", self.folder / "set", 2)
        self.assertIn("[[It is 0.<|im_end|>]]", ended.stdout)
        self.assertEqual(ended.stdout.count("--- document"), 2)
        answer = json.loads(self.penstock("data", "show", self.folder / "set", "--json").stdout)
        self.assertEqual(answer["schema"], "penstock.data.show/1")
        self.assertIn("--turns", self.penstock("data", "--help").stdout)
        self.assertIn("--part", self.penstock("data", "show", "--help").stdout)

    def test_what_is_missing_is_said(self):
        ended = self.penstock("data", self.chats, "--model", self.model, "--out", self.folder / "x", code=2,
                              PENSTOCK_PYTHON="/nonexistent/python")
        self.assertIn("start /nonexistent/python", ended.stderr)
        bare = self.folder / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        for verb in (("data", self.chats, "--model", self.model, "--out", self.folder / "x"),
                     ("data", "show", self.folder)):
            ended = self.penstock(*verb, code=4, PENSTOCK_PYTHON=str(bare), PYTHONPATH="")
            self.assertIn("pip install", ended.stderr)
            self.assertNotIn("Traceback", ended.stderr)

    def test_flags_are_refused_as_by_other_verbs(self):
        self.assertIn("--turns", self.penstock("data", self.chats, "--turn", "last", code=2).stderr)
        self.assertIn("no files are given", self.penstock("data", "--model", self.model, code=2).stderr)


class ManualPage(Folders):
    """What penstock-finetune(1) tells a new user, done as it says: 200 made-up chats, a small Qwen."""

    beside = COMMAND.parent
    PAGE = Path(__file__).parent.parent.parent / "tools" / "manual" / "penstock-finetune.1"

    def test_leads_from_chats_to_answers(self):
        rng = random.Random(1)
        animals, places = "owl bear fox hare wolf lynx otter heron".split(), "wood river hill field".split()
        pairs = [(rng.choice(animals), rng.choice(places)) for _ in range(200)]
        write_lines(self.folder / "chats.jsonl", [
            chat(f"Where does the {a} of the {p} sleep?", f"The {a} sleeps by the {p}.", "And eat?",
                 f"The {a} eats by the {p} too.") for a, p in pairs])
        model = model_folder(self.folder / "model", "qwen3")
        torch.manual_seed(1)
        config = transformers.Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, max_position_embeddings=2048, tie_word_embeddings=True,
            eos_token_id=json.loads((model / "config.json").read_text())["eos_token_id"])
        transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(model)
        env = {**os.environ, "PENSTOCK_PYTHON": sys.executable, "OMP_WAIT_POLICY": "PASSIVE",
               "PATH": f"{COMMAND.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        said, everything, everything_else = {}, "", ""
        for name, block in manual_page.blocks(self.PAGE.read_text()):
            if name:
                (self.folder / name).write_text(block + "\n")
            for line in block.splitlines() if block.startswith("$ ") else ():
                words = line.removeprefix("$ ")
                ended = subprocess.run(words, shell=True, cwd=self.folder, env=env, capture_output=True, text=True)
                self.assertEqual(ended.returncode, 0, f"{words}\n{ended.stdout}{ended.stderr}")
                said[" ".join(words.split()[:2])] = ended.stdout
                everything += ended.stdout
                everything_else += ended.stderr
        self.assertEqual(list(said), ["penstock data", "penstock train", "penstock checkpoint", "penstock watch",
                                      "penstock report", "python3 ask.py", "penstock generate"])
        log = Run(self.folder / "run").columns()
        self.assertLess(log["loss"][-1], log["loss"][0] / 4)
        self.assertIn(f"step {len(log['step'])} of {len(log['step'])}", said["penstock watch"])
        trained = "169408 parameters, of which 19456 (11.48 %) are trained"
        self.assertIn(trained, self.PAGE.read_text())
        self.assertIn(trained, everything)
        # Adapters learn too; they load beside the model, and compute what the model does that has them added.
        log = Run(self.folder / "lora-run").columns()
        self.assertLess(log["loss"][-1], 0.9 * log["loss"][0])  # the frozen weights are random
        base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        merged = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "lora-answers", dtype=torch.float32)
        tokens = torch.arange(3, 40)[None]
        with torch.no_grad():
            frozen = base(tokens).logits
            adapted = peft.PeftModel.from_pretrained(base, self.folder / "adapter")(tokens).logits
            merged = merged(tokens).logits
        self.assertLess((adapted - merged).abs().max(), 0.02 * (adapted - frozen).abs().max())  # weights are bf16
        sampled = Run(self.folder / "run").log[-1]["samples"][0]
        self.assertEqual(said["penstock generate"], f"{sampled['prompt']} => {sampled['text']}\n")
        self.assertIn("step 40: samples", everything_else)
        # Which owl sleeps where is a matter of the last bits; that it is a sentence of the chats is not.
        self.assertRegex(said["python3 ask.py"].strip().splitlines()[-1],
                         rf"^The ({'|'.join(animals)}) (sleeps|eats) by the ({'|'.join(places)})( too)?\.$")


class Runs(Command):
    """penstock.train and penstock.Run, and what the command makes of the same folder."""

    def setUp(self):
        super().setUp()
        os.environ["PENSTOCK_COMMAND"] = str(COMMAND)
        self.prepared("set", "--length", 128, "--validation", 0.2)

    def test_are_trained_from_python(self):
        config = {"model": str(self.model), "data": [{"path": str(self.folder / "set")}], "sequence_length": 128,
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                  "penstock": {"stores": [str(self.folder / "store")], "host_budget": "1GiB", "machine": machine_profile(COMMAND)}}
        run = train(config, run=self.folder / "run", max_steps=6, eval_every=3, optimizer={"params": {"weight_decay": 0.0}})
        columns = run.columns()
        self.assertEqual(columns["step"], [1, 2, 3, 4, 5, 6])
        self.assertLess(columns["loss"][-1], columns["loss"][0])
        self.assertEqual([loss is not None for loss in columns["eval_loss"]], [False, False, True] * 2)
        self.assertEqual(run.config["optimizer"]["params"]["lr"], 1e-2)  # sections are merged
        self.assertEqual(run.config["optimizer"]["params"]["weight_decay"], 0.0)
        self.assertEqual(len(Run(self.folder / "run").log), 6)
        again = train(config, run=self.folder / "run", max_steps=8)
        self.assertEqual(again.columns()["step"], list(range(1, 9)))

        exported = transformers.LlamaForCausalLM.from_pretrained(again.export(self.folder / "exported"))
        self.assertFalse(torch.equal(exported.lm_head.weight.float(), self.plain.lm_head.weight))

        page = self.folder / "run" / "report.html"
        self.assertEqual(self.penstock("report", self.folder / "run").stdout, f"{page}\n")
        self.assertIn("8 of 8", page.read_text())
        self.assertEqual(self.penstock("watch", self.folder / "run").stdout.count("step "), 8)
        self.assertIn("step 8 of 8", self.penstock("watch", self.folder / "run", "--once").stdout)

    def test_are_refused_with_the_commands_own_sentence(self):
        with self.assertRaises(Refusal) as caught:
            train({"modle": "x"}, run=self.folder / "run")
        self.assertIn("modle", caught.exception.message)
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("no such folder", self.penstock("report", self.folder / "absent", code=2).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
