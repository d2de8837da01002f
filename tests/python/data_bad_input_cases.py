"""What penstock.data refuses: lines, files, models, options and full drives. data_test.py runs these."""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import unittest.mock

from data_support import chat, model_folder, write_lines
from penstock.data import sources
from penstock.data.__main__ import main
from prepared_support import CHATS, WITH_SYSTEM, Prepared


def turns(*roles):
    return {"messages": [{"role": role, "content": f"as {role}"} for role in roles]}


class BadInput(Prepared):
    """Each kind: a sentence that says where and what, and nothing left behind."""

    LINES = {  # what stands in line 2, and words of the sentence about it
        "broken JSON": ('{"messages": [', "line 2: not JSON"),
        "a JSON string": ('"hello"', "line 2: a JSON string, an object expected"),
        "a JSON array in a line": ("[1, 2]", "line 2: a JSON array, an object expected"),
        "JSON nested too deeply": ('{"a":' * 100000 + "1" + "}" * 100000, "line 2:"),
        "other keys": ('{"question": "a", "answer": "b"}', "'question', 'answer'; 'messages'"),
        "ShareGPT's keys": ('{"conversations": [{"from": "human", "value": "a"}]}', 'a chat is {"messages"'),
        "messages that are a string": ('{"messages": "hi"}', "'messages' is a JSON string, an array expected"),
        "a message that is a string": ('{"messages": ["hi"]}', "message 1 is a JSON string"),
        "an unknown role": (json.dumps(turns("human", "assistant")), "message 1: its role is 'human'"),
        "no role": ('{"messages": [{"content": "x"}]}', "message 1: its role is None"),
        "no content": ('{"messages": [{"role": "user"}]}', "message 1: its 'content' is missing"),
        "content that is a number": ('{"messages": [{"role": "user", "content": 5}]}', "is a JSON number, a string"),
        "an image": ('{"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}', "'image'; only text"),
        "an answer first": (json.dumps(turns("assistant", "user", "assistant")), "message 1: a message of 'assistant' at"),
        "two questions in a row": (json.dumps(turns("user", "user", "assistant")), "message 2: a message of 'user' after"),
        "a system message late": (json.dumps(turns("user", "system", "assistant")), "message 2: a message of 'system'"),
        "a tool that nobody called": (json.dumps(turns("user", "assistant", "tool")), "that calls no tool"),
        "no answer": (json.dumps(turns("user")), "no message is of 'assistant'"),
        "half a surrogate pair": ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "half of a surrogate pair"),
        "a key that only texts have here": ('{"plain": 5}', "its keys are 'plain'; 'messages'"),
        "a prompt that is a list": ('{"prompt": [1], "completion": "x"}', "'prompt' is a JSON array, a string"),
        "a text that is null": ('{"text": null}', "'text' is a JSON null, a string expected"),
    }

    def refused(self, code, words, *arguments, model=None, out="out"):
        model = model or self.model()
        out = self.folder / out
        before = sorted(self.folder.rglob("*"))
        ended, text, err = self.command(main, *arguments, "--model", model, "--out", out)
        self.assertEqual(ended, code, err)
        said = [line for line in err.splitlines() if line.startswith("penstock: ")]
        self.assertEqual((len(said), text), (1, ""), err)
        self.assertIn(words, said[0])
        self.assertNotIn("Traceback", err)
        self.assertEqual(sorted(self.folder.rglob("*")), before, "something is left behind")

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def test_lines(self):
        good = json.dumps(CHATS[0])
        for kind, (line, words) in self.LINES.items():
            with self.subTest(kind):
                self.refused(5, words, self.file("bad.jsonl", f"{good}\n{line}\n{good}\n"))
                self.prepared(self.folder / "bad.jsonl", "--skip-bad", "--force", out="skipped")
        self.refused(5, "line 3: not UTF-8: byte 0xe9 at column 22",
                     self.file("bad.jsonl", f"{good}\n{good}\n".encode() + b'{"text": "all right, \xe9"}\n'))

    def test_files(self):
        good = json.dumps(CHATS[0]) + "\n"
        for words, name, content in (
                ("is UTF-16", "wide.jsonl", good.encode("utf-16")),
                ("is UTF-32", "wide.jsonl", good.encode("utf-32")),
                ("zero bytes", "wide.jsonl", good.encode("utf-16-le")),
                ("is gzip", "packed.jsonl", b"\x1f\x8b\x08" + bytes(20)),
                ("is zstd", "packed.jsonl", b"\x28\xb5\x2f\xfd" + bytes(20)),
                ("is Parquet", "packed.jsonl", b"PAR1" + bytes(20)),
                ("is a JSON array", "array.json", "[" + good.strip() + "]"),
                ("line 2: not UTF-8", "latin.txt", "gut\nsch\xf6n\n".encode("latin-1"))):
            with self.subTest(words):
                self.refused(5, words, self.file(name, content))
        for words, path in (("no such file", self.folder / "absent.jsonl"), ("not a file", self.folder),
                            ("its name does not say", self.file("chats.csv", good))):
            with self.subTest(words):
                self.refused(2, words, path)
        self.refused(2, "nothing to learn: of 0 samples", self.file("empty.jsonl", ""))
        self.refused(2, "nothing to learn: of 1 samples 1 were empty", self.file("blank.jsonl", '{"text": ""}\n\n\n'))
        if os.geteuid() != 0:
            hidden = self.file("hidden.jsonl", good)
            hidden.chmod(0)
            self.refused(4, "Permission denied", hidden)

    def test_lines_that_are_too_long_are_one_bad_line_each(self):
        good = json.dumps(CHATS[0]) + "\n"
        with unittest.mock.patch.object(sources, "LINE_MOST_BYTES", len(good)):
            path = self.file("long.jsonl", good + "x" * 5 * len(good) + "\n" + good + "{\n" + "y" * len(good))
            found = self.prepared(path, "--skip-bad", "--keep-duplicates", "--validation", 0)
            self.refused(5, "line 2: longer than", path)
        self.assertEqual(([bad["line"] for bad in found.manifest["bad_lines"]], found.manifest["documents"]), ([2, 4, 5], 2))

    def test_a_mark_of_utf8_is_none_of_the_text(self):
        for name, content in (("a.jsonl", '{"text": "Of Mans"}'), ("a.txt", "Of Mans")):
            plain = self.prepared(self.file(name, content), "--validation", 0, out=f"{name}-plain")
            marked = self.prepared(self.file(name, b"\xef\xbb\xbf" + content.encode()), "--validation", 0, out=f"{name}-marked")
            self.assertEqual(marked.tokens.tolist(), plain.tokens.tolist())

    def test_lines_of_a_text_that_are_bad_leave_the_others_as_they_are(self):
        for content, kept in ((b"one\nbad \xe9\nthree\n", "one\nthree\n"), (b"bad \xe9\ntwo", "two"), (b"one\nbad \xe9 byte", "one\n")):
            [line] = sources.lines_of(self.file("book.txt", content), 0, 1)
            self.assertEqual((line.record["plain"], len(line.more_wrong)), (kept, 1))

    def test_models(self):
        path = write_lines(self.folder / "chats.jsonl", CHATS)
        small = model_folder(self.folder / "small", "chatml", vocabulary=100)
        self.refused(2, "the vocabulary of its config.json has 100", path, model=small)
        self.refused(2, "no such folder", path, model=self.folder / "absent")
        bare = model_folder(self.folder / "bare", "chatml")
        (bare / "config.json").unlink()
        self.refused(2, "has no config.json", path, model=bare)
        without = self.folder / "without"
        without.mkdir()
        shutil.copy(self.model() / "config.json", without)
        self.refused(2, "has no tokenizer", path, model=without)
        broken = model_folder(self.folder / "broken", "chatml")
        (broken / "tokenizer.json").write_text("{")
        self.refused(2, "its tokenizer cannot be loaded", path, model=broken)
        silent = model_folder(self.folder / "silent", "chatml", template="")
        (silent / "chat_template.jinja").unlink(missing_ok=True)
        self.refused(2, "has no chat template", path, model=silent)
        raising = model_folder(self.folder / "raising", "chatml", template="{{ raise_exception('never') }}")
        self.refused(5, "line 1: the chat template refuses it: never", path, model=raising)
        unfinished = model_folder(self.folder / "unfinished", "chatml", template="{% for m in messages %}")
        self.refused(5, "line 1: the chat template refuses it", path, model=unfinished)
        gemma = self.model("gemma")
        self.refused(5, "System role not supported", write_lines(self.folder / "system.jsonl", WITH_SYSTEM), model=gemma)

    def test_of_another_models_tokenizer_are_remarked(self):
        other = model_folder(self.folder / "other", "chatml", eos_token_id=3)
        found = self.prepared(CHATS, model=other)
        self.assertIn("is it this model's tokenizer?", found.manifest["remarks"][0])

    def test_options(self):
        path = write_lines(self.folder / "chats.jsonl", CHATS)
        for words, options in (("the model's context has 4096", ["--length", 5000]), ("at least 2 tokens", ["--length", 1]),
                               ("a share from 0", ["--validation", 1]), ("a share from 0", ["--validation", "nan"]),
                               ("2 weights for 1 files", ["--weights", "1,2"]), ("weights above 0", ["--weights", "-1"]),
                               ("numbers separated by commas", ["--weights", "much"]), ("unrecognized", ["--lenght", 3]),
                               ("No such file", ["--template", self.folder / "absent.jinja"]),
                               ("invalid choice", ["--turns", "some"]), ("from 0 to", ["--seed", -1])):
            with self.subTest(words):
                self.refused(2, words, path, *options)
        self.refused(2, "no such folder", path, out="absent/out")

    def test_what_needs_no_tokenizer_is_refused_before_one_is_loaded(self):
        """Loading takes seconds. Here transformers cannot be imported, which would be said instead."""
        path, there = write_lines(self.folder / "chats.jsonl", CHATS), self.folder / "there"
        model = self.model()
        there.mkdir()
        without = self.folder / "without"
        without.mkdir()
        shutil.copy(model / "config.json", without)
        with unittest.mock.patch.dict(sys.modules, {"transformers": None}):
            self.refused(4, "chats are tokenised by transformers", path)
            self.refused(2, f"--out: {there}: exists already", path, out="there")
            self.refused(2, "is not a prepared set", path, "--force", out="there")
            self.refused(2, "the model's context has 4096", path, "--length", 5000)
            self.refused(2, "No such file", path, "--template", self.folder / "absent.jinja")
            self.refused(2, "its name does not say", self.file("chats.csv", "x"))
            self.refused(5, "is gzip", self.file("packed.jsonl", b"\x1f\x8b\x08" + bytes(20)))
            self.refused(2, "has no tokenizer", path, model=without)

    def test_show_that_is_mistyped(self):
        for word in ("shwo", "sho", "shows"):
            code, text, err = self.command(main, word, self.folder / "my chats", 2)
            self.assertEqual((code, text), (2, ""))
            self.assertEqual(err, f"penstock: data: {word}: no such file, and no verb of `penstock data`\n"
                                  f"try: penstock data show '{self.folder}/my chats' 2\n")
        self.assertIn("--model: missing", self.command(main, "chats.jsonl")[2])
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.file("shwo", "x")
        self.assertIn("--model: missing", self.command(main, "shwo")[2])

    def test_what_is_the_users_stays(self):
        """Beside the set, and in its place, though --force be given."""
        path = write_lines(self.folder / "chats.jsonl", CHATS)
        bad = self.file("bad.jsonl", "{")
        for name in ("out.partial", "out.replaced"):
            for make in (lambda place: place.write_text("mine"), lambda place: (place.mkdir(), self.file(f"{place.name}/poem", "mine"))):
                make(self.folder / name)
                for file in (path, bad):
                    self.refused(2, f"{name}: would be replaced, and is not of a prepared set", file)
                subprocess.run(["rm", "-r", self.folder / name], check=True)
        other = self.folder / "other"
        other.mkdir()
        self.file("other/manifest.json", '{"name": "of something else"}')
        self.file("other/poem", "mine")
        self.refused(2, "is not a prepared set", path, "--force", out="other")
        self.prepared(CHATS)
        (self.folder / "link").symlink_to(self.folder / "set")
        self.refused(2, "is a link, so it is not replaced", path, "--force", out="link")
        # What is left of a set is none of the user's.
        (self.folder / "set" / "manifest.json").write_text("{")
        shutil.copytree(self.folder / "set", self.folder / "set.replaced")
        self.prepared(CHATS, "--force")
        self.assertFalse((self.folder / "set.replaced").exists())

    def test_a_full_drive(self):
        """A drive of 256 KiB; where none can be mounted, a limit on the size of files."""
        path = write_lines(self.folder / "chats.jsonl", [chat(f"Number {i}?", "word " * 300) for i in range(400)])
        small = self.folder / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True)
        if mounted.returncode == 0:
            self.addCleanup(subprocess.run, ["umount", small], check=True)
        else:
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
            self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
            resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, limits[1]))
        self.refused(3, "No space left" if mounted.returncode == 0 else "File too large", path, out="small/out")
