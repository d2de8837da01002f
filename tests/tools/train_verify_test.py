#!/usr/bin/env python3
"""`penstock verify`: every bit of a tiered run against the plain loop.

Usage: train_verify_test.py PENSTOCK [CLASS].
"""
import json
import os
import unittest

from train_support import TINY, TrainCase


class Verify(TrainCase):
    """Every bit of a tiered run against the plain loop."""

    def test_optimizers_moments_precisions_and_placements_leave_the_bits_of_the_plain_loop(self):
        (self.folder / "dropout.json").write_text(
            json.dumps({**TINY, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}))
        shared = dict(model=self.path("dropout.json"), gradient_accumulation_steps=3, eval_every=3, eval_batches=2,
                      held_out_share=0.2)
        on_drives, in_host = {"host_state_share": 0, "weights": "nvme"}, {"host_state_share": 1, "weights": "host"}
        frozen = [{"pattern": "h.0.", "frozen": True}, {"pattern": "wpe", "frozen": True}, {"pattern": "mlp", "lr": 0.05}]
        for name, changes in {
                "AdamW on drives, a frozen block": dict(parameters=frozen, penstock=on_drives, gradient_clipping=0.5),
                "AdamW, int8, keeping": dict(penstock={**in_host, "moments": "int8", "activations": "keep",
                                                       "micro_batch_group": 2}),
                "Lion, bf16 moments": dict(optimizer={"type": "Lion", "params": {"lr": 1e-3}},
                                           penstock={"host_state_share": 0.5, "moments": "bf16"}),
                "SGD in fp32, not clipped": dict(optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
                                                 precision="fp32", gradient_clipping=0, penstock=on_drives),
                "fp16 that overflows": dict(precision="fp16", fp16={"initial_scale_power": 26, "hysteresis": 1},
                                            penstock=on_drives)}.items():
            with self.subTest(name):
                answer = self.json_of("verify", self.config(**shared, **changes), "--steps", 8)
                self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
                self.assertGreater(answer["words_compared"], 200_000)
                self.assertLess(answer["log"][-1]["tiered_loss"], answer["log"][0]["tiered_loss"])
                self.assertFalse((self.folder / "store").exists())

    def test_the_grid_goes_through_every_placement(self):
        config = self.config(gradient_accumulation_steps=1, penstock={"host_budget": "1GiB"})
        answer = self.json_of("verify", config, "--grid", "--steps", 1)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
        names = [row["placement"] for row in answer["placements"]]
        on_the_device_alone = 2
        self.assertEqual(len(set(names)), 6 * (6 * 2 + on_the_device_alone))
        self.assertIn("gradients spilled; offload; on the host device; groups of 1", names)
        self.assertIn("all on the device; keep; on the host device; groups of 1", names)
        self.assertGreater(answer["words_compared"], len(names) * 200_000)
        self.assertFalse((self.folder / "store").exists())

    def test_the_run_itself_is_left_alone(self):
        self.json_of("train", self.config(max_steps=2))
        answer = self.json_of("verify", self.config(max_steps=2), "--steps", 3)
        self.assertEqual(answer["words_different"], 0)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store"))["step"], 2)
        self.assertEqual(os.listdir(self.folder / "store"), ["rank0.tiles"])
        self.assertEqual(len(self.log()), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
