#!/usr/bin/env python3
"""What `penstock doctor --measure` finds about computing, in the forecast of a run.

Usage: train_doctor_test.py PENSTOCK [CLASS].
"""
import json
import unittest
from pathlib import Path

from train_support import TrainCase


class Doctor(TrainCase):
    def test_measured_compute_is_in_the_forecast(self):
        profile = self.path("profile.json")
        measured = self.json_of("doctor", "--measure", "--profile", profile)["measured"]
        self.assertGreater(measured["device_flops"], 1e8)
        least, most = measured["device_flops_range"]
        self.assertTrue(least <= measured["device_flops"] <= most)
        self.assertEqual(measured["profile_path"], profile)
        kept = json.loads(Path(profile).read_text())
        self.assertEqual((kept["device_flops"], kept["devices"]), (measured["device_flops"], 0))
        kept["drives"] = [{"path": "/", "device": "any", "mix_curve": [[0, 1.0], [1, 2.0]]}]
        Path(profile).write_text(json.dumps(kept))
        plan = self.json_of("plan", "--model", "gpt2", "--machine", profile, "--tokens", "1024")
        self.assertEqual(plan["unknown_rates"], [])
        # Forward and backward are 6 flops a parameter and token, attention and the head's second pass besides.
        floor_s = 6 * 1024 * plan["model"]["parameters"] / measured["device_flops"]
        self.assertTrue(floor_s < plan["lanes"]["compute"] < 2 * floor_s, (floor_s, plan["lanes"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
