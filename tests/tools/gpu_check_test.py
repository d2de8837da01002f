#!/usr/bin/env python3
"""What tools/gpu-check says and leaves behind when things go wrong. Its build tool, compiler and test programs are small
scripts here, so that each can fail, hang or be absent within a second."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "gpu-check"
PASSING = 'echo "[  PASSED  ] 3 tests."'
SKIPPING = 'printf "a_test.cpp:5: Skipped\\nno GPU here\\n\\n[  PASSED  ] 0 tests.\\n[  SKIPPED ] 2 tests, listed below:\\n"'
FAILING = 'echo "[  FAILED  ] CudaDevice.Adds (3 ms)"; echo "[  FAILED  ] 1 test, listed below:"; exit 1'


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.tools, self.build, self.out = (self.folder / name for name in ("tools", "build", "out"))
        self.script("tools/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
        self.script("tools/cmake", "true")
        self.script("tools/c++", "true")
        for program in ("tests_gpu", "tests_ranks", "tests_cpu_optim", "tests_tiering", "tests_aio", "tests_runtime"):
            self.script(f"build/bin/{program}", PASSING)
        self.script("build/bench/device", "true")

    def script(self, path, body):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def start(self, *arguments):
        env = dict(os.environ, PATH=f"{self.tools}:{os.environ['PATH']}", PENSTOCK_BUNDLE="", CXX="c++")
        return subprocess.Popen([sys.executable, CHECK, "--build", self.build, "--out", self.out, *arguments], env=env,
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def check(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        self.assertNotIn("Traceback", out + err)
        return process.returncode, out, err

    def result(self):
        return json.loads((self.out / "gpu-check.json").read_text())

    def step(self, name):
        return next(step for step in self.result()["steps"] if step["step"] == name)

    def test_ends_with_0_when_nothing_fails(self):
        figure = ('{"bench": "device", "case": "host to device", "value": 55.1, "unit": "GB/s", "against": "loop", '
                  '"against_value": 55.2, "ratio": 0.998, "ratio_min": 0.99, "ratio_max": 1.0, "goal": 0.95}')
        self.script("build/bench/device", f"echo '{figure}'")
        code, _, _ = self.check()
        self.assertEqual(code, 0)
        self.assertEqual(self.result()["figures"][0]["ratio"], 0.998)
        self.assertIn("met", (self.out / "gpu-check.txt").read_text())
        self.assertTrue(self.result()["verdict"].startswith("done: "))

    def test_tells_a_run_of_skipped_tests_from_a_passed_one(self):
        self.script("build/bin/tests_gpu", SKIPPING)
        self.assertEqual(self.check()[0], 0)
        step = self.step("contract of the CUDA device")
        self.assertEqual((step["result"], step["reason"]), ("skipped", "no GPU here"))
        self.assertFalse([step for step in self.result()["steps"] if step["step"].startswith("alone")])

    def test_says_why_nothing_is_trained(self):
        self.script("tools/python3", "echo /nowhere/torch")
        self.assertEqual(self.check()[0], 0)
        for name in ("train a small GPT on the GPU", "verify every placement on the GPU"):
            step = self.step(name)
            self.assertEqual((step["result"], step["reason"]), ("skipped", "/nowhere/torch was built without CUDA"))

    def test_names_the_failed_test_runs_it_alone_and_ends_with_6(self):
        self.script("build/bin/tests_gpu", f"case $1 in *list*) printf 'CudaDevice.\\n  Adds\\n';; *) {FAILING};; esac")
        self.assertEqual(self.check()[0], 6)
        self.assertEqual(self.result()["tests"]["contract of the CUDA device"]["failed_names"], ["CudaDevice.Adds"])
        self.assertEqual(self.step("alone: CudaDevice.Adds")["result"], "failed")

    def test_says_what_to_do_when_it_does_not_configure(self):
        self.script("tools/cmake", 'echo "CMake Error: Could not find nlohmann_json"; exit 1')
        code, out, _ = self.check()
        self.assertEqual(code, 4)
        self.assertIn("Could not find nlohmann_json", out)
        self.assertIn("try: run `tools/setup --bundle DIR`", out)

    def test_ends_a_step_with_all_its_processes_at_its_limit(self):
        self.script("tools/cmake", f"sleep 50 & echo $! > {self.folder}/child; wait")
        code, _, _ = self.check("--minutes", "0.09")
        self.assertEqual(code, 4)
        self.assertIn("not done after 5 s", self.step("configure")["reason"])
        self.assert_ended()

    def assert_ended(self):
        child = int((self.folder / "child").read_text())
        for _ in range(50):
            try:
                os.kill(child, 0)
            except ProcessLookupError:
                return
            if Path(f"/proc/{child}/stat").read_text().split(") ")[1].startswith("Z"):
                return
            time.sleep(0.1)
        self.fail(f"process {child} lives on")

    def stopped_in_a_step(self, how):
        self.script("build/bin/tests_gpu", f"sleep 50 & echo $! > {self.folder}/child; wait")
        process = self.start()
        while not (self.folder / "child").exists() or not (self.folder / "child").read_text():
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(how)
        _, err = process.communicate(timeout=20)
        self.assertNotIn("Traceback", err)
        return process.returncode

    def test_leaves_what_it_found_when_stopped(self):
        self.assertEqual(self.stopped_in_a_step(signal.SIGTERM), 130)
        self.assertEqual(self.step("configure")["result"], "ok")
        self.assertIn("stopped by SIGTERM", self.step("contract of the CUDA device")["reason"])
        self.assert_ended()

    def test_leaves_what_it_found_when_killed(self):
        self.assertEqual(self.stopped_in_a_step(signal.SIGKILL), -signal.SIGKILL)
        os.kill(int((self.folder / "child").read_text()), signal.SIGKILL)
        self.assertEqual(self.step("build tests_gpu")["result"], "ok")
        self.assertTrue(self.result()["verdict"].startswith("under way: contract of the CUDA device"))

    def test_refuses_before_it_begins(self):
        (self.folder / "file").write_text("")
        broken = self.folder / "broken"
        (broken / "usr" / "include").mkdir(parents=True)
        (broken / ".penstock-bundle").write_text("usr/include\nusr/include/gtest/gtest.h\nusr/lib/libtbb.so\n")
        for arguments, code, sentence in (
            (("--out", self.folder / "file" / "out"), 4, "gpu-check: write the results: "),
            (("--bundle", self.folder / "nowhere"), 2, "there is no such folder"),
            (("--bundle", self.folder), 2, "has no usr/include"),
            (("--bundle", broken), 4, "lacks usr/include/gtest/gtest.h and 1 more files"),
            (("--minutes", "0"), 2, "not a number of minutes above 0"),
            (("--minutes", "soon"), 2, "not a number of minutes above 0"),
        ):
            with self.subTest(arguments=arguments):
                ended, _, err = self.check(*arguments)
                self.assertEqual(ended, code)
                self.assertIn(sentence, err)


if __name__ == "__main__":
    unittest.main()
