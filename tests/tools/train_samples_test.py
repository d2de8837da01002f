#!/usr/bin/env python3
"""What a run answers as it goes on, and `penstock generate`.

Usage: train_samples_test.py PENSTOCK [CLASS].
"""
import json
import os
import subprocess
import unittest

from train_support import PENSTOCK, TEXT, USAGE, TrainCase


class Samples(TrainCase):
    """What a run answers as it goes on. Here bytes are tokens; the tokenizers of models are finetune_test.py's."""

    ASKED = {"prompts": ["Of Mans First ", "the Fruit"], "max_new_tokens": 20}

    def test_they_change_no_bit_of_the_training(self):
        self.json_of("train", self.config())
        ours = {"stores": [self.path("store2")], "run": self.path("run2")}
        done = self.run_command("train", self.config(sample_every=3, samples={**self.ASKED, "temperature": 1}, penstock=ours))
        plain, log = self.log(), self.log("run2")
        for key in ("loss", "grad_norm"):
            self.assertEqual([step[key] for step in plain], [step[key] for step in log])
        self.assertEqual(["samples" in step for step in log], [False, False, True, True])
        for sample, prompt in zip(log[2]["samples"], self.ASKED["prompts"]):
            self.assertEqual(sample["prompt"], prompt)
            self.assertTrue(len(sample["tokens"]) == 20 or sample["ended"])
            self.assertIn(f"{prompt} => ", done.stderr)
        self.assertNotEqual(log[2]["samples"], log[3]["samples"])
        for store in ("store", "store2"):
            self.json_of("checkpoint", "export", self.path(store), self.path(store + "_out"), "--dtype", "fp32")
        self.assertEqual(*((self.folder / f"{store}_out" / "model.safetensors").read_bytes() for store in ("store", "store2")))
        # One that is stopped and goes on draws the same.
        ours = {"stores": [self.path("store3")], "run": self.path("run3")}
        config = self.config(sample_every=3, samples={**self.ASKED, "temperature": 1}, penstock=ours)
        self.json_of("train", config, "--steps", 2)
        self.json_of("train", config)
        self.assertEqual(self.log("run3")[2]["samples"], log[2]["samples"])
        # And so does what is asked afterwards, of a run's folder or its config; the likeliest is asked for by default.
        for source in (self.path("run3"), config):
            answer = self.json_of("generate", source)
            self.assertEqual((answer["step"], answer["samples"]), (4, log[3]["samples"]))
        answer = self.json_of("generate", self.path("run3"), "Brought Death", "--temperature", 0, "--new-tokens", 5)
        [sample] = answer["samples"]
        self.assertEqual((sample["prompt"], len(sample["tokens"])), ("Brought Death", 5))
        # The last answer needs no position: of the model's 64, a prompt of 20 leaves 45 answers.
        [sample] = self.json_of("generate", self.path("run3"), "x" * 20, "--new-tokens", 45)["samples"]
        self.assertTrue(len(sample["tokens"]) == 45 or sample["ended"])

    def test_answers_need_no_data(self):
        self.json_of("train", self.config())
        asked = ("generate", self.path("run"), "Brought Death", "--new-tokens", 5)
        answer = self.json_of(*asked)
        # Of what is likeliest alone, chance has nothing to choose.
        self.assertEqual(self.json_of(*asked, "--temperature", 1, "--top-k", 1), answer)
        self.assertNotEqual(self.json_of(*asked, "--temperature", 50), answer)
        (self.folder / "text.txt").write_text("Something else. " * 200)
        self.assertEqual(self.json_of(*asked), answer)
        (self.folder / "text.txt").unlink()
        self.assertEqual(self.json_of(*asked), answer)
        # Nor any of several files of it.
        config = json.loads((self.folder / "run" / "config.json").read_text())
        (self.folder / "there.txt").write_text(TEXT * 40)
        for data in (["there.txt", "text.txt"], ["text.txt", "there.txt"]):
            config["data"] = [self.path(name) for name in data]
            (self.folder / "run" / "config.json").write_text(json.dumps(config))
            self.assertEqual(self.json_of(*asked), answer)

    def test_a_model_that_no_run_has_trained_is_said_to_be_one(self):
        model = self.folder / "model"
        model.mkdir()
        (self.folder / "tiny.json").rename(model / "config.json")
        done = self.run_command("generate", model, "hi", code=USAGE)
        self.assertIn("a model of Hugging Face's, and no run", done.stderr)
        self.assertIn(f"penstock checkpoint import {model} --store FOLDER", done.stderr)

    def test_it_answers_what_it_has_learnt(self):
        (self.folder / "text.txt").write_text("the quick brown fox. " * 100)
        self.json_of("train", self.config(max_steps=200, sample_every=200, samples={"prompts": ["the quick"], "max_new_tokens": 12},
                                          precision="fp32"))
        [sample] = self.log()[-1]["samples"]
        self.assertEqual(sample["text"], " brown fox. ")

    def test_prompts_come_from_a_file_too_and_draws_have_a_seed_of_their_own(self):
        (self.folder / "prompts.txt").write_text('the Fruit\n\n \t\n"Of Mans First "\r\n{"text": "Brought"}\n')
        for name, more in (("a", {}), ("b", {"seed": 9}), ("c", {"seed": 9})):
            samples = {"prompts": ["whose "], "file": self.path("prompts.txt"), "max_new_tokens": 20, "temperature": 1, **more}
            place = {"stores": [self.path("store-" + name)], "run": self.path(name)}
            self.json_of("train", self.config(sample_every=4, samples=samples, penstock=place))
        drawn = [self.log(name)[-1]["samples"] for name in "abc"]
        self.assertEqual([sample["prompt"] for sample in drawn[0]], ["whose ", "the Fruit", "Of Mans First ", "Brought"])
        self.assertEqual([step["loss"] for step in self.log("a")], [step["loss"] for step in self.log("b")])
        self.assertNotEqual(drawn[0], drawn[1])
        self.assertEqual(drawn[1], drawn[2])
        self.assertEqual(self.json_of("generate", self.path("c"))["samples"], drawn[2])
        self.assertNotEqual(self.json_of("generate", self.path("c"), "--seed", 10)["samples"], drawn[2])
        for content, words in (("", "has no prompts"), ('ok\n{"txt": 1}\n', "line 2: has {"), ('"broken\n', 'line 1: has "broken')):
            (self.folder / "prompts.txt").write_text(content)
            done = self.run_command("train", self.config(sample_every=1, samples={"file": self.path("prompts.txt")}), code=USAGE)
            self.assertIn(words, done.stderr)
        done = self.run_command("train", self.config(sample_every=1, samples={"file": self.path("absent")}), code=USAGE)
        self.assertIn("absent", done.stderr)

    def test_what_cannot_be_asked_is_refused_before_anything_is_made(self):
        for samples, words in (({"top_k": 1}, "samples.prompts: missing"),
                               ({"prompts": []}, "a list of prompts expected"),
                               ({"prompts": [""]}, "has no tokens"),
                               ({"prompts": ["x" * 33]}, "33 tokens, at most those of a micro-batch expected, which are 32"),
                               ({"prompts": ["x" * 20], "max_new_tokens": 46}, "the model has 64 positions"),
                               ({"prompts": [{"messages": [{"role": "user", "content": "x"}]}]}, "takes plain strings, not messages"),
                               ({"prompts": ["x"], "tokenizer": self.path("absent")}, "no such folder"),
                               ({"prompts": [3]}, "a string, "), ({"promts": ["x"]}, "samples.prompts")):
            done = self.run_command("train", self.config(sample_every=2, samples=samples), code=USAGE)
            self.assertIn(words, done.stderr + done.stdout)
        self.assertFalse((self.folder / "store").exists())
        done = self.run_command("generate", self.config(samples=self.ASKED), code=USAGE)
        self.assertIn("has no store", done.stderr)

    def test_what_is_remembered_is_within_the_budget(self):
        asked = dict(sample_every=2, samples={"prompts": ["x"] * 2000, "max_new_tokens": 60})
        planned = self.json_of("train", self.config(**asked), "--dry-run")
        # Keys and values of 60 tokens in 2 layers of 64 bf16, the prompts themselves, and logits.
        self.assertEqual(planned["samples_bytes"], 2000 * (60 * 2 * 2 * 64 * 2 + 64 * 2 + 257 * 6))
        # The least that the same run takes without, to 32 MiB; it varies by less than 16 MiB.
        fits, fits_not = 576, 64
        while fits - fits_not > 32:
            middle = (fits + fits_not) // 2
            done = subprocess.run([PENSTOCK, "train", self.config(), "--dry-run", "--budget", f"host={middle}MiB"],
                                  capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            fits, fits_not = (middle, fits_not) if done.returncode == 0 else (fits, middle)
        done = self.run_command("train", self.config(**asked), "--budget", f"host={fits + 16}MiB", code=3)
        self.assertIn("keys and values of 2000 prompts of up to 1 tokens with 60 new ones need 58.59 MiB", done.stderr)
        self.assertFalse((self.folder / "store" / "rank0.tiles").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
