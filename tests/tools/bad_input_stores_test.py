#!/usr/bin/env python3
"""What bad input gets from the verbs that use stores: the right exit code, one sentence, a `try:` line, nothing left.

Usage: bad_input_stores_test.py PENSTOCK [CLASS]. Prints the table of what was tried. What bad luck gets is in
bad_luck_cases.py, which this runs too.
"""
import json
import re
import shutil

from bad_input_support import (
    CORRUPT, DOES_NOT_FIT, ENVIRONMENT, MUCH, NOBODY, TRIED, USAGE, StoreRefusals, main, mounted, need_no_sanitizer,
    need_root, run,
)
from bad_luck_cases import BadLuckOfStores  # noqa: F401


class BadInputOfStores(StoreRefusals):
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
        ran = run("update", "--store", file.parent, "--budget", "host=400TiB")
        self.assertEqual(ran.returncode, DOES_NOT_FIT)
        self.assertRegex(ran.stderr, r"--budget: .* of host memory, .* is .*\ntry: --budget host=\d+MiB")
        ran = run("verify", "--store", file.parent, "--budget", MUCH, "--steps", 2, "--json")
        self.assertEqual(json.loads(ran.stdout)["words_different"], 0, "those of the store are meant")
        file.write_bytes(good)
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


if __name__ == "__main__":
    main()
