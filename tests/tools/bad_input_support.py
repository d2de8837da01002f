"""Refusals of the command: how each is checked, and the drives and users that provoke them. For bad_input_*_test.py.

The first argument of a test is the command, PENSTOCK. What needs root or a loop device is skipped, visibly, without.
"""
import json
import mmap
import os
import resource
import shutil
import subprocess
import sys
import tempfile
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
PUBLIC_COPY = None  # that others than root can run; main() makes it


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


class StoreRefusals(Refusals):
    """The same of verbs that make, use and look at stores."""

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


def print_table():
    print(f"\n{'what was tried':32} {'verb':14} {'code':>4}  what was said", file=sys.stderr)
    for what, verb, code, said in TRIED:
        print(f"{what:32} {verb:14} {code:4}  {said[0] if said else ''}", file=sys.stderr)


def main():
    """Runs the tests of the file that is started, and prints the table of what was tried."""
    global PUBLIC_COPY
    with tempfile.TemporaryDirectory() as public:
        os.chmod(public, 0o755)
        PUBLIC_COPY = Path(public) / "penstock"
        shutil.copy(PENSTOCK, PUBLIC_COPY)
        ran = unittest.main(exit=False)
        print_table()
    sys.exit(not ran.result.wasSuccessful())
