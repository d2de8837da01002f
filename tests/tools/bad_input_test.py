#!/usr/bin/env python3
"""What bad input and bad luck get from `penstock`: the right exit code, one sentence, a `try:` line, nothing left.

Usage: bad_input_test.py PENSTOCK [CLASS]. Prints the table of what was tried. What needs root or a loop device is skipped,
visibly, without.
"""
import fcntl
import json
import mmap
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import contextmanager
from pathlib import Path

PENSTOCK = Path(sys.argv.pop(1)).resolve()
VERBS = ("probe", "bench", "tune", "compare")
USAGE, DOES_NOT_FIT, ENVIRONMENT, CORRUPT, INTERRUPTED = 2, 3, 4, 5, 130
NOBODY = 65534
LONELY = 54329  # who has no process but the test's
MUCH = "host=4GiB"
TRIED = []
NOTES = ("creating a store of 1000000 parameters",)  # of what goes before a refusal
HAVE_FIO = shutil.which("fio") is not None


def run(*arguments, user=None, env=None, threads=None, file_bytes=None):
    """`threads`: that many are all that the user may have. `file_bytes`: no file may grow larger."""
    limits = [(resource.RLIMIT_NPROC, threads), (resource.RLIMIT_FSIZE, file_bytes)]
    def limit():
        for which, value in limits:
            if value is not None:
                resource.setrlimit(which, (value, value))

    return subprocess.run([PENSTOCK if user is None else PUBLIC_COPY, *map(str, arguments)], capture_output=True,
                          text=True, user=user, env=env, preexec_fn=limit, timeout=120, check=False)


@contextmanager
def mounted(image_bytes, *options):
    """A small ext4 file system over a loop device."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        image, mount = Path(place) / "image", Path(place) / "mount"
        image.touch()
        os.truncate(image, image_bytes)
        mount.mkdir()
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        made = subprocess.run(["mount", "-o", ",".join(("loop", *options)), image, mount], capture_output=True, check=False)
        if made.returncode != 0:
            raise unittest.SkipTest("no loop device can be mounted here: " + made.stderr.decode().strip())
        try:
            yield mount
        finally:
            subprocess.run(["umount", mount], check=True)


def need_no_sanitizer(why):
    with open(PENSTOCK, "rb") as program, mmap.mmap(program.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if any(image.find(start) >= 0 for start in (b"__asan_init", b"__tsan_init")):
            raise unittest.SkipTest(f"a sanitizer {why}")


def need_root():
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root")


def verbs():
    """The verbs that can run here: compare needs fio before it looks at anything else."""
    return [verb for verb in VERBS if verb != "compare" or HAVE_FIO]


class Refusals(unittest.TestCase):
    def setUp(self):
        # Beside the build: /tmp may be a tmpfs, which is refused for a reason of its own.
        self.folder = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        self.addCleanup(shutil.rmtree, self.folder, True)
        os.environ["XDG_CONFIG_HOME"] = str(self.folder / "config")

    def refused(self, code, what, *arguments, left=(), **how):
        """Runs it twice, for people and for programs, and checks the whole manner of the refusal."""
        ran = run(*arguments, **how)
        TRIED.append((what, " ".join(map(str, arguments[:2])), ran.returncode, ran.stderr.splitlines()[-2:]))
        lines = [line for line in ran.stderr.splitlines() if "%" not in line[:6] and line not in NOTES]
        self.assertEqual(ran.returncode, code, ran.stderr)
        self.assertEqual(len(lines), 2, ran.stderr)
        self.assertRegex(lines[0], r"^penstock: .+: .+")
        self.assertRegex(lines[1], r"^try: .+")
        self.assertEqual(ran.stdout, "")
        machine = run(*arguments, "--json", **how)
        self.assertEqual(machine.returncode, code)
        answer = json.loads(machine.stdout)
        self.assertEqual(list(answer)[0], "schema")
        self.assertTrue(answer["schema"].startswith(f"penstock.{arguments[0]}"), answer["schema"])
        self.assertEqual(answer["error"]["code"], code)
        self.assertTrue(answer["error"]["message"] and answer["error"]["try"])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), sorted(left))



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


class BadInputOfStores(Refusals):
    def update(self, code, what, *flags, store="new", **how):
        at = ("--store", self.folder / store) if store is not None else ()
        self.refused(code, what, "update", "--params", "1M", *at, *flags, **how)

    def checkpoint(self, code, what, *paths, **how):
        for verb in ("ls", "scrub"):
            with self.subTest(verb=verb, what=what):
                self.refused(code, what, "checkpoint", verb, *paths, **how)

    def make_store(self):
        made = run("update", "--params", "1M", "--store", self.folder / "store", "--budget", MUCH, "--steps", "1")
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.folder / "store" / "rank0.tiles"

    def test_no_folder(self):
        self.update(USAGE, "no store given", store=None)
        for store in ("", ","):
            self.update(USAGE, f"--store '{store}'", "--store", store, store=None)
            self.checkpoint(USAGE, f"path '{store}'", store)
        self.checkpoint(USAGE, "no path given")
        self.checkpoint(USAGE, "missing path", self.folder / "absent")
        self.checkpoint(USAGE, "no store there", self.folder)
        self.update(USAGE, "a folder in no folder", store="absent/new")

    def test_files_that_are_absent_or_of_another_kind(self):
        absent, folder = self.folder / "absent", self.folder / "folder"
        for what, path in (("absent", absent), ("a folder", folder)):
            folder.mkdir(exist_ok=True)
            self.refused(USAGE, f"a config that is {what}", "config", "check", path, left=("folder",))
        (folder / "config.json").write_text("{")
        self.refused(USAGE, "a config that is broken off", "config", "check", folder / "config.json", left=("folder",))
        (folder / "config.json").write_text("[]")
        self.refused(USAGE, "a config that is a list", "config", "check", folder / "config.json", left=("folder",))
        self.refused(USAGE, "a model that is absent", "checkpoint", "import", absent, "--store", self.folder / "new", left=("folder",))
        self.refused(USAGE, "a model that nobody knows", "plan", "--model", absent, left=("folder",))
        shutil.rmtree(folder)

    def test_same_folder_twice(self):
        new = self.folder / "new"
        self.update(USAGE, "one folder twice", "--store", f"{new},{new}", store=None)

    def test_nonsense_values(self):
        for flag, value in (
            ("--budget", ""), ("--budget", "64MiB"), ("--budget", "host="),
            ("--budget", "host=64MiB,host=1GiB"), ("--budget", "host=64MiB,device=1GiB"), ("--budget", "hots=64MiB"),
            ("--threads", "99999999999"), ("--tile", "3"), ("--durability", "often"), ("--strike-share", "2"),
            ("--space", "triple"), ("--engine", "warp"), ("--steps", "-1"), ("--parms", "1M"), ("--seed", "x"),
        ):
            with self.subTest(flag=flag, value=value):
                self.update(USAGE, f"{flag} '{value}'", flag, value)
        for parameters in ("0", "-1", "2000B", "many"):
            self.refused(USAGE, f"--params '{parameters}'", "update", "--params", parameters, "--store", self.folder / "new")

    def test_no_space_for_the_store(self):
        need_root()
        with mounted(40 << 20) as mount:
            for space, parameters, offered in (("double", "2400k", True), ("double", "6M", False), ("single", "6M", False)):
                ran = run("update", "--params", parameters, "--space", space, "--store", mount / "new", "--budget", MUCH)
                lines = ran.stderr.splitlines()
                TRIED.append((f"a store larger than the drive, {space}", "update", ran.returncode, lines[-2:]))
                self.assertEqual(ran.returncode, DOES_NOT_FIT, ran.stderr)
                self.assertRegex(lines[-2], r"^penstock: .*/new: the store needs [0-9.]+ MiB here and [0-9.]+ MiB are free$")
                self.assertEqual("--space single" in lines[-1], offered, lines[-1])  # where half of it fits
                self.assertEqual([path.name for path in mount.iterdir()], ["lost+found"])

    def test_a_store_on_a_drive_that_is_too_full_to_be_measured(self):
        need_root()
        with mounted(40 << 20) as mount:
            usual = ("--params", "1M", "--store", mount / "store", "--budget", MUCH, "--strike-share", "0.5")
            made = run("update", *usual, "--steps", "2", "--json")
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertRegex(made.stderr, "steps are not predicted: create scratch file: .* 16.00 MiB to spare, [0-9.]+ MiB are free")
            answer = json.loads(made.stdout)
            self.assertEqual([answer["predicted_s"], answer["floor_s"], answer["log"][0]["predicted_s"]], [None] * 3)
            with open(mount / "filler", "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(mount).free // 2)
            resumed = run("update", *usual, "--steps", "4")
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertIn("not predicted: the drives were not measured", resumed.stdout)
            verified = run("verify", *usual, "--steps", "4")
            self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_a_profile_that_is_none_or_of_other_drives(self):
        profile = self.folder / "profile"
        self.update(USAGE, "a profile that is not there", "--machine", profile)
        self.update(USAGE, "a shipped machine", "--machine", "cpu-2core")
        drive = {"path": "/gone", "device": "nvme77n1", "mix_curve": [[0, 1], [1, 2]]}
        for what, content in (("an empty profile", ""), ("no JSON as profile", '"penstock.machine/1"'),
                              ("a profile without drives", '{"schema": "penstock.machine/1", "host_gbps": 9}'),
                              ("a profile of another drive",
                               json.dumps({"schema": "penstock.machine/1", "host_gbps": 9, "drives": [drive]}))):
            profile.write_text(content)
            self.update(USAGE, what, "--machine", profile, left=["profile"])
            self.assertEqual(profile.read_text(), content)

    def test_fewer_threads_than_it_takes(self):
        need_root()
        need_no_sanitizer("starts threads of its own")
        with mounted(512 << 20) as mount:  # where another user may go, wherever the build lies
            mount.chmod(0o777)
            self.refuse_fewer_threads_than_it_takes(mount)

    def refuse_fewer_threads_than_it_takes(self, folder):
        # Neither the probe nor libaio starts a thread of its own.
        probed = run("nvme", "probe", folder, "--size", "64MiB", "--duration", "100ms", "--profile",
                     folder / "profile", "--json")
        self.assertEqual(probed.returncode, 0, probed.stderr)
        usual = ("--machine", folder / "profile", "--budget", MUCH, "--threads", "3")
        for granted, engine, what in ((1, "libaio", "start decision thread: 0 of 1"),
                                      (2, "libaio", "start update threads: 0 of 3"),
                                      (4, "libaio", "start update threads: 2 of 3"),
                                      (1, "threads", "start I/O threads: 0 of 16"),
                                      (16, "threads", "start I/O threads: 15 of 16")):
            shutil.rmtree(folder / "store", True)
            ran = run("update", "--params", "1M", "--store", folder / "store", "--engine", engine, *usual, user=LONELY,
                      threads=granted)
            lines = ran.stderr.splitlines()[-2:]
            TRIED.append((f"{granted} threads, by {engine}", "update", ran.returncode, lines))
            self.assertEqual(ran.returncode, ENVIRONMENT, ran.stderr)
            self.assertIn(what, lines[0])
            self.assertIn("EAGAIN", lines[0])
            self.assertRegex(lines[1], "^try: .*raise `ulimit -u`")
        libaio = ("update", "--params", "1M", "--store", folder / "store", "--engine", "libaio")
        enough = run(*libaio, *usual, user=LONELY, threads=5)
        self.assertEqual(enough.returncode, 0, enough.stderr)
        measured = run(*libaio, "--budget", MUCH, "--threads", "1", user=LONELY, threads=2)
        self.assertIn("start update threads: 0 of 1", measured.stderr, "the drives are measured by the threads that run")

    def test_a_limit_of_file_sizes(self):
        file = self.make_store()
        usual = ("--params", "1M", "--budget", MUCH, "--durability", "step", "--steps", "9")
        for store, what in (("new", r"create .*/new/rank0\.tiles"), ("store", r"write \d+ B at \d+ of .*/rank0\.tiles")):
            ran = run("update", *usual, "--store", self.folder / store, file_bytes=4 << 20)
            lines = ran.stderr.splitlines()[-2:]
            TRIED.append(("ulimit -f", "update", ran.returncode, lines))
            self.assertEqual(ran.returncode, DOES_NOT_FIT, ran.stderr)
            self.assertRegex(lines[0], f"^penstock: {what}: EFBIG")
            self.assertRegex(lines[1], "^try: raise `ulimit -f`")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["store"])
        goes_on = run("verify", *usual, "--store", file.parent)
        self.assertEqual(goes_on.returncode, 0, goes_on.stderr)

    def test_budget_too_small(self):
        self.update(DOES_NOT_FIT, "a budget of nothing", "--budget", "host=1KiB")
        # The store alone would be made with so much.
        self.update(DOES_NOT_FIT, "a budget less than the program's own", "--budget", "host=12MiB")

    def test_the_advised_budget_suffices(self):
        """Also where the store fits into the first budget and the steps do not."""
        need_no_sanitizer("keeps tens of MiB that the program has freed")
        usual = ("update", "--params", "4M", "--store", self.folder / "store", "--steps", "1")
        for given in ("1KiB", "20480KiB", "24MiB"):
            refused = run(*usual, "--force", "--budget", f"host={given}")
            if refused.returncode == 0:
                continue
            self.assertEqual(refused.returncode, DOES_NOT_FIT, refused.stderr)
            advised = re.search(r"\ntry: --budget (host=\d+MiB)\n", refused.stderr)
            self.assertTrue(advised, refused.stderr)
            TRIED.append((f"the budget advised for {given}", "update", 0, [advised[1]]))
            followed = run(*usual, "--force", "--budget", advised[1])
            self.assertEqual(followed.returncode, 0, followed.stderr)

    def test_more_to_verify_than_memory_holds(self):
        self.refused(DOES_NOT_FIT, "a plain loop of 14 TB", "verify", "--params", "1000B", "--store", self.folder / "new",
                     "--budget", MUCH)

    def test_no_drive(self):
        (self.folder / "file").write_text("mine")
        self.update(USAGE, "a file as store", store="file", left=["file"])

    def test_no_permission(self):
        need_root()
        self.folder.chmod(0o755)
        self.update(ENVIRONMENT, "no permission to make a folder", user=NOBODY)
        closed = self.folder / "closed"
        closed.mkdir(mode=0o700)
        self.checkpoint(ENVIRONMENT, "no permission to look", closed, user=NOBODY, left=["closed"])
        (closed / "inside").mkdir()
        self.checkpoint(ENVIRONMENT, "no permission above it", closed / "inside", user=NOBODY, left=["closed"])

    def test_a_store_that_another_user_may_read(self):
        need_root()
        with mounted(64 << 20) as mount:
            made = run("update", "--params", "1M", "--store", mount / "store", "--budget", MUCH, "--steps", "1")
            self.assertEqual(made.returncode, 0, made.stderr)
            (mount / "store").chmod(0o755)
            (mount / "store" / "rank0.tiles").chmod(0o644)
            for verb in ("ls", "scrub"):
                ran = run("checkpoint", verb, mount / "store", user=NOBODY)
                self.assertEqual(ran.returncode, 0, ran.stderr)

    def test_what_is_no_store(self):
        store = self.folder / "store"
        store.mkdir()
        file = store / "rank0.tiles"
        for what, code, content in (("an empty file", CORRUPT, b""), ("a short file", USAGE, b"x" * 5000),
                                    ("another file", USAGE, b"x" * (1 << 20)), ("zeros", CORRUPT, bytes(1 << 20))):
            file.write_bytes(content)
            self.checkpoint(code, what, store, left=["store"])
            self.assertEqual(file.read_bytes(), content)
        file.unlink()
        file.mkdir()
        self.checkpoint(USAGE, "a folder as store file", store, left=["store"])

    def test_a_store_that_is_damaged_or_another_models(self):
        file = self.make_store()
        good = file.read_bytes()
        there = {"store": "store", "left": ["store"]}
        self.refused(USAGE, "another model's store", "update", "--params", "2M", "--store", file.parent, "--budget", MUCH,
                     left=["store"])
        ran = run("update", "--params", "2M", "--store", file.parent, "--budget", MUCH)
        self.assertIn("penstock: --params: 2000000: the store has 1000000 parameters\ntry: --params 1000000,", ran.stderr)
        for flag, value in (("--seed", 7), ("--strike-share", 0.5)):
            self.update(USAGE, f"a store of another {flag}", flag, value, "--budget", MUCH, **there)
        for what, at in (("both headers damaged", (0, 65536)), ("every root damaged", (4096, 69632))):
            bad = bytearray(good)
            for offset in at:
                bad[offset + 99] ^= 1
            file.write_bytes(bad)
            self.checkpoint(CORRUPT, what, file.parent, left=["store"])
            self.update(CORRUPT, what, "--budget", MUCH, **there)
            self.assertEqual(file.read_bytes(), bytes(bad))
        file.write_bytes(good[:-4096])
        self.checkpoint(CORRUPT, "a store cut short", file.parent, left=["store"])

    def test_results_that_nobody_gets(self):
        store = self.make_store().parent
        for arguments in (("checkpoint", "ls", store), ("checkpoint", "ls", store, "--json"), ("--version",)):
            with self.subTest(arguments=arguments), open("/dev/null", "rb") as unwritable:
                ran = subprocess.run([PENSTOCK, *map(str, arguments)], stdout=unwritable, stderr=subprocess.PIPE,
                                     text=True, timeout=120, check=False)
                TRIED.append(("stdout takes nothing", arguments[0], ran.returncode, ran.stderr.splitlines()))
                self.assertEqual(ran.returncode, ENVIRONMENT, ran.stderr)
                self.assertRegex(ran.stderr, r"^penstock: print results: stdout: EBADF .*\ntry: .+\n$")
        # Who reads the first line alone has not failed.
        reader, writer = os.pipe()
        os.close(reader)
        ran = subprocess.run([PENSTOCK, "manual"], stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
        os.close(writer)
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))

    def interrupted_update(self, *flags):
        """Exit code, stderr, stdout before the interrupt and stdout at the end."""
        out = self.folder / "out"
        with open(out, "w", encoding="utf-8") as file:
            process = subprocess.Popen([PENSTOCK, "update", "--params", "1M", "--store", self.folder / "store", "--budget",
                                        MUCH, "--steps", "1000000", *flags], stdout=file, stderr=subprocess.PIPE, text=True)
        lines = []
        before = None
        for line in process.stderr:
            lines.append(line)
            if ("% step" in line or line.startswith('{"step"')) and before is None:
                before = out.read_text(encoding="utf-8")
                process.send_signal(signal.SIGINT)
        code = process.wait()
        process.stderr.close()
        TRIED.append(("SIGINT", "update", code, lines[-2:]))
        return code, lines, before, out.read_text(encoding="utf-8")

    def test_an_interrupted_run_is_committed(self):
        store = self.folder / "store"
        code, lines, before, after = self.interrupted_update()
        self.assertEqual(code, INTERRUPTED, lines)
        said = re.fullmatch(r"penstock: interrupted: step (\d+) is committed\n", lines[-2])
        self.assertTrue(said, lines)
        self.assertEqual(lines[-1], "try: the same command continues from there\n")
        found = json.loads(run("checkpoint", "ls", store, "--json").stdout)
        self.assertEqual(found["step"], int(said[1]))
        self.assertEqual([path.name for path in store.iterdir()], ["rank0.tiles"])
        # Every row comes as its step ends, not only at the end of the run.
        rows = re.compile(r"^ +(\d+) +confirmed ", re.MULTILINE)
        self.assertEqual(rows.findall(before)[:1], ["1"], before)
        self.assertEqual(rows.findall(after), [str(step + 1) for step in range(found["step"])])
        self.assertIn(" s a step", after)

        code, lines, before, after = self.interrupted_update("--json")
        answer = json.loads(after)
        self.assertEqual((code, before, answer["error"]["code"]), (INTERRUPTED, "", INTERRUPTED), lines)
        first = found["step"] + 1
        self.assertGreaterEqual(answer["steps"], first)
        self.assertEqual([step["step"] for step in answer["log"]], list(range(first, answer["steps"] + 1)))

        # A program that reads along gets each step when it ends, and nothing before the refusal that is not an object.
        code, lines, before, after = self.interrupted_update("--json", "--progress", "json")
        answer, objects = json.loads(after), [json.loads(line) for line in lines[:-2]]
        self.assertEqual((code, lines[-1][:5]), (INTERRUPTED, "try: "), lines)
        self.assertEqual([one["step"] for one in objects if "step" in one], answer["log"])
        self.assertIn({"note": f"resuming after step {answer['log'][0]['step'] - 1}"}, objects)
        self.assertTrue(all(0 <= one["progress"]["share"] <= 1 for one in objects if "progress" in one), objects)

    def test_an_interrupted_creation_leaves_nothing(self):
        process = subprocess.Popen([PENSTOCK, "update", "--params", "60M", "--store", self.folder / "store", "--budget",
                                    MUCH, "--steps", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("creating a store"):
                process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), INTERRUPTED, lines)
        self.assertEqual(process.stdout.read(), "")
        process.stdout.close()
        process.stderr.close()
        TRIED.append(("SIGINT while the store is made", "update", process.returncode, lines[-2:]))
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_an_older_step_is_never_gone_on_from_without_a_word(self):
        file = self.make_store()
        bad = bytearray(file.read_bytes())
        bad[4096 + 99] ^= 1  # the second root, which is step 1's
        file.write_bytes(bad)
        again = ("update", "--params", "1M", "--store", file.parent, "--budget", MUCH, "--steps", "1")
        ran = run(*again, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        said = json.loads(ran.stdout)["remarks"]
        self.assertEqual(len(said), 3, said)
        self.assertIn("every block of step 0 was verified", said[0])
        self.assertIn("step 1 is lost, the store is at step 0", said[1])
        self.assertIn("store: " + said[0], ran.stderr.splitlines())
        ran = run(*again)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("nothing to do: the store is at step 1 already", ran.stdout)


def print_table():
    print(f"\n{'what was tried':32} {'verb':14} {'code':>4}  what was said", file=sys.stderr)
    for what, verb, code, said in TRIED:
        print(f"{what:32} {verb:14} {code:4}  {said[0] if said else ''}", file=sys.stderr)


if __name__ == "__main__":
    # Others than root must be able to run it.
    with tempfile.TemporaryDirectory() as public:
        os.chmod(public, 0o755)
        PUBLIC_COPY = Path(public) / "penstock"
        shutil.copy(PENSTOCK, PUBLIC_COPY)
        ran = unittest.main(exit=False)
        print_table()
    sys.exit(not ran.result.wasSuccessful())
