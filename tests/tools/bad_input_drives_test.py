#!/usr/bin/env python3
"""What bad input and bad luck get from `penstock nvme`: the right exit code, one sentence, a `try:` line, nothing left.

Usage: bad_input_drives_test.py PENSTOCK [CLASS]. Prints the table of what was tried.
"""
import fcntl
import os
import signal
import stat
import subprocess
import time
import unittest
from pathlib import Path

from bad_input_support import (
    DOES_NOT_FIT, ENVIRONMENT, HAVE_FIO, INTERRUPTED, NOBODY, PENSTOCK, TRIED, USAGE, Refusals, main, mounted,
    need_root, run, verbs,
)


class BadInputOfDrives(Refusals):
    def each_verb(self, code, what, path, **how):
        for verb in verbs():
            with self.subTest(verb=verb, what=what):
                self.refused(code, what, "nvme", verb, path, **how)

    def test_missing_path(self):
        self.each_verb(USAGE, "missing path", self.folder / "absent")

    def test_no_path_at_all(self):
        for verb in verbs():
            self.refused(USAGE, "no path given", "nvme", verb)

    def test_file_instead_of_folder(self):
        (self.folder / "file").write_text("mine")
        self.each_verb(USAGE, "a file instead of a folder", self.folder / "file", left=["file"])
        self.assertEqual((self.folder / "file").read_text(), "mine")

    def test_block_device(self):
        devices = [path for path in Path("/dev").iterdir() if stat.S_ISBLK(path.stat().st_mode)]
        if not devices:
            self.skipTest("no block device in /dev")
        self.each_verb(USAGE, "a block device", devices[0])

    def test_tmpfs(self):
        if subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True,
                          check=False).stdout.strip() != "tmpfs":
            self.skipTest("/dev/shm is no tmpfs")
        self.each_verb(ENVIRONMENT, "tmpfs", "/dev/shm")

    def test_more_than_there_is_space_for(self):
        for verb in verbs():
            self.refused(DOES_NOT_FIT, "no space for --size", "nvme", verb, self.folder, "--size", "1000TiB")

    def test_budgets_that_are_none(self):
        for budget in ("host=nan", "host=1e30GiB", "host=1GiB,host=2GiB", "disk=1GiB", "host=0"):
            ran = run("plan", "--machine", "cpu-2core", "--budget", budget)
            self.assertEqual(ran.returncode, USAGE, budget)
            self.assertTrue(ran.stderr.startswith("penstock: --budget: "), ran.stderr)

    def test_a_device_that_nothing_can_be_written_to_stays(self):
        (self.folder / "drawing").symlink_to("/dev/full")
        ran = run("plan", "--machine", "cpu-2core", "--gantt", self.folder / "drawing", "--force")
        self.assertEqual(ran.returncode, DOES_NOT_FIT)
        self.assertTrue((self.folder / "drawing").is_symlink())

    def test_full_drive(self):
        need_root()
        with mounted(24 << 20) as mount:
            self.each_verb(DOES_NOT_FIT, "a drive without space", mount)
            self.assertEqual([path.name for path in mount.iterdir()], ["lost+found"])

    def test_read_only_mount(self):
        need_root()
        with mounted(64 << 20, "ro") as mount:
            self.each_verb(ENVIRONMENT, "a read-only mount", mount)

    def test_no_permission(self):
        need_root()
        self.folder.chmod(0o755)
        self.each_verb(ENVIRONMENT, "no permission to write", self.folder, user=NOBODY)
        closed = self.folder / "closed"
        closed.mkdir(mode=0o700)
        self.each_verb(ENVIRONMENT, "no permission to look", closed, user=NOBODY, left=["closed"])
        (closed / "inside").mkdir()
        self.each_verb(ENVIRONMENT, "no permission above it", closed / "inside", user=NOBODY, left=["closed"])

    def test_locked(self):
        held = os.open(self.folder, os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        self.each_verb(ENVIRONMENT, "locked by another run", self.folder)

    def test_existing_files_are_kept(self):
        mine = self.folder / "mine"
        mine.write_text("{}")
        self.refused(USAGE, "an existing job file", "nvme", "bench", self.folder, "--emit-fio", mine, left=["mine"])
        self.refused(USAGE, "an existing file as profile", "nvme", "probe", self.folder, "--profile", mine, left=["mine"])
        self.assertEqual(mine.read_text(), "{}")

    def test_nonsense_values(self):
        for verb, flag, value in (
            ("bench", "--block", "0"), ("bench", "--block", "3"), ("bench", "--block", "1XB"),
            ("bench", "--block", "-4KiB"), ("bench", "--block", "1000"), ("bench", "--block", "2GiB"),
            ("bench", "--block", "4KiB,"), ("bench", "--block", ""), ("bench", "--block", "99999999999TiB"),
            ("bench", "--depth", "0"), ("bench", "--depth", "1B"), ("bench", "--depth", "1.5"),
            ("bench", "--read-share", "2"), ("bench", "--read-share", "nan"), ("bench", "--duration", "0"),
            ("bench", "--duration", "-1s"), ("bench", "--duration", "forever"), ("bench", "--engine", "warp"),
            ("bench", "--pattern", "zigzag"), ("bench", "--blok", "4KiB"), ("probe", "--size", "4 GiB"),
            ("probe", "--duration", "0"), ("tune", "--duration", "0"), ("compare", "--duration", "0"), ("probe", "--size", "0.5B"),
        ):
            if verb not in verbs():
                continue
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, f"{flag} '{value}'", "nvme", verb, self.folder, flag, value)

    def test_sizes_that_do_not_go_together(self):
        for verb in verbs():
            self.refused(USAGE, "a scratch file of 4 KiB", "nvme", verb, self.folder, "--size", "4KiB")
        self.refused(USAGE, "blocks larger than the file", "nvme", "bench", self.folder, "--size", "64MiB", "--block",
                     "128MiB", "--depth", "1")

    def test_steady_without_a_budget(self):
        self.refused(USAGE, "--steady without a budget", "nvme", "bench", self.folder, "--steady")

    def test_same_folder_twice(self):
        for verb in verbs():
            self.refused(USAGE, "one folder twice", "nvme", verb, self.folder, self.folder)

    def test_without_fio(self):
        self.refused(ENVIRONMENT, "no fio", "nvme", "compare", self.folder, env={"PATH": "/nonexistent"})

    def start(self, *arguments):
        """A long run, past the making of its scratch file."""
        process = subprocess.Popen([PENSTOCK, "nvme", "bench", self.folder, "--size", "64MiB", *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not list(self.folder.glob(".penstock-scratch-*")):
            self.assertLess(time.monotonic(), deadline, "no scratch file appeared")
            time.sleep(0.01)
        return process

    @unittest.skipUnless(HAVE_FIO, "fio is not installed")
    def test_an_emitted_fio_job_runs(self):
        if "io_uring: available" not in run("doctor").stdout:
            raise unittest.SkipTest("fio needs io_uring")
        folders = [self.folder / "a", self.folder / "b"]
        for folder in folders:
            folder.mkdir()
        job = self.folder / "job.fio"
        emitted = run("nvme", "bench", *folders, "--size", "16MiB", "--duration", "100ms", "--read-share", "0.5",
                      "--emit-fio", job)
        self.assertEqual(emitted.returncode, 0, emitted.stderr)
        ran = subprocess.run(["fio", job], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for folder in folders:
            self.assertEqual([(path.name, path.stat().st_size) for path in folder.iterdir()],
                             [("penstock-fio.0", 16 << 20)])

    def test_a_manual_page_in_no_folder(self):
        refused = run("manual", "--into", self.folder / "absent")
        self.assertEqual(refused.returncode, USAGE, refused.stderr)
        self.assertNotIn("--force", refused.stderr)

    def test_interrupts_remove_scratch_files(self):
        for wish in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("--duration", "60s")
            process.send_signal(wish)
            _, errors = process.communicate(timeout=60)
            TRIED.append((wish.name, "nvme bench", process.returncode, errors.splitlines()[-2:]))
            self.assertEqual(process.returncode, INTERRUPTED, errors)
            self.assertIn("penstock: interrupted", errors)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_crash_removes_scratch_files(self):
        process = self.start("--duration", "60s")
        process.send_signal(signal.SIGABRT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, -signal.SIGABRT)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_next_run_removes_what_a_killed_one_left(self):
        process = self.start("--duration", "60s")
        process.kill()
        process.communicate()
        self.assertEqual(len(list(self.folder.iterdir())), 1)
        after = run("nvme", "bench", self.folder, "--size", "64MiB", "--duration", "10ms", "--read-share", "1")
        self.assertEqual(after.returncode, 0, after.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    main()
