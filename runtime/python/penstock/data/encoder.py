"""Encoder: records become tokens, each with a mark that says whether it is learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._refusal import Refusal
from . import sources
from .chat import Chats
from .model import Model
from .sources import Line


class Encoder:
    """Samples of a batch, tokenised together. What it meets is added up in `counts`."""

    def __init__(self, model: Model, chats: Chats, counts: dict[str, int]) -> None:
        self.model, self.chats, self.counts, self.tokenizer = model, chats, counts, model.tokenizer
        self.items: list[tuple[Any, ...]] = []  # (kind, text, spans, begins, ends) or (kind, tokens, learnt)

    def add(self, line: Line) -> None:
        record: Any = line.record  # there is one
        kind = "plain" if line.is_chunk else sources.kind_of(record)
        if kind == "chat":
            self._chat(record)
        elif kind == "completion":
            prompt, completion = sources.string_of(record, "prompt"), sources.string_of(record, "completion")
            if not completion.strip():
                self._empty()
            else:
                self._needs_end()
                whole = prompt + completion
                self.items.append((kind, whole, [(len(prompt), len(whole))], True, True))
        elif kind == "text":
            text = sources.string_of(record, "text")
            if not text.strip():
                self._empty()
            else:
                self._needs_end()
                self.items.append((kind, text, [(0, len(text))], True, True))
        elif record["plain"].strip():
            self._needs_end()
            self.items.append((kind, record["plain"], [(0, len(record["plain"]))], line.number == 1, line.next_byte))
        else:
            self.counts["empty"] += 1

    def _empty(self) -> None:
        self.counts["samples"] += 1
        self.counts["empty"] += 1

    def _needs_end(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise Refusal(f"--model: {self.model.folder}: its tokenizer has no eos_token, with which a text would end",
                          "name it in tokenizer_config.json")

    def _chat(self, record: dict[str, Any]) -> None:
        if not self.tokenizer.chat_template:
            raise Refusal(f"--model: {self.model.folder}: its tokenizer has no chat template",
                          "--template FILE gives one; or prepare prompts with completions")
        messages = sources.messages_of(record)
        if not messages:
            return self._empty()
        self.counts["prompts_at_the_end"] += len(messages) < len(record["messages"])
        tools = record.get("tools")
        if self.chats.marked:
            self.items.append(("chat", *self.chats.marked_tokens(messages, tools)))
        else:
            text, spans = self.chats.text_and_spans(messages, tools)
            self.items.append(("chat", text, spans, False, False))

    def encoded(self, path: str, size: int) -> Iterator[tuple[Any, ...]]:
        """Kind, tokens and marks of each, in order."""
        found: dict[int, tuple[Any, Any]] = {}
        for begins in (False, True):
            mine = [i for i, item in enumerate(self.items) if len(item) == 5 and item[3] == begins]
            if mine:
                texts = [self.items[i][1] for i in mine]
                encoded = self.tokenizer(texts, add_special_tokens=begins, return_offsets_mapping=True,
                                         return_attention_mask=False, verbose=False)
                found.update((i, (encoded["input_ids"][n], encoded["offset_mapping"][n])) for n, i in enumerate(mine))
        for i, item in enumerate(self.items):
            if len(item) == 3:
                yield item
                continue
            kind, text, spans, begins, ends = item
            tokens, offsets = found[i]
            learnt, across = marks_of(offsets, spans)
            self.counts["tokens_across_borders"] += across if kind == "chat" or kind == "completion" else 0
            tokens, end = list(tokens), self.tokenizer.eos_token_id
            if begins and tokens[-1:] == [end] and offsets[-1][0] == offsets[-1][1]:  # the tokenizer's own, of no character
                del tokens[-1], learnt[-1]
            if (ends if kind != "plain" else ends >= size) and tokens[-1:] != [end]:
                tokens.append(end)
                learnt.append(1)
            yield kind, tokens, learnt


def marks_of(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> tuple[list[int], int]:
    """For each token whether it has a character of a span, and how many tokens reach beyond the one they have."""
    starts, ends = (np.array([pair[side] for pair in offsets], dtype=np.int64) for side in (0, 1))
    marks, across = np.zeros(len(offsets), dtype=bool), 0
    for first, end in spans:
        mine = (starts < end) & (ends > first) & (starts < ends)
        across += int((mine & ((starts < first) | (ends > end))).sum())
        marks |= mine
    return marks.astype(int).tolist(), across
