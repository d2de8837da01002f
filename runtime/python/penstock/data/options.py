"""The options of `penstock data FILE...`."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex

from .._refusal import Refusal
from .._verb import Arguments, count


def options_of(arguments: list[str], parser: Arguments) -> argparse.Namespace:
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--out", metavar="DIR")
    parser.add_argument("--length", type=count)
    parser.add_argument("--turns", choices=("all", "last"), default="all")
    parser.add_argument("--layout", choices=("packed", "padded"), default="packed")
    parser.add_argument("--long", choices=("truncate", "drop"), default="truncate")
    parser.add_argument("--weights")
    parser.add_argument("--validation", type=float, default=0.01)
    parser.add_argument("--seed", type=count, default=0)
    parser.add_argument("--template", metavar="FILE")
    parser.add_argument("--keep-duplicates", action="store_true")
    parser.add_argument("--skip-bad", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    if not options.files:
        raise Refusal("data: no files are given", "penstock data chats.jsonl --model ./Qwen3-0.6B --out ./chats")
    first, rest = options.files[0], options.files[1:]
    if not os.path.exists(first) and difflib.get_close_matches(first, ["show"]):
        raise Refusal(f"data: {first}: no such file, and no verb of `penstock data`",
                      shlex.join(["penstock", "data", "show", *rest]))
    for name in ("model", "out"):
        if not getattr(options, name):
            raise Refusal(f"data: --{name}: missing", "penstock data chats.jsonl --model ./Qwen3-0.6B --out ./chats")
    options.out = os.path.normpath(options.out)  # what lies beside ./chats/ is beside ./chats
    if not 0 <= options.validation < 1:
        raise Refusal(f"--validation: {options.validation:g}: a share from 0 to below 1 expected")
    if not 0 <= options.seed < 1 << 64:
        raise Refusal(f"--seed: {options.seed}: a number from 0 to {(1 << 64) - 1} expected")
    options.weights = _weights(options)
    return options


def _weights(options: argparse.Namespace) -> list[float] | None:
    if options.weights is None:
        return None
    try:
        weights = [float(word) for word in options.weights.split(",")]
    except ValueError:
        raise Refusal(f"--weights: {options.weights}: numbers separated by commas expected", "--weights 3,1") from None
    if len(weights) != len(options.files):
        raise Refusal(f"--weights: {len(weights)} weights for {len(options.files)} files", "one weight for each file")
    if not all(0 < weight < float("inf") for weight in weights):
        raise Refusal(f"--weights: {options.weights}: weights above 0 expected")
    return weights
