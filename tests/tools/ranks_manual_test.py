#!/usr/bin/env python3
"""What the README and penstock-ranks(1) show of several ranks, done as they say.

Usage: ranks_manual_test.py PENSTOCK [CLASS].
"""
import json
import re
import shlex
import subprocess
import unittest

import manual_page
from ranks_support import ENVIRON, PENSTOCK, README, TINY, TORCHRUN, RanksCase


class Readme(RanksCase):
    def test_its_lines_for_several_ranks_run(self):
        lines = [line.split("#")[0] for line in README.read_text().splitlines() if "--ranks 2" in line or line.startswith("torchrun") and "--nnodes" not in line]
        self.assertEqual(len(lines), 2)
        logs = []
        for number, line in enumerate(lines):
            words = shlex.split(line)
            if words[0] == "torchrun":
                if not TORCHRUN.exists():
                    self.skipTest("no torchrun in .venv")
                words[0] = str(TORCHRUN)
            config = self.config(f"line{number}")
            words = [str(PENSTOCK) if word == "build/bin/penstock" else config if word.endswith(".json") else word for word in words]
            words = words[:words.index(config) + 1] + [word for word in words[words.index(config) + 1:] if word in ("--ranks", "2")]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=ENVIRON)
            self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
            self.assertEqual(done.stdout.count("steps 1 to 4"), 1, done.stdout)
            logs.append([step["loss"] for step in self.log(f"line{number}")])
        self.assertEqual(logs[0], logs[1])


class ManualPage(RanksCase):
    """penstock-ranks(1), done as it says."""

    PAGE = README.parent / "tools" / "manual" / "penstock-ranks.1"

    def test_what_it_shows_runs(self):
        page = self.PAGE.read_text()
        (self.folder / "model.json").write_text(json.dumps(TINY))
        said = {}
        for name, block in manual_page.blocks(page):
            if name:
                file = json.loads(block)
                file["penstock"]["machine"] = self.machine
                (self.folder / name).write_text(json.dumps(file))
            for line in block.splitlines() if block.startswith("$ ") else ():
                words = line.removeprefix("$ penstock ")
                done = subprocess.run([PENSTOCK, *shlex.split(words)], capture_output=True, text=True, check=False, timeout=300,
                                      env=ENVIRON, cwd=self.folder)
                self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
                said[words] = done.stdout
        one_node, nodes, coded, trained, cut, *exported_and_imported = said.values()
        self.assertEqual(len(exported_and_imported), 2)
        for row in ("state, by ZeRO", "stage 0", "stages 1 and 2", "stage 3"):
            self.assertIn(row, one_node)
            self.assertIn(row, nodes)
        self.assertIn("hybrid", nodes)
        self.assertRegex(coded, r"codes: weights in int8, gradients in int4: a rank sends .* of weights, .* of gradients less a step")
        bound = re.search(r"compute-bound from about \S+ tokens a step", one_node)[0]
        self.assertIn(bound, page)
        self.assertEqual(trained.count("steps 1 to 4"), 1, trained)
        self.assertTrue((self.folder / "three").exists(), cut)


if __name__ == "__main__":
    unittest.main(verbosity=2)
