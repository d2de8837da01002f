#!/usr/bin/env python3
"""penstock.data: which tokens are learnt, how they are packed, and what is refused.

Usage: data_test.py [CASE...], with PYTHONPATH set. Ends with 77 where transformers is absent.
"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import numpy as np
    import tokenizers  # noqa: F401
    import transformers
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(77)

from data_support import SPECIAL, TEXT, VOCABULARY, Folders, chat, model_folder, template_of, write_lines
from penstock._refusal import Refusal
from penstock.data import packing, prepare as preparing, sources
from penstock.data.__main__ import main
from penstock.data.prepared import PreparedSet, hash_of
from penstock.data.writing import Writing

SEED = 7
CHATS = [
    chat("Who wrote Paradise Lost?", "John Milton did."),
    chat("One?", "First.", "Two?", "Second.", "Three?", "The third one."),
    chat("  spaces around \n", "\n kept or trimmed  "),
    chat("naïve café — \U0001f600?", "Übermut \U0001f680\U0001f680", "日本", "は\n\nい"),
    chat("a", "b", "c", "d" * 300),
]
WITH_SYSTEM = [chat("Who?", "I.", "And?", "You.", system="Be brief.")]
TOOLS = {"messages": [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": {
        "name": "warmth", "arguments": {"place": "here"}}}]},
    {"role": "tool", "content": "21"},
    {"role": "assistant", "content": "It is 21 degrees."}]}
REASONING = [
    chat("2+2?", "<think>\nTwo and two.\n</think>\n\nFour."),
    chat("2+2?", "<think>\nTwo and two.\n</think>\n\nFour.", "And 3?", "<think>\nHm.\n</think>\n\nSeven."),
]


def chats_of(family):
    more = [] if family == "gemma" else WITH_SYSTEM
    return CHATS + more + {"qwen2.5": [TOOLS], "qwen3": REASONING}.get(family, [])


class Prepared(Folders):
    def prepared(self, records, *options, model=None, family="chatml", name="chats.jsonl", out="set"):
        """The set made of records, or of a file."""
        model = model or self.model(family)
        path = records if isinstance(records, Path) else write_lines(self.folder / name, records)
        code, text, err = self.command(main, path, "--model", model, "--out", self.folder / out, *options)
        self.assertEqual(code, 0, err)
        found = PreparedSet(self.folder / out)
        found.verify()
        self.assertFalse((self.folder / f"{out}.partial").exists())
        return found

    def model(self, family="chatml", **more):
        path = self.folder / f"model-{family}"
        return path if path.exists() and not more else model_folder(path, family, **more)

    def in_order(self, records, *options, **more):
        """Tokens and marks of each document, in the order of the file."""
        found = self.prepared(records, "--layout", "padded", "--validation", 0, "--keep-duplicates", *options, **more)
        return [tuple(part.tolist() for part in found.document(i)) for i in range(len(found.documents) - 1)]


class Masks(Prepared):
    def test_are_those_of_transformers_where_templates_mark_what_is_generated(self):
        for family in SPECIAL:
            with self.subTest(family):
                records = chats_of(family)
                found = self.in_order(records, family=family, out=f"set-{family}")
                marked = transformers.AutoTokenizer.from_pretrained(self.model(family))
                marked.chat_template = template_of(family, marked=True)
                self.assertEqual(len(found), len(records))
                for record, (tokens, learnt) in zip(records, found):
                    theirs = marked.apply_chat_template(record["messages"], return_dict=True,
                                                        return_assistant_tokens_mask=True)
                    self.assertEqual(tokens, list(theirs["input_ids"]))
                    self.assertEqual(learnt, list(theirs["assistant_masks"]), marked.convert_ids_to_tokens(tokens))
                    self.assertGreater(sum(learnt), 0)

    def test_are_the_same_by_a_template_with_marks_and_by_one_without(self):
        for family in ("llama3", "qwen3"):
            for turns in ("all", "last"):
                with self.subTest(family, turns=turns):
                    both = []
                    for marked in (False, True):
                        model = model_folder(self.folder / f"{family}-{marked}", family, template_of(family, marked))
                        both.append(self.in_order(chats_of(family), "--turns", turns, model=model,
                                                  out=f"{family}-{turns}-{marked}"))
                    self.assertEqual(*both)

    LEARNT = {  # of two turns: all, and where the last is learnt alone
        "llama3": (["First.<|eot_id|>", "Second.<|eot_id|>"]),
        "qwen2.5": (["First.<|im_end|>", "Second.<|im_end|>"]),
        "qwen3": (["First.<|im_end|>", "<think>\n\n</think>\n\nSecond.<|im_end|>"]),
        "mistral": (["First.</s>", "Second.</s>"]),
        "chatml": (["First.<|im_end|>", "Second.<|im_end|>"]),
        "gemma": (["First.<end_of_turn>", "Second.<end_of_turn>"]),
    }

    def test_are_the_answers_with_their_end_and_nothing_else(self):
        for family, expected in self.LEARNT.items():
            for turns, answers in (("all", expected), ("last", expected[-1:])):
                with self.subTest(family, turns=turns):
                    [(tokens, learnt)] = self.in_order([chat("One?", "First.", "Two?", "Second.")], "--turns", turns,
                                                       family=family, out=f"{family}-{turns}")
                    tokenizer = transformers.AutoTokenizer.from_pretrained(self.model(family))
                    text = tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark])
                    self.assertEqual("".join(text.split(" ")), "".join("".join(answers).split(" ")))

    def test_follow_the_tools_of_a_chat(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model("qwen2.5"))
        [(tokens, learnt)] = self.in_order([TOOLS], family="qwen2.5")
        text = tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark])
        self.assertEqual(text, 'I look.\n<tool_call>\n{"name": "warmth", "arguments": {"place": "here"}}\n</tool_call>'
                               '<|im_end|>It is 21 degrees.<|im_end|>')

    def test_leave_out_an_answer_of_weight_0(self):
        record = chat("One?", "First.", "Two?", "Second.")
        record["messages"][1]["weight"] = 0
        [(tokens, learnt)] = self.in_order([record])
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model())
        self.assertEqual(tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark]), "Second.<|im_end|>")

    def test_of_a_completion_are_its_tokens_and_the_end(self):
        for family in ("llama3", "chatml", "gemma"):
            with self.subTest(family):
                [(tokens, learnt)] = self.in_order([{"prompt": "To be or", "completion": " not to be"}], family=family,
                                                   out=family)
                tokenizer = transformers.AutoTokenizer.from_pretrained(self.model(family))
                begin, end, _ = SPECIAL[family]
                self.assertEqual(tokenizer.decode([t for t, m in zip(tokens, learnt) if m]).strip(), f"not to be{end}")
                self.assertEqual(tokens[0] == tokenizer.bos_token_id, begin is not None)

    def refused_template(self, template, record, *options):
        model = model_folder(self.folder / "odd", "chatml", template)
        path = write_lines(self.folder / "odd.jsonl", [record])
        code, _, err = self.command(main, path, "--model", model, "--out", self.folder / "refused", *options)
        self.assertEqual(code, 5, err)
        self.assertFalse((self.folder / "refused").exists())
        return err

    def test_are_refused_where_the_prompt_changes_once_it_is_answered(self):
        # As Mistral's v3 does: the system's message goes into the last message, if that is the user's.
        template = ("{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set m = messages[1:] %}"
                    "{% else %}{% set s = '' %}{% set m = messages %}{% endif %}{% for x in m %}{% if x.role == 'user' %}"
                    "[INST] {{ s if loop.last else '' }}{{ x.content }} [/INST]{% else %} {{ x.content }}{{ eos_token }}"
                    "{% endif %}{% endfor %}")
        err = self.refused_template(template, WITH_SYSTEM[0])
        self.assertIn("where the answer begins cannot be known", err)
        self.assertIn("line 1: message 3", err)

    def test_are_refused_where_the_generation_prompt_is_not_in_the_chat(self):
        template = template_of("chatml").replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
        self.assertIn("where the answer begins cannot be known", self.refused_template(template, CHATS[0]))

    def test_are_refused_without_a_generation_prompt(self):
        template = template_of("chatml").partition("{% if add_generation_prompt %}")[0]
        self.assertIn("has no generation prompt", self.refused_template(template, CHATS[0]))

    def test_are_refused_where_no_special_token_ends_a_changed_turn(self):
        template = ("{% for x in messages %}{% if x.role == 'user' %}Q: {{ x.content }}\n{% else %}A: {{ x.content }}"
                    "{% if loop.last %}!{% endif %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}")
        err = self.refused_template(template, CHATS[1])
        self.assertIn("where the answer ends cannot be known", err)
        self.assertIn("--turns last", err)
        self.in_order([CHATS[1]], "--turns", "last", model=self.folder / "odd")

    def test_say_that_a_turn_without_end_does_not_teach_to_stop(self):
        template = ("{% for x in messages %}{% if x.role == 'user' %}Q: {{ x.content }}\n{% else %}A: {{ x.content }}\n"
                    "{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}")
        model = model_folder(self.folder / "odd", "chatml", template)
        found = self.prepared([CHATS[1]], model=model)
        self.assertEqual(found.manifest["counts"]["turns_without_end"], 3)
        self.assertGreater(found.manifest["counts"]["tokens_across_borders"], 0)  # the space before an answer
        self.assertTrue(any("learn to stop" in remark for remark in found.manifest["remarks"]))


class Packing(Prepared):
    def test_puts_each_document_into_one_row_that_has_room(self):
        rng = random.Random(SEED)
        for count, room in ((1, 2), (50, 64), (400, 100), (3000, 4096)):
            lengths = [min(room, 2 + int(rng.expovariate(4 / room))) for _ in range(count)]
            rows = packing.packed(lengths, room)
            self.assertEqual(sorted(i for row in rows for i in row), list(range(count)))
            self.assertLessEqual(max(sum(lengths[i] for i in row) for row in rows), room)
            least = -(-sum(lengths) // room)
            self.assertLessEqual(len(rows), 1.25 * least + 1, f"seed {SEED}")  # best fit decreasing: at most 11/9 + 1
            self.assertEqual(rows, packing.packed(lengths, room))

    def test_keeps_every_document_as_it_is(self):
        records = [chat(f"Number {i}?", "It is " + "one more " * (i % 9)) for i in range(60)]
        apart = self.in_order(records, out="padded")
        together = self.prepared(records, "--validation", 0, "--length", 128, out="packed")
        self.assertEqual(together.manifest["layout"], "packed")
        self.assertLess(together.manifest["rows"], 60)
        self.assertGreater(together.manifest["fill"], 0.9)
        found = [tuple(p.tolist() for p in together.document(i)) for row in range(len(together.rows) - 1)
                 for i in together.row(row)]
        self.assertEqual(sorted(found), sorted(apart))

    def test_cuts_what_is_too_long_and_counts_it(self):
        records = [chat("Short?", "Yes."), chat("Long?", "word " * 200), chat("word " * 200, "never seen")]
        found = self.prepared(records, "--length", 40, "--validation", 0)
        counts = found.manifest["counts"]
        self.assertEqual((counts["truncated"], counts["nothing_to_learn"], found.manifest["documents"]), (2, 1, 2))
        whole = self.prepared(records, "--validation", 0, out="whole")
        self.assertEqual(counts["tokens_cut"], sum(max(0, int(n) - 40) for n in np.diff(whole.documents.astype(int))))
        dropped = self.prepared(records, "--length", 40, "--long", "drop", "--validation", 0, out="dropped")
        self.assertEqual((dropped.manifest["counts"]["too_long"], dropped.manifest["documents"]), (2, 1))

    def test_counts_duplicates_and_what_is_empty(self):
        records = [CHATS[0], CHATS[0], {"messages": []}, chat("Q?", "  "), {"prompt": "p", "completion": ""}, {"text": " "},
                   CHATS[1], CHATS[0]]
        found = self.prepared(records)
        counts = found.manifest["counts"]
        self.assertEqual((counts["samples"], counts["duplicates"], counts["empty"]), (8, 2, 4))
        self.assertEqual(found.manifest["documents"], 2)
        self.assertEqual(self.prepared(records, "--keep-duplicates", out="all").manifest["documents"], 4)

    def test_learns_every_token_of_a_text_once(self):
        text = TEXT.read_text(encoding="utf-8")[:60000]
        path = self.folder / "book.txt"
        path.write_text(text, encoding="utf-8")
        found = self.prepared(path, "--length", 100, "--validation", 0, family="llama3")
        documents = [found.document(i) for i in range(len(found.documents) - 1)]
        stream = list(documents[0][0][:1])
        for tokens, learnt in documents:
            self.assertEqual(stream[-1], tokens[0])
            self.assertEqual(learnt.tolist(), [0] + [1] * (len(tokens) - 1))
            stream += tokens[1:].tolist()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model("llama3"))
        self.assertEqual(stream, tokenizer(text)["input_ids"] + [tokenizer.eos_token_id])

    def test_reads_a_text_in_chunks_of_whole_lines(self):
        path = self.folder / "book.txt"
        path.write_text("Of Man's first disobedience, and the fruit\n" * 30000, encoding="utf-8")
        found = self.prepared(path, "--validation", 0, "--length", 512)
        eos = transformers.AutoTokenizer.from_pretrained(self.model()).eos_token_id
        self.assertEqual(int((found.tokens == eos).sum()), 1)  # one text has one end
        self.assertEqual(found.manifest["counts"]["samples"], 2)  # of 1 MiB at most


    def test_reads_a_line_without_end_in_parts_that_are_whole_characters(self):
        self.addCleanup(setattr, sources, "CHUNK_BYTES", sources.CHUNK_BYTES)
        text = "né 日本 \U0001f600" * 700
        path = self.folder / "line.txt"
        path.write_text(text, encoding="utf-8")
        for size in range(997, 1003):
            sources.CHUNK_BYTES = size
            lines = list(sources.lines_of(path, 0, 1))
            self.assertGreater(len(lines), 5)
            self.assertEqual("".join(line.record["plain"] for line in lines), text)
            self.assertEqual([line.more_wrong for line in lines], [[]] * len(lines))
        path.write_bytes(text.encode()[:-1])  # what a file ends with is not begun, but broken
        self.assertTrue(list(sources.lines_of(path, 0, 1))[-1].more_wrong)


class HeldOut(Prepared):
    RECORDS = [chat(f"Number {i}?", f"It is {i}.") for i in range(50)]

    def validation(self, found):
        part = found.manifest["sets"][0]["validation"]
        return sorted(tuple(found.document(int(i))[0].tolist()) for row in range(part["first_row"], part["first_row"] + part["rows"])
                      for i in found.row(row))

    def test_is_a_share_that_depends_on_content_and_seed_alone(self):
        first = self.validation(self.prepared(self.RECORDS, "--validation", 0.1, out="a"))
        self.assertEqual(len(first), 5)
        shuffled = random.Random(SEED).sample(self.RECORDS, len(self.RECORDS))
        self.assertEqual(self.validation(self.prepared(shuffled, "--validation", 0.1, out="b")), first)
        self.assertNotEqual(self.validation(self.prepared(self.RECORDS, "--validation", 0.1, "--seed", 1, out="c")), first)

    def test_is_rounded_up(self):
        keys = [bytes([i]) for i in range(50)]
        for share, count in ((0.1, 5), (0.101, 6), (0.001, 1), (0, 0), (0.999, 49)):
            self.assertEqual(int(packing.held_out(keys, share, lambda key: key).sum()), count, share)

    def test_has_nothing_that_is_learnt_too(self):
        found = self.prepared(self.RECORDS * 3, "--validation", 0.2, "--keep-duplicates")
        held_out = self.validation(found)
        self.assertEqual(len(held_out), 30)
        train = found.manifest["sets"][0]["train"]
        learnt = {tuple(found.document(int(i))[0].tolist()) for row in range(train["first_row"], train["first_row"] + train["rows"])
                  for i in found.row(row)}
        self.assertFalse(learnt & set(held_out))

    def test_leaves_something_to_learn(self):
        self.assertEqual(self.prepared(self.RECORDS[:1], "--validation", 0.9).manifest["sets"][0]["validation"]["rows"], 0)

    def test_is_taken_of_each_set_of_several_with_weights(self):
        other = write_lines(self.folder / "other.jsonl", [chat(f"Other {i}?", "Yes.") for i in range(20)])
        found = self.prepared(self.RECORDS, other, "--weights", "3,1", "--validation", 0.1)
        sets = found.manifest["sets"]
        self.assertEqual([(s["name"], s["weight"]) for s in sets], [("chats.jsonl", 3), ("other.jsonl", 1)])
        self.assertEqual([s["validation"]["documents"] for s in sets], [5, 2])
        rows = [range(s[p]["first_row"], s[p]["first_row"] + s[p]["rows"]) for s in sets for p in ("train", "validation")]
        self.assertEqual([r for part in rows for r in part], list(range(found.manifest["rows"])))


class Hashes(Prepared):
    def test_say_what_is_trained_on_and_not_where_it_lies(self):
        records = HeldOut.RECORDS
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


class Interruptions(Prepared):
    """What is killed anywhere is gone on with, and the set is the one that an undisturbed preparation makes."""

    def setUp(self):
        super().setUp()
        self.model()
        self.records = [chat(f"Number {i}?", f"It is {i}.", "Sure?", "word " * (i % 7)) for i in range(60)]
        self.path = write_lines(self.folder / "chats.jsonl", self.records)
        self.book = self.folder / "book.txt"
        self.book.write_text("Of Man's first disobedience, and the fruit\n" * 600, encoding="utf-8")
        for module, name, value in ((preparing, "BATCH", 7), (preparing, "JOURNAL_TOKENS", 50), (sources, "CHUNK_BYTES", 9000)):
            self.addCleanup(setattr, module, name, getattr(module, name))
            setattr(module, name, value)

    def attempt(self, out):
        return self.command(main, self.path, self.book, "--model", self.model(), "--out", self.folder / out, "--length", 64)

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

    def test_on_request_are_said_and_gone_on_with(self):
        for sent in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(sent.name):
                out = f"set-{sent.name}"
                self.assertEqual(self.child(out, 75, "add", sent), 130)
                self.assertEqual((self.folder / out).exists(), False)
                code, _, err = self.attempt(out)
                self.assertEqual(code, 0, err)
                self.assertIn("going on after", err)

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
        self.prepared(HeldOut.RECORDS, "--validation", 0.1)
        code, text, _ = self.command(main, "show", self.folder / "set", 100, "--part", "validation", "--json")
        answer = json.loads(text)
        self.assertEqual((code, answer["schema"], len(answer["documents"])), (0, "penstock.data.show/1", 5))
        first = answer["documents"][0]
        self.assertEqual(len(first["tokens"]), len(first["learnt"]))

    def test_refuses_in_a_sentence(self):
        found = self.prepared(CHATS)
        for arguments, code, word in (((self.folder,), 2, "not a prepared set"), ((found.folder, 0), 2, "at least 1"),
                                      ((found.folder, "--model", self.folder), 2, "cannot be loaded"),
                                      ((found.folder, "many"), 2, "invalid count")):
            with self.subTest(word):
                ended, _, err = self.command(main, "show", *arguments)
                self.assertEqual(ended, code, err)
                self.assertIn(word, err)


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


if __name__ == "__main__":
    unittest.main(verbosity=1)
