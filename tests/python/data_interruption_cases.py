"""Preparations that are killed, interrupted or started twice. data_test.py runs these."""
import json
import os
import random
import signal
import unittest.mock

from data_support import chat, model_folder, write_lines
from penstock._verb import Arguments, Progress
from penstock.data import prepare as preparing, sources
from penstock.data.__main__ import main
from penstock.data.model import Model
from penstock.data.options import options_of
from penstock.data.prepared import PreparedSet
from penstock.data.writing import KEY_BYTES, Writing
from prepared_support import SEED, Prepared


class Interruptions(Prepared):
    """What is killed anywhere is gone on with, and the set is the one that an undisturbed preparation makes."""

    def setUp(self):
        super().setUp()
        self.model()
        self.options = []
        self.records = [chat(f"Number {i}?", f"It is {i}.", "Sure?", "word " * (i % 7)) for i in range(60)]
        self.path = write_lines(self.folder / "chats.jsonl", self.records)
        self.book = self.folder / "book.txt"
        self.book.write_text("Of Man's first disobedience, and the fruit\n" * 600, encoding="utf-8")
        for module, name, value in ((preparing, "BATCH", 7), (preparing, "JOURNAL_TOKENS", 50), (sources, "CHUNK_BYTES", 9000)):
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, value)

    def attempt(self, out):
        return self.command(main, self.path, self.book, "--model", self.model(), "--out", self.folder / out, "--length", 64,
                            *self.options)

    def child(self, out, before_call, method, signal_sent=signal.SIGKILL):
        """Prepares in a process that is hit when `method` of Writing is called for that time. How it ended."""
        process = os.fork()
        if process == 0:
            calls, real = 0, getattr(Writing, method)

            def counted(writing, *arguments):
                nonlocal calls
                calls += 1
                if calls == before_call:
                    os.kill(os.getpid(), signal_sent)
                return real(writing, *arguments)

            setattr(Writing, method, counted)
            os._exit(self.attempt(out)[0])
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def gone_on_with(self, before_call, method):
        """The manifest of a set whose preparation was killed there, and then gone on with."""
        self.assertEqual(self.child("set", before_call, method), -signal.SIGKILL)
        code, _, err = self.attempt("set")
        self.assertEqual(code, 0, err)
        self.assertIn("going on after", err)
        return PreparedSet(self.folder / "set").manifest

    def test_what_appears_where_the_set_was_to_be_stays(self):
        def appears(writing, manifest, real=Writing.finish):
            os.mkdir(self.folder / "set")
            (self.folder / "set" / "mine.txt").write_text("mine")
            real(writing, manifest)
        with unittest.mock.patch.object(Writing, "finish", appears):
            code, _, err = self.attempt("set")
        self.assertEqual(code, 2, err)
        self.assertIn("has appeared while this set was prepared", err)
        self.assertEqual((self.folder / "set" / "mine.txt").read_text(), "mine")
        os.rename(self.folder / "set", self.folder / "moved")  # as it advises
        code, _, err = self.attempt("set")
        self.assertEqual(code, 0, err)
        self.assertIn("going on after", err)
        self.assertTrue(PreparedSet(self.folder / "set").manifest)

    def test_by_kill_are_gone_on_with(self):
        self.assertEqual(self.attempt("plain")[0], 0)
        expected = PreparedSet(self.folder / "plain").manifest
        rng = random.Random(SEED)
        for method, most in (("journal", 9), ("add", 90), ("finish", 1), ("write", 3)):
            for _ in range(2 if most > 1 else 1):
                at = rng.randint(1, most)
                with self.subTest(method, at=at, seed=SEED):
                    out = f"{method}-{at}"
                    self.assertEqual(self.child(out, at, method), -signal.SIGKILL)
                    self.assertFalse((self.folder / out).exists())
                    code, _, err = self.attempt(out)
                    self.assertEqual(code, 0, err)
                    found = PreparedSet(self.folder / out).manifest
                    self.assertEqual((found["hash"], found["counts"]), (expected["hash"], expected["counts"]))
                    if (method, at) != ("add", 1) and method != "journal":
                        self.assertIn("going on after", err)

    def test_keep_what_was_counted_before_them(self):
        template = ("{% for x in messages %}{% if x.role == 'user' %}Q: {{ x.content }}\n{% else %}A: {{ x.content }}\n"
                    "{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}")
        model_folder(self.model(), "chatml", template)  # whose answers end with no token
        self.assertEqual(self.attempt("plain")[0], 0)
        expected = PreparedSet(self.folder / "plain").manifest
        self.assertGreater(expected["counts"]["turns_without_end"], 0)
        found = self.gone_on_with(61, "add")  # in the second file
        self.assertEqual((found["counts"], found["remarks"]), (expected["counts"], expected["remarks"]))

    def test_know_which_lines_were_bad(self):
        """Those before, and the numbers of those behind: in a text too, whose chunks have many lines."""
        self.options = ["--skip-bad"]
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.path.write_bytes(b"".join([lines[0], b"{broken\n", *lines[1:]]))
        lines = self.book.read_bytes().splitlines(keepends=True)
        self.book.write_bytes(b"".join([*lines[:500], b"bad \xe9 line\n", *lines[500:]]))
        self.assertEqual(self.attempt("plain")[0], 0)
        expected = PreparedSet(self.folder / "plain").manifest
        self.assertEqual([bad["line"] for bad in expected["bad_lines"]], [2, 501])
        found = self.gone_on_with(12, "journal")  # in the second file, which has three chunks
        self.assertEqual((found["bad_lines"], found["hash"]), (expected["bad_lines"], expected["hash"]))

    def test_go_on_with_what_every_option_says(self):
        def identity(*options, model=None):
            words = [str(word) for word in (self.path, self.book, "--model", self.model(), "--out", self.folder / "set", *options)]
            found = options_of(words, Arguments("penstock data"))
            return preparing.Preparation(found, model or Model(found.model, found.template), Progress()).identity()

        (self.folder / "template").write_text("{% for x in messages %}{{ x.content }}{% endfor %}")
        other = Model(self.model())
        other.vocabulary += 1
        different = [identity(), identity(model=other)] + [identity(*options) for options in (
            ("--length", 64), ("--turns", "last"), ("--layout", "padded"), ("--long", "drop"), ("--weights", "1,2"), ("--weights", "2,1"),
            ("--validation", 0.5), ("--seed", 1), ("--template", self.folder / "template"), ("--keep-duplicates",), ("--skip-bad",))]
        self.assertEqual(len({json.dumps(one) for one in different}), len(different))
        self.assertEqual(identity(), different[0])

    def test_on_request_are_said_and_gone_on_with(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(sent.name):
                out = f"set-{sent.name}"
                self.assertEqual(self.child(out, 75, "add", sent), 130)
                self.assertEqual((self.folder / out).exists(), False)
                code, _, err = self.attempt(out)
                self.assertEqual(code, 0, err)
                self.assertIn("going on after", err)

    def test_a_slash_behind_the_folder_makes_no_difference(self):
        for options in ((), ("--force",)):
            code, _, err = self.command(main, self.path, "--model", self.model(), "--out", f"{self.folder}/set/", "--length", 64, *options)
            self.assertEqual(code, 0, err)
            self.assertGreater(PreparedSet(self.folder / "set").manifest["counts"]["samples"], 0)
        self.assertEqual([path.name for path in self.folder.glob("set*")], ["set"])

    def test_go_on_only_with_the_same_files_and_options(self):
        self.assertEqual(self.child("set", 75, "add"), -signal.SIGKILL)
        write_lines(self.path, self.records[:20])
        code, _, err = self.attempt("set")
        self.assertEqual(code, 0, err)
        self.assertNotIn("going on", err)
        self.assertEqual(PreparedSet(self.folder / "set").manifest["counts"]["samples"], 20 + 3)

    def test_two_at_once_are_refused(self):
        writing = Writing(self.folder / "set", [])
        code, _, err = self.attempt("set")
        self.assertEqual(code, 4)
        self.assertIn("another process", err)
        writing.abandon()
        self.assertEqual(self.attempt("set")[0], 0)

    def test_know_every_sample_again(self):
        """Those whose keys end with zeros too: one that comes again is a duplicate."""
        keys = {bytes(KEY_BYTES), bytes(range(KEY_BYTES, 0, -1)), b"\7".ljust(KEY_BYTES, b"\0")}
        writing = Writing(self.folder / "set", [])
        for key in keys:
            writing.add(0, key, [1, 2], [0, 1])
        writing.journal({})
        writing.keep()
        again = Writing(self.folder / "set", [])
        again.abandon()
        self.assertEqual(again.keys, keys)

    def test_end_where_the_drive_is_full_by_then(self):
        """What ended them is told, not this, and the folder is free."""
        for end in (Writing.keep, Writing.abandon):
            with self.subTest(end.__name__):
                writing = Writing(self.folder / "set", [])
                full = writing._files["full"] = open("/dev/full", "ab")
                full.write(b"what is written when the file is closed")
                end(writing)
                Writing(self.folder / "set", []).abandon()
