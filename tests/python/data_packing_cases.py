"""How samples become rows, and what is held out of them. data_test.py runs these."""
import json
import random
import unittest.mock

import numpy as np
import transformers

from data_support import TEXT, chat, model_folder, write_lines
from penstock.data import packing, sources
from prepared_support import CHATS, RECORDS, SEED, Prepared


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

    def test_takes_what_is_as_long_as_a_row_as_it_is(self):
        records = [chat("Short?", "Yes."), chat("Long?", "word " * 50)]
        length = int(np.diff(self.prepared(records, "--validation", 0, out="whole").documents.astype(int)).max())
        for room, long, counts in ((length, "truncate", (0, 0, 0)), (length, "drop", (0, 0, 0)), (length - 1, "truncate", (1, 1, 0)),
                                   (length - 1, "drop", (0, 0, 1))):
            found = self.prepared(records, "--length", room, "--long", long, "--validation", 0, out=f"{room}-{long}")
            self.assertEqual(tuple(found.manifest["counts"][name] for name in ("truncated", "tokens_cut", "too_long")), counts)

    def test_counts_tokens_and_those_that_are_learnt(self):
        found = self.prepared(RECORDS, "--validation", 0.1)
        self.assertEqual(found.manifest["tokens"], len(found.tokens))
        self.assertEqual(found.manifest["tokens_learnt"], int(found.learnt.sum()))
        [entry] = found.manifest["sets"]
        for part in ("train", "validation"):
            rows = range(entry[part]["first_row"], entry[part]["first_row"] + entry[part]["rows"])
            self.assertEqual(entry[part]["tokens"], sum(len(found.document(int(i))[0]) for row in rows for i in found.row(row)))

    def test_has_rows_of_2048_tokens_or_of_the_models_context(self):
        for context, length in ((4096, 2048), (1000, 1000), (None, 2048)):
            model = model_folder(self.folder / f"context-{context}", "chatml", context=context)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
            self.assertEqual(self.prepared(CHATS, model=model, out=f"set-{context}").manifest["length"], length)

    def test_fills_rows_with_a_token_of_the_models_vocabulary(self):
        """Its own for padding, or else the end of a text."""
        begin = self.special("<|im_start|>")
        for vocabulary, padding in ((begin + 1, begin), (begin, self.special("<|im_end|>"))):
            model = model_folder(self.folder / f"model-{vocabulary}", "chatml", vocabulary=vocabulary)
            fast = transformers.AutoTokenizer.from_pretrained(model)
            fast.pad_token = "<|im_start|>"
            fast.save_pretrained(model)
            found = self.prepared([{"text": "Of Mans First"}], model=model, out=f"set-{vocabulary}")
            self.assertEqual(found.manifest["padding"], padding)

    def special(self, token):
        return transformers.AutoTokenizer.from_pretrained(self.model()).convert_tokens_to_ids(token)

    def test_counts_duplicates_and_what_is_empty(self):
        records = [CHATS[0], CHATS[0], {"messages": []}, chat("Q?", "  "), {"prompt": "p", "completion": ""}, {"text": " "},
                   CHATS[1], CHATS[0]]
        found = self.prepared(records)
        counts = found.manifest["counts"]
        self.assertEqual((counts["samples"], counts["duplicates"], counts["empty"]), (8, 2, 4))
        self.assertEqual(found.manifest["documents"], 2)
        self.assertEqual(self.prepared(records, "--keep-duplicates", out="all").manifest["documents"], 4)

    def test_takes_for_a_duplicate_only_what_teaches_the_same(self):
        records = [chat("One?", "First.", "Two?", "Second.") for _ in range(3)]
        records[1]["messages"][1]["weight"] = 0
        found = self.prepared(records)
        self.assertEqual((found.manifest["documents"], found.manifest["counts"]["duplicates"]), (2, 1))

    def test_keeps_the_parts_of_a_text_that_are_alike(self):
        self.enterContext(unittest.mock.patch.object(sources, "CHUNK_BYTES", 200))
        text = "Of Man's first disobedience\n" * 100
        (self.folder / "book.txt").write_text(text)
        found = self.prepared(self.folder / "book.txt", "--validation", 0)
        self.assertEqual((found.manifest["counts"]["duplicates"], found.manifest["counts"]["samples"] > 10), (0, True))
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model())
        self.assertEqual(tokenizer.decode(found.tokens, clean_up_tokenization_spaces=False), text + "<|im_end|>")

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
    def validation(self, found):
        part = found.manifest["sets"][0]["validation"]
        return sorted(tuple(found.document(int(i))[0].tolist()) for row in range(part["first_row"], part["first_row"] + part["rows"])
                      for i in found.row(row))

    def test_is_a_share_that_depends_on_content_and_seed_alone(self):
        first = self.validation(self.prepared(RECORDS, "--validation", 0.1, out="a"))
        self.assertEqual(len(first), 5)
        shuffled = random.Random(SEED).sample(RECORDS, len(RECORDS))
        self.assertEqual(self.validation(self.prepared(shuffled, "--validation", 0.1, out="b")), first)
        self.assertNotEqual(self.validation(self.prepared(RECORDS, "--validation", 0.1, "--seed", 1, out="c")), first)

    def test_is_rounded_up(self):
        keys = [bytes([i]) for i in range(50)]
        for share, count in ((0.1, 5), (0.101, 6), (0.001, 1), (0, 0), (0.999, 49)):
            self.assertEqual(int(packing.held_out(keys, share, lambda key: key).sum()), count, share)

    def test_has_nothing_that_is_learnt_too(self):
        found = self.prepared(RECORDS * 3, "--validation", 0.2, "--keep-duplicates")
        held_out = self.validation(found)
        self.assertEqual(len(held_out), 30)
        train = found.manifest["sets"][0]["train"]
        learnt = {tuple(found.document(int(i))[0].tolist()) for row in range(train["first_row"], train["first_row"] + train["rows"])
                  for i in found.row(row)}
        self.assertFalse(learnt & set(held_out))

    def test_is_taken_of_the_pieces_of_a_book(self):
        (self.folder / "book.txt").write_text(TEXT.read_text(encoding="utf-8")[:20000], encoding="utf-8")
        found = self.prepared(self.folder / "book.txt", "--length", 64, "--validation", 0.1)
        self.assertEqual(len(self.validation(found)), -(-found.manifest["documents"] // 10))

    def test_takes_all_pieces_of_a_text_or_none(self):
        text = TEXT.read_text(encoding="utf-8")
        pieces = [self.prepared([{"text": one}], "--length", 64, "--validation", 0, out=f"{len(one)}").manifest["documents"]
                  for one in (text[:3000], text[3000:9000])]
        found = self.prepared([{"text": text[:3000]}, {"text": text[3000:9000]}], "--length", 64, "--validation", 0.5)
        self.assertIn(len(self.validation(found)), pieces)
        self.assertEqual(found.manifest["documents"], sum(pieces))

    def test_leaves_something_to_learn(self):
        self.assertEqual(self.prepared(RECORDS[:1], "--validation", 0.9).manifest["sets"][0]["validation"]["rows"], 0)

    def test_is_taken_of_each_set_of_several_with_weights(self):
        other = write_lines(self.folder / "other.jsonl", [chat(f"Other {i}?", "Yes.") for i in range(20)])
        found = self.prepared(RECORDS, other, "--weights", "3,1", "--validation", 0.1)
        sets = found.manifest["sets"]
        self.assertEqual([(s["name"], s["weight"]) for s in sets], [("chats.jsonl", 3), ("other.jsonl", 1)])
        self.assertEqual([s["validation"]["documents"] for s in sets], [5, 2])
        rows = [range(s[p]["first_row"], s[p]["first_row"] + s[p]["rows"]) for s in sets for p in ("train", "validation")]
        self.assertEqual([r for part in rows for r in part], list(range(found.manifest["rows"])))
