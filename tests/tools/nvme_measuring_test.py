#!/usr/bin/env python3
"""`penstock nvme bench --steady` and `nvme tune` on a drive, to their ends: what they say is what was measured, and what a
profile keeps.

Usage: nvme_measuring_test.py PENSTOCK.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PENSTOCK = Path(sys.argv.pop(1)).resolve()


class Measuring(unittest.TestCase):
    def setUp(self):
        # Beside the build: /tmp may be a tmpfs.
        self.folder = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def nvme(self, *arguments):
        done = subprocess.run([PENSTOCK, "nvme", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "XDG_CONFIG_HOME": str(self.folder / "config")})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def drive_of_profile(self):
        profile = json.loads((self.folder / "config" / "penstock" / "profile.json").read_text())
        return next(drive for drive in profile["drives"] if drive["path"] == str(self.folder))

    def check_steady(self, found):
        self.assertEqual(found["path"], str(self.folder))
        self.assertLessEqual(found["written_bytes"], 1 << 30)
        fell_after = found["fell_after_bytes"]
        self.assertGreater(found["written_bytes"], 1 << 29 if fell_after is None else fell_after)
        times, rates = zip(*found["rate_over_time"], strict=True)
        self.assertEqual(list(times), sorted(times))
        for rate in (found["burst_gbps"], found["sustained_gbps"]):
            self.assertTrue(min(rates) * 0.999 <= rate <= max(rates) * 1.001, (rate, min(rates), max(rates)))
        # Over all of the time, the rates make up what was written.
        spans = [end - begin for begin, end in zip((0, *times), times, strict=False)]
        written = sum(span * rate for span, rate in zip(spans, rates, strict=True)) * 1e9
        self.assertAlmostEqual(written / found["written_bytes"], 1, delta=0.1)
        shares = [share for share, _ in found["mix_curve"]]
        self.assertEqual((shares[0], shares[-1], shares), (0, 1, sorted(shares)))
        self.assertEqual(found["mix_curve"][0][1], found["sustained_gbps"], "where nothing is read")
        self.assertGreater(min(rate for _, rate in found["mix_curve"]), 0)

    def test_steady_rates_go_into_the_profile_of_a_drive_that_is_in_it(self):
        self.nvme("probe", self.folder, "--duration", "100ms", "--size", "256MiB")
        self.assertIsNone(self.drive_of_profile().get("sustained_mix_curve"))
        burst = self.drive_of_profile()["mix_curve"]
        found = json.loads(self.nvme("bench", self.folder, "--steady", "--write-budget", "1GiB", "--json"))["steady"][0]
        self.check_steady(found)
        self.assertTrue(found["in_profile"])
        kept = self.drive_of_profile()
        self.assertEqual(kept["mix_curve"], burst)
        self.assertEqual(kept["sustained_mix_curve"], found["mix_curve"])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["config"], "scratch is gone")

    def test_tuning_compares_layouts_and_engines_and_names_the_smallest_of_the_fastest(self):
        answer = json.loads(self.nvme("tune", self.folder, "--duration", 4, "--size", "256MiB", "--json"))
        layouts = answer["curve"]
        best = {key: answer["best"][key] for key in ("block_bytes", "depth", "gbps")}
        self.assertIn(best, layouts)
        as_good = [one for one in layouts if one["gbps"] >= 0.98 * max(each["gbps"] for each in layouts)]
        self.assertEqual(best, min(as_good, key=lambda one: (one["block_bytes"] * one["depth"], -one["gbps"])))
        engines = {one["engine"]: one for one in answer["engines"]}
        self.assertEqual(set(engines), {"io_uring", "libaio", "threads"})
        for one in engines.values():
            self.assertEqual(one["gbps"] > 0, not one["refusal"], one)


if __name__ == "__main__":
    unittest.main(verbosity=2)
