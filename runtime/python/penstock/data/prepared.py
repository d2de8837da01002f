"""A prepared set: a folder that `penstock data` writes once and the trainer reads. This page is its contract.

    manifest.json   what is below, the counts of the preparation, and the set's hash
    tokens.u32      the tokens of all documents, one document after another
    learnt.u8       for each token 1 if it is learnt, else 0
    documents.u64   D + 1 numbers: document d is tokens [documents[d], documents[d + 1]); from 0 to the tokens' number
    order.u64       each document's number once, in the order of the rows
    rows.u64        R + 1 numbers: row r is the documents order[rows[r]] to order[rows[r + 1] - 1]; from 0 to D

All numbers are little-endian. A document is what attention sees as one: a chat, a prompt with its completion, a piece
of text. It has at least 2 tokens and at most `length`. Its first token is not learnt, since nothing comes before it.

A row is a sequence of training. Its documents stand one after another; each one's positions begin with 0, and its
tokens see tokens of the same document alone. The documents of a row have `length` tokens at most together; what is left
is filled with `padding`, which is a document of its own that is not learnt. A padded set has one document a row.

Token i of a document is what tokens before i should lead to. So a learnt token is the target of the place before it,
and the last place of a document has none.

manifest.json, at least:
    format      "penstock.data/1"
    hash        SHA-256, over everything here that training can depend on
    length      places of a row
    padding     the token that fills rows
    vocabulary  more than the largest token
    files       by name: {"bytes", "sha256"}
    sets        one or more {"name", "weight", "train": {"first_row", "rows"}, "validation": {"first_row", "rows"}}:
                rows are chosen among the sets by weight, and within a set all are seen equally often. Sets share no
                row. Validation is never learnt.

There is no such folder before it is whole: it is made under another name, `.partial`, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .._refusal import CORRUPT, USAGE, Refusal

FORMAT = "penstock.data/1"
FILES = {"tokens.u32": "<u4", "learnt.u8": "u1", "documents.u64": "<u8", "order.u64": "<u8", "rows.u64": "<u8"}
_HASHED = ("format", "length", "padding", "vocabulary", "files", "sets")


def hash_of(manifest: dict[str, Any]) -> str:
    """The set's hash: it does not depend on where the set came from or when it was made."""
    kept = {key: manifest[key] for key in _HASHED}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sha256_of(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


class PreparedSet:
    """A set that is there, its files mapped. Refuses one that does not agree with the contract."""

    folder: Path
    manifest: dict[str, Any]
    tokens: NDArray[np.uint32]
    learnt: NDArray[np.uint8]
    documents: NDArray[np.uint64]
    order: NDArray[np.uint64]
    rows: NDArray[np.uint64]

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        if not path.is_file():
            raise Refusal(f"data: {self.folder}: not a prepared set: it has no manifest.json",
                          "`penstock data FILE... --model FOLDER --out FOLDER` makes one", USAGE)
        try:
            self.manifest = json.loads(path.read_bytes())
            wrong = self._wrong_manifest()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"manifest.json: {error}"
        if wrong:
            raise self._corrupt(wrong)
        for name, dtype in FILES.items():
            setattr(self, name.partition(".")[0], self._mapped(name, dtype))
        if wrong := self._wrong_numbers():
            raise self._corrupt(wrong)

    def _corrupt(self, wrong: str) -> Refusal:
        return Refusal(f"data: {self.folder}: {wrong}", "prepare it again", CORRUPT)

    def _wrong_manifest(self) -> str:
        m = self.manifest
        if m["format"] != FORMAT:
            return f"its format is {m['format']!r}, {FORMAT!r} expected"
        if sorted(m["files"]) != sorted(FILES):
            return f"it names the files {sorted(m['files'])}, {sorted(FILES)} expected"
        if hash_of(m) != m["hash"]:
            return f"its hash is {hash_of(m)}, its manifest says {m['hash']}"
        return ""

    def _mapped(self, name: str, dtype: str) -> NDArray[Any]:
        path, bytes_expected = self.folder / name, self.manifest["files"][name]["bytes"]
        found = path.stat().st_size if path.is_file() else 0
        if found != bytes_expected:
            raise self._corrupt(f"{name} has {found} B, {bytes_expected} expected")
        return np.memmap(path, dtype=dtype, mode="r") if found else np.zeros(0, dtype)

    def _wrong_numbers(self) -> str:
        def runs(numbers: NDArray[np.uint64], until: int) -> bool:
            ends = len(numbers) > 0 and numbers[0] == 0 and numbers[-1] == until
            return bool(ends and (np.diff(numbers.astype(np.int64)) > 0).all())

        if len(self.learnt) != len(self.tokens):
            return f"{len(self.tokens)} tokens and {len(self.learnt)} marks"
        if not runs(self.documents, len(self.tokens)):
            return "documents.u64 does not rise from 0 to the number of tokens"
        if not np.array_equal(np.sort(self.order), np.arange(len(self.documents) - 1, dtype=np.uint64)):
            return "order.u64 does not name each document once"
        if not runs(self.rows, len(self.order)):
            return "rows.u64 does not rise from 0 to the number of documents"
        for part in self.manifest["sets"]:
            for which in ("train", "validation"):
                if part[which]["first_row"] + part[which]["rows"] > len(self.rows) - 1:
                    return f"set {part['name']!r} has rows that are not there"
        return ""

    def verify(self) -> None:
        """Reads every file, and refuses what is not as it was written."""
        for name, file in self.manifest["files"].items():
            if sha256_of(self.folder / name) != file["sha256"]:
                raise self._corrupt(f"{name} is not what was written: its SHA-256 differs")

    def document(self, number: int) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Tokens and marks of a document."""
        first, end = int(self.documents[number]), int(self.documents[number + 1])
        return self.tokens[first:end], self.learnt[first:end]

    def row(self, number: int) -> NDArray[np.uint64]:
        """The numbers of a row's documents."""
        return self.order[int(self.rows[number]):int(self.rows[number + 1])]
