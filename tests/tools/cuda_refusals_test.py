#!/usr/bin/env python3
"""What `penstock doctor` says of a CUDA driver that is absent, refuses, is too old or shows no device, and what the CUDA
runtime in this build makes of the same driver.

Usage: cuda_refusals_test.py PENSTOCK TESTS_GPU FOLDER-OF-STAND-IN"""
import ctypes
import json
import os
import subprocess
import sys
import unittest

PENSTOCK, TESTS_GPU, STAND_IN = sys.argv[1:4]
HOST_DEVICE = "without one, the CPU runs the same engine: everything but the speed of a GPU can be tried"


def environment(pretended):
    return dict(os.environ, LD_LIBRARY_PATH="" if pretended is None else STAND_IN, PRETEND_CUDA=pretended or "")


def driver_is_here():
    """A machine with a GPU answers for itself."""
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidia0")


def findings(pretended):
    ran = subprocess.run([PENSTOCK, "doctor", "--json"], env=environment(pretended), stdout=subprocess.PIPE, check=False)
    found = json.loads(ran.stdout)["findings"]
    return {one["subject"]: one for one in found if "CUDA" in one["subject"] or "GPU" in one["subject"]}


@unittest.skipIf(driver_is_here(), "an NVIDIA driver is here")
class CudaRefusals(unittest.TestCase):
    def expect(self, pretended, found, level="problem"):
        driver = findings(pretended)["CUDA driver"]
        self.assertEqual((driver["found"], driver["level"]), (found, level))
        self.assertEqual(driver["follows"], HOST_DEVICE)
        self.assertTrue(driver["fix"])

    def test_doctor_says_what_a_driver_refuses(self):
        self.expect(None, "none", "note")
        self.expect("init=100 devices=0", "supports CUDA 13.0, 0 devices, cuInit refuses with 100 (as the test asked)")
        self.expect("init=803", "supports CUDA 13.0, 0 devices, cuInit refuses with 803 (system has unsupported display "
                    "driver / cuda driver combination)")
        self.expect("devices=0", "supports CUDA 13.0, 0 devices")

    def test_doctor_says_that_a_driver_is_too_old(self):
        driver = findings("version=12020")["CUDA driver"]
        self.assertEqual((driver["found"], driver["level"]), ("supports CUDA 12.2, 1 devices", "problem"))
        self.assertEqual(driver["follows"], "12.4 or newer is needed; " + HOST_DEVICE)

    def test_doctor_says_that_a_device_is_too_old(self):
        gpu = findings("major=7 minor=5")["GPU 0"]
        self.assertEqual(gpu["found"], "stand-in, 8.00 GiB, compute capability 7.5")
        self.assertEqual(gpu["follows"], "kernels are built for capability 8.0 and newer; " + HOST_DEVICE)

    def test_doctor_says_whether_this_build_can_use_the_driver(self):
        build = findings("version=12080")["CUDA in this build"]
        self.assertEqual((build["level"], build["follows"]), ("problem", HOST_DEVICE))
        self.assertRegex(build["found"], "driver too old: it supports CUDA up to 12.8; this build uses CUDA 13|"
                         "this build has none|no driver")
        self.assertTrue(build["fix"])

    def test_doctor_says_that_drives_go_through_host_memory(self):
        direct = findings("")["GPUDirect Storage"]
        self.assertEqual(direct["level"], "good")
        try:
            ctypes.CDLL("libcufile.so.0")
        except OSError:
            self.assertEqual(direct["found"], "none: drives reach the GPU through pinned host memory, as they do on most "
                             "machines")

    def test_the_engine_runs_the_host_device_over_the_same_drivers(self):
        for pretended, said in (
            (None, "no driver: libcuda.so.1 could not be loaded; this build uses CUDA "),
            ("version=13090 init=100", "no device: the driver (CUDA 13.9) lists none (cudaErrorNoDevice: "),
            ("version=13090 init=803", "the driver (CUDA 13.9) refuses: cudaErrorSystemDriverMismatch: "),
            ("version=13090 init=999", "the driver (CUDA 13.9) refuses: cudaErrorUnknown: "),
            ("version=11080", "driver too old: it supports CUDA up to 11.8; this build uses CUDA "),
        ):
            with self.subTest(pretended=pretended):
                # The second is skipped, and its reason is the sentence.
                filtered = "--gtest_filter=OpenDevice.RunsTheHost*:CudaDevice.Computes*"
                ran = subprocess.run([TESTS_GPU, filtered], env=environment(pretended), stdout=subprocess.PIPE, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stdout)
                self.assertIn("[  PASSED  ] 1 test", ran.stdout)
                if "this build has none" not in ran.stdout:
                    self.assertIn("\nCUDA device: " + said, ran.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
