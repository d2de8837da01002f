"""`penstock data FILE... --model FOLDER --out DIR`."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._refusal import INTERRUPTED, Refusal
from .._verb import Arguments, Progress
from . import packing, sources
from .chat import Chats
from .encoder import Encoder
from .model import Model
from .options import options_of
from .prepared import FILES, FORMAT, hash_of, sha256_of
from .sources import BadLine, Line
from .writing import KEY_BYTES, AppearedMeanwhile, Writing, is_set

VERSION = 2  # of what is made from the same files; part of what an interrupted preparation must agree in
BATCH = 128  # samples that are tokenised at once
JOURNAL_TOKENS = 4 << 20
REMEMBERED_BAD = 20
DEFAULT_LENGTH = 2048

COUNTS = ("samples", "empty", "duplicates", "bad_lines", "truncated", "tokens_cut", "too_long", "nothing_to_learn",
          "prompts_at_the_end", "tokens_across_borders", "turns_without_end")


class Preparation:
    """A set in the making. `options` are those of options_of()."""

    def __init__(self, options: argparse.Namespace, model: Model, progress: Progress) -> None:
        self.options, self.model, self.progress = options, model, progress
        self.paths = [os.fspath(path) for path in options.files]
        self.sizes = [sources.check_file(path) for path in self.paths]
        self.names = [os.path.basename(path) for path in self.paths] if options.weights else ["all"]
        self.counts = dict.fromkeys(COUNTS, 0)
        self.bad: list[dict[str, Any]] = []
        self.length = self._length()
        self.tokens_since_journal = 0
        self.chats = Chats(model.tokenizer, options.turns)  # last: from here on it takes seconds

    def _length(self) -> int:
        context, length = self.model.context, self.options.length
        if length is None:
            return min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)
        if length < 2:
            raise Refusal(f"--length: {length}: rows of at least 2 tokens expected")
        if context and length > context:
            raise Refusal(f"--length: {length}: the model's context has {context} tokens", f"--length {context}")
        return length

    def identity(self) -> list[Any]:
        o = self.options
        files = [(os.path.abspath(path), size, os.stat(path).st_mtime_ns) for path, size in zip(self.paths, self.sizes)]
        return [VERSION, files, self.model.hash(), self.model.vocabulary, self.length, o.turns, o.layout, o.weights,
                o.validation, o.seed, o.long, o.keep_duplicates, o.skip_bad]

    def run(self) -> dict[str, Any]:
        writing = Writing(self.options.out, self.identity())
        try:
            start = self._restore(writing.state)
            if writing.state:
                self.progress.note(f"going on after {self.counts['samples']} samples of an interrupted preparation")
            self._read(writing, *start)
            manifest = self._manifest(writing)
            writing.finish(manifest)
        except KeyboardInterrupt:
            writing.keep()
            raise Refusal(f"data: interrupted: {self.counts['samples']} samples are read",
                          "run it again to go on from there", INTERRUPTED) from None
        except AppearedMeanwhile:
            writing.keep()
            raise
        except BaseException:
            writing.abandon()
            raise
        return manifest

    def _restore(self, state: dict[str, Any] | None) -> tuple[int, int, int]:
        if not state:
            return 0, 0, 1
        self.counts, self.bad = state["counts"], state["bad"]
        self.chats.turns_without_end = self.counts["turns_without_end"]
        return state["file"], state["byte"], state["line"]

    def _state(self, file: int, byte: int, line: int) -> dict[str, Any]:
        self.counts["turns_without_end"] = self.chats.turns_without_end
        return {"file": file, "byte": byte, "line": line, "counts": self.counts, "bad": self.bad}

    def _read(self, writing: Writing, first_file: int, byte: int, number: int) -> None:
        whole, before = sum(self.sizes), sum(self.sizes[:first_file])
        for file in range(first_file, len(self.paths)):
            path = self.paths[file]
            lines = sources.lines_of(path, byte, number)
            while batch := list(itertools.islice(lines, 1 if sources.is_text(path) else BATCH)):
                self._take(writing, file, batch)
                byte, number = batch[-1].next_byte, batch[-1].number + 1
                if self.tokens_since_journal >= JOURNAL_TOKENS:
                    # A chunk of text has many lines; where the next begins is a byte, and its number counts nothing else.
                    writing.journal(self._state(file, byte, self._next_number(path, byte, number)))
                    self.tokens_since_journal = 0
                self.progress.update((before + byte) / max(whole, 1), f"{self.counts['samples']} samples, {path}")
            before, byte, number = before + self.sizes[file], 0, 1
            writing.journal(self._state(file + 1, 0, 1))

    def _next_number(self, path: str, byte: int, number: int) -> int:
        if not sources.is_text(path):
            return number
        with open(path, "rb") as file:
            return 1 + sum(part.count(b"\n") for part in iter(lambda: file.read(min(1 << 20, byte - file.tell())), b""))

    def _take(self, writing: Writing, file: int, lines: list[Line]) -> None:
        """Samples of some lines, in their order."""
        encoder = Encoder(self.model, self.chats, self.counts)
        for line in lines:
            for number, wrong in [(line.number, line.wrong)] * bool(line.wrong) + line.more_wrong:
                self._bad_line(file, number, wrong)
            if line.record is None:
                continue
            try:
                encoder.add(line)
            except BadLine as bad:
                self._bad_line(file, line.number, str(bad))
        which_set = file if self.options.weights else 0
        for kind, tokens, learnt in encoder.encoded(self.paths[file], self.sizes[file]):
            self.model.check(tokens)
            self._keep(writing, which_set, kind, tokens, learnt)

    def _bad_line(self, file: int, number: int, wrong: str) -> None:
        if not self.options.skip_bad:
            raise sources.refused(self.paths[file], number, wrong)
        self.counts["bad_lines"] += 1
        if len(self.bad) < REMEMBERED_BAD:
            self.bad.append({"file": self.paths[file], "line": number, "wrong": wrong})

    def _keep(self, writing: Writing, which_set: int, kind: str, tokens: Any, learnt: Any) -> None:
        self.counts["samples"] += 1
        tokens, learnt = np.asarray(tokens, dtype="<u4"), np.asarray(learnt, dtype="u1").copy()
        learnt[:1] = 0
        key = hashlib.blake2b(tokens.tobytes() + b"|" + learnt.tobytes(), digest_size=KEY_BYTES).digest()
        if kind != "plain" and key in writing.keys and not self.options.keep_duplicates:
            self.counts["duplicates"] += 1
            return
        if kind in ("text", "plain"):
            # Each piece begins with the token that the one before it ended with, so that every token is learnt once.
            for first in range(0, max(len(tokens) - 1, 1), self.length - 1):
                piece = tokens[first:first + self.length]
                marks = learnt[first:first + self.length].copy()
                marks[:1] = 0
                if len(piece) < 2:
                    continue
                own = key if kind == "text" else hashlib.blake2b(piece.tobytes(), digest_size=KEY_BYTES).digest()
                self._add(writing, which_set, own, piece, marks)
            return
        if len(tokens) > self.length:
            if self.options.long == "drop":
                self.counts["too_long"] += 1
                return
            self.counts["truncated"] += 1
            self.counts["tokens_cut"] += len(tokens) - self.length
            tokens, learnt = tokens[:self.length], learnt[:self.length]
        if not learnt.any():
            self.counts["nothing_to_learn"] += 1
            return
        self._add(writing, which_set, key, tokens, learnt)

    def _add(
        self, writing: Writing, which_set: int, key: bytes, tokens: NDArray[Any], learnt: NDArray[Any]
    ) -> None:
        writing.add(which_set, key, tokens, learnt)
        self.tokens_since_journal += len(tokens)

    def _manifest(self, writing: Writing) -> dict[str, Any]:
        samples = writing.samples()
        if len(samples) == 0:
            raise Refusal(f"data: {', '.join(self.paths)}: nothing to learn: of {self.counts['samples']} samples "
                          f"{self.counts['empty']} were empty, {self.counts['too_long']} too long and "
                          f"{self.counts['nothing_to_learn']} left nothing to learn; {self.counts['bad_lines']} lines were bad")
        lengths = samples["tokens"].astype(np.int64)
        order, starts, sets = [], [0], []
        for number, name in enumerate(self.names):
            mine = np.flatnonzero(samples["set"] == number)
            if len(mine) == 0:
                raise Refusal(f"data: {self.paths[number]}: has nothing to learn, so it cannot have a weight",
                              "leave the file out")
            keys = [bytes(key) for key in samples["key"][mine]]
            chosen = packing.held_out(keys, self.options.validation, self._seed_key)
            entry = {"name": name, "weight": self.options.weights[number] if self.options.weights else 1.0}
            for part, members in (("train", mine[~chosen]), ("validation", mine[chosen])):
                own = [int(lengths[i]) for i in members]
                rows = packing.padded(own) if self.options.layout == "padded" else packing.packed(own, self.length)
                entry[part] = {"first_row": len(starts) - 1, "rows": len(rows), "documents": len(members),
                               "tokens": int(sum(own))}
                for row in rows:
                    order += [int(members[i]) for i in row]
                    starts.append(len(order))
            sets.append(entry)
        writing.write("documents.u64", np.concatenate([[0], np.cumsum(lengths)]))
        writing.write("order.u64", order)
        writing.write("rows.u64", starts)
        files = {name: {"bytes": os.path.getsize(writing.folder / name), "sha256": sha256_of(writing.folder / name)}
                 for name in FILES}
        learnt = int(np.fromfile(writing.folder / "learnt.u8", dtype="u1").sum(dtype=np.int64))
        self.counts["turns_without_end"] = self.chats.turns_without_end
        manifest = {
            "format": FORMAT, "hash": "", "length": self.length, "layout": self.options.layout,
            "padding": self.model.padding(), "vocabulary": self.model.vocabulary, "turns": self.options.turns,
            "documents": len(samples), "rows": len(starts) - 1, "tokens": int(lengths.sum()), "tokens_learnt": learnt,
            "fill": float(lengths.sum() / ((len(starts) - 1) * self.length)),
            "counts": self.counts, "bad_lines": self.bad, "remarks": self._remarks(), "sets": sets, "files": files,
            "model": os.path.abspath(self.model.folder), "tokenizer_sha256": self.model.hash(), "seed": self.options.seed,
            "sources": [os.path.abspath(path) for path in self.paths],
        }
        manifest["hash"] = hash_of(manifest)
        return manifest

    def _seed_key(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self.options.seed.to_bytes(8, "little")).digest()

    def _remarks(self) -> list[str]:
        remarks = self.model.remarks()
        if self.counts["turns_without_end"]:
            remarks.append(f"{self.counts['turns_without_end']} answers end with no special token: the model does not "
                           f"learn to stop there")
        if self.counts["tokens_across_borders"]:
            remarks.append(f"{self.counts['tokens_across_borders']} tokens run across the border of prompt and answer; "
                           f"they are learnt")
        if "strftime_now" in (self.model.tokenizer.chat_template or ""):
            remarks.append("the chat template may write today's date into each chat")
        return remarks


def counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def text_of(manifest: dict[str, Any], out: str) -> str:
    counts, lines = manifest["counts"], []
    lines.append(f"{out}: {counted(manifest['documents'], 'document')} in {counted(manifest['rows'], 'row')} of {manifest['length']} tokens, "
                 f"{manifest['fill'] * 100:.1f} % full")
    lines.append(f"tokens     {manifest['tokens']}, of which {manifest['tokens_learnt']} are learnt "
                 f"({manifest['tokens_learnt'] / manifest['tokens'] * 100:.1f} %)")
    for part in manifest["sets"]:
        lines.append(f"set        {part['name']}, weight {part['weight']:g}: {counted(part['train']['documents'], 'document')} in "
                     f"{counted(part['train']['rows'], 'row')} to train on, {part['validation']['documents']} in "
                     f"{part['validation']['rows']} held out")
    lines.append(f"read       {counted(counts['samples'], 'sample')}: {counts['empty']} empty, {counted(counts['duplicates'], 'duplicate')}, "
                 f"{counted(counts['bad_lines'], 'bad line')}")
    lines.append(f"too long   {counts['truncated']} cut by {counts['tokens_cut']} tokens, {counts['too_long']} left out; "
                 f"{counts['nothing_to_learn']} had nothing to learn")
    if counts["prompts_at_the_end"]:
        lines.append(f"           {counts['prompts_at_the_end']} chats ended without an answer; what followed the last one "
                     f"is left out")
    for bad in manifest["bad_lines"][:5]:
        lines.append(f"bad        {bad['file']}: line {bad['line']}: {bad['wrong']}")
    lines += [f"note       {remark}" for remark in manifest["remarks"]]
    lines.append(f"hash       {manifest['hash']}")
    return "\n".join(lines) + "\n"


def check_out(out: str, force: bool) -> None:
    """Refuses to replace what is there, but for a set, or what is left of one, where that is wanted."""
    if os.path.lexists(out) and not force:
        raise Refusal(f"--out: {out}: exists already", "another folder, or --force to replace it")
    if os.path.islink(out):
        raise Refusal(f"--out: {out}: is a link, so it is not replaced", f"--out {os.path.realpath(out)}")
    if os.path.lexists(out) and not (os.path.isfile(os.path.join(out, "manifest.json")) and is_set(out)):
        raise Refusal(f"--out: {out}: is not a prepared set, so it is not replaced", "another folder")
    for beside in (f"{out}.partial", f"{out}.replaced"):
        if os.path.lexists(beside) and not is_set(beside):
            raise Refusal(f"--out: {beside}: would be replaced, and is not of a prepared set", "another --out, or move that away")
    parent = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(parent):
        raise Refusal(f"--out: {parent}: no such folder", f"mkdir -p {shlex.quote(parent)}")


def prepare(arguments: list[str], progress: Progress, parser: Arguments) -> tuple[str, dict[str, Any]]:
    """What `penstock data` does; its answer as text and as fields."""
    options = options_of(arguments, parser)
    for path in options.files:
        if not os.path.exists(path):
            raise Refusal(f"data: {path}: no such file", "check the path: a .jsonl, .txt or .md expected")
        if not os.path.isfile(path):
            raise Refusal(f"data: {path}: not a file", f"{shlex.quote(path)}/*.jsonl" if os.path.isdir(path) else "")
    check_out(options.out, options.force)
    manifest = Preparation(options, Model(options.model, options.template), progress).run()
    return text_of(manifest, options.out), {"out": os.path.abspath(options.out), **manifest}
