#!/usr/bin/env python3
"""What a run holds out: its loss, by sets, and how a run ends early by it.

Usage: train_evaluation_test.py PENSTOCK [CLASS].
"""
import json
import math
import unittest

from train_support import USAGE, TrainCase


class Evaluation(TrainCase):
    def test_of_several_sets_each_has_a_loss_of_its_own(self):
        (self.folder / "numbers.txt").write_text(" ".join(str(i * i) for i in range(1000)))
        sets = [self.path("text.txt"), self.path("numbers.txt")]
        # With a rate of 0, whatever is trained on leaves the weights as they began.
        same = {"held_out_share": 0.2, "eval_every": 1, "eval_batches": 3, "max_steps": 1,
                "optimizer": {"type": "AdamW", "params": {"lr": 0}}}
        last = self.json_of("train", self.config(data=[{"path": path} for path in sets], **same))
        entry = self.log()[-1]
        for number, one in enumerate(sets):
            places = {"stores": [self.path(f"of{number}")], "run": self.path(f"run{number}")}
            self.json_of("train", self.config(data=one, penstock=places, **same))
            alone = self.log(f"run{number}")[-1]
            self.assertEqual(entry["eval_sets"][number]["loss"], alone["eval_loss"])
            self.assertNotIn("eval_sets", alone)
        self.assertEqual([one["set"] for one in entry["eval_sets"]], sets)
        self.assertEqual([one["tokens"] for one in entry["eval_sets"]], [3 * 2 * 16] * 2)
        self.assertEqual(entry["eval_tokens"], 2 * 3 * 2 * 16)
        self.assertAlmostEqual(sum(one["loss"] for one in entry["eval_sets"]) / 2, entry["eval_loss"], places=9)
        self.assertEqual(last["eval_loss"], entry["eval_loss"])

    def test_it_is_the_loss_of_what_is_held_out_and_changes_no_bit_of_the_training(self):
        self.json_of("train", self.config(held_out_share=0.2))
        evaluated = self.config(held_out_share=0.2, eval_every=2, eval_batches=3,
                                penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        answer = self.json_of("train", evaluated)
        plain, log = self.log(), self.log("run2")
        self.assertEqual([step["loss"] for step in plain], [step["loss"] for step in log])
        self.assertEqual([step["grad_norm"] for step in plain], [step["grad_norm"] for step in log])
        self.assertEqual(["eval_loss" in step for step in log], [False, True, False, True])
        self.assertEqual(log[1]["eval_tokens"], 3 * 2 * 16)
        self.assertEqual(answer["eval_loss"], log[3]["eval_loss"])
        self.assertAlmostEqual(log[3]["eval_perplexity"], math.exp(log[3]["eval_loss"]))
        self.assertLess(log[3]["eval_loss"], log[1]["eval_loss"])
        self.assertNotIn("eval_sets", log[1])
        # One that is stopped and goes on evaluates the same.
        self.json_of("train", self.config(held_out_share=0.2, eval_every=2, eval_batches=3, max_steps=3,
                                          penstock={"stores": [self.path("store3")], "run": self.path("run3")}))
        self.json_of("train", "--store", self.path("store3"), "--steps", 4)
        self.assertEqual(self.log("run3")[3]["eval_loss"], log[3]["eval_loss"])
        for store in ("2", "3"):
            self.export(self.path("store"), "a" + store)
            self.export(self.path("store" + store), "b" + store)
            self.assertEqual(self.weights("a" + store), self.weights("b" + store))

    def test_a_run_that_does_not_become_better_ends_early(self):
        # A rate at which the loss rises after a while.
        early = dict(held_out_share=0.2, eval_every=1, max_steps=40, early_stopping={"patience": 2},
                     optimizer={"type": "AdamW", "params": {"lr": 0.2}})
        done = self.run_command("train", self.config(**early), "--json")
        losses = [step["eval_loss"] for step in self.log()]
        self.assertTrue(json.loads(done.stdout)["stopped_early"])
        self.assertLess(len(losses), 40)
        self.assertGreaterEqual(min(losses[-2:]), min(losses[:-2]))
        for i in range(2, len(losses) - 1):
            self.assertLess(min(losses[i - 1:i + 1]), min(losses[:i - 1]), f"it should have ended after step {i + 1}")
        self.assertEqual([bool(step.get("stopped_early")) for step in self.log()], [False] * (len(losses) - 1) + [True])
        self.assertIn("stopped early: 2 evaluations without a lower loss", done.stderr)
        # Started again it stays there; one that is stopped on the way ends at the same step.
        self.assertIn("where the run stopped early", self.run_command("train", self.config(**early)).stdout)
        ours = {"stores": [self.path("store2")], "run": self.path("run2")}
        for until in [*range(1, len(losses)), 40]:
            self.json_of("train", self.config(**early, penstock=ours), "--steps", until)
        self.assertEqual([step["eval_loss"] for step in self.log("run2")], losses)
        done = self.run_command("train", self.config(**{**early, "eval_every": 0}), code=USAGE)
        self.assertIn("no step is evaluated", done.stderr)

    def test_nothing_held_out_cannot_be_evaluated(self):
        done = self.run_command("train", self.config(held_out_share=0, eval_every=2), code=USAGE)
        self.assertIn("held_out_share", done.stderr)

    def export(self, store, name):
        return self.json_of("checkpoint", "export", store, self.path(name), "--dtype", "fp32")

    def weights(self, name):
        return (self.folder / name / "model.safetensors").read_bytes()


if __name__ == "__main__":
    unittest.main(verbosity=2)
