"""`penstock data show DIR [N]`: samples as text, with what is learnt marked: green in a terminal, [[ ]] elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from .._refusal import ENVIRONMENT, Refusal
from .._verb import Arguments, Progress, count
from .prepared import PreparedSet

LEARNT, REST, PLAIN = "\033[32m", "\033[2m", "\033[0m"


def visible(text: str) -> str:
    """Control characters of a sample do nothing to the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def runs_of(learnt: NDArray[Any]) -> Iterator[tuple[int, int, bool]]:
    """(first, end, learnt) of runs of equal marks."""
    first = 0
    for i in range(1, len(learnt) + 1):
        if i == len(learnt) or learnt[i] != learnt[first]:
            yield first, i, bool(learnt[first])
            first = i


def document_text(tokenizer: Any, tokens: NDArray[Any], learnt: NDArray[Any], color: bool) -> str:
    parts = []
    for first, end, is_learnt in runs_of(learnt):
        text = visible(tokenizer.decode([int(t) for t in tokens[first:end]], skip_special_tokens=False,
                                        clean_up_tokenization_spaces=False))
        if color:
            parts.append(f"{LEARNT if is_learnt else REST}{text}{PLAIN}")
        else:
            parts.append(f"[[{text}]]" if is_learnt else text)
    return "".join(parts)


def show(arguments: list[str], progress: Progress, parser: Arguments) -> tuple[str, dict[str, Any]]:
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("count", metavar="N", type=count, nargs="?", default=3)
    parser.add_argument("--part", choices=("train", "validation"), default="train")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    if options.count < 1:
        raise Refusal(f"data show: {options.count} samples, at least 1 expected")
    found = PreparedSet(options.folder)
    if options.check:
        found.verify()
    folder = options.model or found.manifest["model"]
    if not os.path.isdir(folder):  # transformers would take it for a name on the network
        raise Refusal(f"data show: {folder}: no such folder, and the set's tokenizer is expected there",
                      "--model FOLDER names where it is now")
    try:
        import transformers
    except ImportError as error:
        raise Refusal(f"data show: {error}: tokens are made text by transformers", "pip install transformers tokenizers",
                      ENVIRONMENT) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever is wrong with its files
        reason = " ".join(str(error).split())[:200]
        raise Refusal(f"data show: {folder}: its tokenizer cannot be loaded: {reason}",
                      "--model FOLDER names where it is now") from error
    color = options.color == "always" or (options.color == "auto" and sys.stdout.isatty())
    text, shown = [], []
    for number, row in documents_of(found, options.part, options.count):
        tokens, learnt = found.document(number)
        body = document_text(tokenizer, tokens, learnt, color)
        text.append(f"--- document {number}, row {row}: {len(tokens)} tokens, {int(learnt.sum())} learnt\n{body}\n")
        shown.append({"document": number, "row": row, "tokens": tokens.tolist(), "learnt": learnt.tolist(),
                      "text": document_text(tokenizer, tokens, learnt, False)})
    if not shown:
        raise Refusal(f"data show: {options.folder}: nothing is held out" if options.part == "validation" else
                      f"data show: {options.folder}: has no samples")
    return "".join(text), {"hash": found.manifest["hash"], "documents": shown}


def documents_of(found: PreparedSet, part: str, count: int) -> Iterator[tuple[int, int]]:
    """The first documents of the part, each with its row."""
    for entry in found.manifest["sets"]:
        first = entry[part]["first_row"]
        for row in range(first, first + entry[part]["rows"]):
            for number in found.row(row):
                if count == 0:
                    return
                count -= 1
                yield int(number), row
