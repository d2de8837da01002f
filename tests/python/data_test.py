#!/usr/bin/env python3
"""penstock.data: what a prepared set is known by, how it is shown, and what is answered.

Usage: data_test.py [CASE...], with PYTHONPATH set. Ends with 77 where transformers is absent.
"""
import base64
import json
import sys
import types
import unittest
import unittest.mock

try:
    import numpy  # noqa: F401
    import tokenizers  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from data_bad_input_cases import BadInput  # noqa: F401
from data_interruption_cases import Interruptions  # noqa: F401
from data_mask_cases import Masks  # noqa: F401
from data_packing_cases import HeldOut, Packing  # noqa: F401
from data_support import chat, write_lines
from penstock import prompts as prompting
from penstock._refusal import Refusal
from penstock._verb import count
from penstock.data.__main__ import main
from penstock.data.prepared import PreparedSet, hash_of
from prepared_support import CHATS, RECORDS, Prepared


class Hashes(Prepared):
    def test_say_what_is_trained_on_and_not_where_it_lies(self):
        records = RECORDS
        first = self.prepared(records, out="a")
        moved = self.folder / "elsewhere"
        moved.mkdir()
        again = self.prepared(write_lines(moved / "renamed.jsonl", records), out="b")
        self.assertEqual(first.manifest["hash"], again.manifest["hash"])
        different = {first.manifest["hash"]}
        for n, options in enumerate((["--length", 64], ["--turns", "last"], ["--layout", "padded"], ["--validation", 0.3],
                                     ["--seed", 9])):
            different.add(self.prepared(records if options[0] != "--turns" else [chat("a", "b", "c", "d")] + records,
                                        *options, out=f"c{n}").manifest["hash"])
        self.assertEqual(len(different), 6)

    def test_catch_a_set_that_was_changed(self):
        found = self.prepared(CHATS)
        manifest = found.manifest
        self.assertEqual(hash_of(manifest), manifest["hash"])

        def refused(word):
            with self.assertRaises(Refusal) as caught:
                PreparedSet(found.folder).verify()
            self.assertIn(word, caught.exception.message)

        learnt = (found.folder / "learnt.u8").read_bytes()
        (found.folder / "learnt.u8").write_bytes(bytes([learnt[0] ^ 1]) + learnt[1:])
        refused("SHA-256")
        (found.folder / "learnt.u8").write_bytes(learnt[:-1])
        refused("expected")
        (found.folder / "learnt.u8").write_bytes(learnt)
        (found.folder / "manifest.json").write_text(json.dumps({**manifest, "length": 17}))
        refused("hash")
        (found.folder / "manifest.json").write_text("{")
        refused("manifest.json")
        part = {**manifest["sets"][0], "train": {"first_row": 0, "rows": manifest["rows"] + 1}}
        for changed, word in (({"format": "penstock.data/2"}, "its format is 'penstock.data/2'"), ({"sets": [part]}, "rows that are not there")):
            changed = {**manifest, **changed}
            (found.folder / "manifest.json").write_text(json.dumps({**changed, "hash": hash_of(changed)}))
            refused(word)


class Show(Prepared):
    def test_marks_what_is_learnt(self):
        self.prepared([chat("One?", "First.", "Two?", "Second.")], "--validation", 0)
        code, text, err = self.command(main, "show", self.folder / "set", 1)
        self.assertEqual(code, 0, err)
        self.assertIn("<|im_start|>assistant\n[[First.<|im_end|>]]\n<|im_start|>user\nTwo?<|im_end|>", text)
        code, text, _ = self.command(main, "show", self.folder / "set", "--color", "always")
        self.assertIn("\033[32mFirst.<|im_end|>\033[0m", text)
        self.assertNotIn("[[", text)

    def test_lets_no_sample_speak_to_the_terminal(self):
        self.prepared([chat("a\u001b[2Jb", "c\u0007\u009bd")], "--validation", 0)
        _, text, _ = self.command(main, "show", self.folder / "set")
        self.assertIn("a\\x1b[2Jb", text)
        self.assertIn("[[c\\x07\\x9bd", text)
        self.assertFalse(set(text) & {"\x1b", "\x07", "\x9b"})

    def test_answers_in_json_and_shows_what_is_held_out(self):
        self.prepared(RECORDS, "--validation", 0.1)
        code, text, _ = self.command(main, "show", self.folder / "set", 100, "--part", "validation", "--json")
        answer = json.loads(text)
        self.assertEqual((code, answer["schema"], len(answer["documents"])), (0, "penstock.data.show/1", 5))
        first = answer["documents"][0]
        self.assertEqual(len(first["tokens"]), len(first["learnt"]))

    def test_refuses_in_a_sentence(self):
        found = self.prepared(CHATS)
        for arguments, code, word in (((self.folder,), 2, "not a prepared set"), ((found.folder, 0), 2, "at least 1"),
                                      ((found.folder, "--model", self.folder), 2, "cannot be loaded"),
                                      ((found.folder, "--model", "absent"), 2, "absent: no such folder"),
                                      ((found.folder, "many"), 2, "invalid count")):
            with self.subTest(word):
                ended, _, err = self.command(main, "show", *arguments)
                self.assertEqual(ended, code, err)
                self.assertIn(word, err)
                self.assertNotIn("huggingface", err)


class Prompts(Prepared):
    """What a run asks for its samples."""

    def answer(self, folder, *prompts):
        code, text, _ = self.command(lambda words: prompting.main(*words), folder, *map(json.dumps, prompts))
        return json.loads(text)

    def test_are_tokenised_as_the_model_was_taught(self):
        answer = self.answer(self.model(), "Who?", {"text": "Who?"})
        self.assertEqual(answer["prompts"][0]["text"], "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(answer["prompts"][1]["text"], "Who?")

    def test_end_where_the_model_says(self):
        """Its generation_config.json before its config.json, and that before the tokenizer."""
        folder, tokenizer = self.folder / "ends", types.SimpleNamespace(eos_token_id=1)
        folder.mkdir()
        self.assertEqual(prompting.ends_of(tokenizer, folder), [1])
        for name, content, ends in (("config.json", {"text_config": {"eos_token_id": 2}}, [2]), ("config.json", {"eos_token_id": 0}, [0]),
                                    ("generation_config.json", {"eos_token_id": [3, 4]}, [3, 4]), ("generation_config.json", {}, [0])):
            (folder / name).write_text(json.dumps(content))
            self.assertEqual(prompting.ends_of(tokenizer, folder), ends)

    def test_are_answered_in_the_text_of_tokens_that_were_added(self):
        fast = transformers.AutoTokenizer.from_pretrained(self.model())
        fast.add_tokens(["né"])
        fast.save_pretrained(self.model())
        answer = self.answer(self.model())
        content, lengths = base64.b64decode(answer["bytes"]), answer["lengths"]
        texts = [content[sum(lengths[:i]):sum(lengths[:i + 1])] for i in range(len(lengths))]
        added = fast.convert_tokens_to_ids("né")
        self.assertEqual((texts[added], texts[fast.eos_token_id]), ("né".encode(), b""))
        self.assertEqual(b"".join(texts[i] for i in fast("Übermut 日本\n")["input_ids"]), "Übermut 日本\n".encode())

    def test_a_tokenizer_that_is_not_there_is_missing_and_nothing_of_the_network(self):
        """With what is kept of the network too: a word is a folder here."""
        for folder in ("gpt2", "absent/folder", self.folder / "absent"):
            with unittest.mock.patch.dict(sys.modules, {"transformers": None}):  # it is not even asked
                error = self.answer(folder, "Who?")["error"]
            self.assertEqual((error["code"], error["message"]), (2, f"samples: {folder}: no such folder"))
            self.assertIn("--tokenizer", error["try"])


class Answers(Prepared):
    def test_say_what_was_made_as_text_and_as_json(self):
        path = write_lines(self.folder / "chats.jsonl", CHATS + CHATS[:1])
        code, text, err = self.command(main, path, "--model", self.model(), "--out", self.folder / "a")
        self.assertEqual(code, 0, err)
        self.assertIn("read       6 samples: 0 empty, 1 duplicate, 0 bad lines", text)
        code, text, _ = self.command(main, path, "--model", self.model(), "--out", self.folder / "b", "--json")
        answer = json.loads(text)
        self.assertEqual((answer["schema"], answer["documents"], answer["counts"]["duplicates"]), ("penstock.data/1", 5, 1))
        code, text, _ = self.command(main, path, "--model", self.model(), "--out", self.folder / "b", "--json")
        self.assertEqual((code, json.loads(text)["error"]["code"]), (2, 2))

    def test_replace_a_set_only_when_told_to(self):
        first = self.prepared(CHATS).manifest["hash"]
        path = write_lines(self.folder / "chats.jsonl", CHATS[:2])
        code, _, err = self.command(main, path, "--model", self.model(), "--out", self.folder / "set")
        self.assertEqual((code, PreparedSet(self.folder / "set").manifest["hash"]), (2, first))
        self.assertNotEqual(self.prepared(CHATS[:2], "--force").manifest["hash"], first)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["chats.jsonl", "model-chatml", "set"])
        precious = self.folder / "precious"
        precious.mkdir()
        code, _, err = self.command(main, path, "--model", self.model(), "--out", precious, "--force")
        self.assertEqual(code, 2)
        self.assertIn("not a prepared set", err)

    def test_numbers_are_those_of_the_command(self):
        self.assertEqual([count(word) for word in ("500", "20k", "20K", "3M", "1.5k", "2B")], [500, 20000, 20000, 3000000, 1500, 2 * 10**9])
        for word in ("1.5", "k", "3m", "many"):
            self.assertRaises(ValueError, count, word)

    def test_say_in_rows_and_documents_what_a_set_has(self):
        path = write_lines(self.folder / "chats.jsonl", RECORDS)
        code, text, _ = self.command(main, path, "--model", self.model(), "--out", self.folder / "a", "--validation", 0.1)
        found = PreparedSet(self.folder / "a").manifest
        [entry] = found["sets"]
        self.assertNotEqual(entry["train"]["rows"], entry["train"]["documents"])
        self.assertIn(f"tokens     {found['tokens']}, of which {found['tokens_learnt']} are learnt", text)
        self.assertIn(f"set        all, weight 1: 45 documents in {entry['train']['rows']} row to train on, 5 in 1 held out\n", text)

    def test_count_bad_lines_where_they_are_to_be_skipped(self):
        path = self.folder / "mixed.jsonl"
        good = [json.dumps(record) for record in CHATS]
        path.write_bytes("\n".join([good[0], "{broken", good[1], '{"a": 1}', "", good[2]]).encode() + b"\n\xff\xfe\n")
        found = self.prepared(path, "--skip-bad", "--validation", 0)
        self.assertEqual((found.manifest["documents"], found.manifest["counts"]["bad_lines"]), (3, 3))
        self.assertEqual([bad["line"] for bad in found.manifest["bad_lines"]], [2, 4, 7])
        book = self.folder / "book.txt"
        book.write_bytes(b"good line\nbad \xe9 line\nanother\n")
        found = self.prepared(book, "--skip-bad", "--validation", 0, out="book")
        self.assertEqual([bad["line"] for bad in found.manifest["bad_lines"]], [2])


if __name__ == "__main__":
    unittest.main(verbosity=1)
