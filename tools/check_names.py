#!/usr/bin/env python3
"""Checks that no two files define different types of one name in one namespace.

Usage: check_names.py [FOLDER]. Two such types are one to the linker: it keeps one of the functions that both have, such as
the destructor of a Result of them, which then destroys the other. No compiler sees it. What is in a nameless namespace is
the file's own and may have any name.
"""
import collections
import re
import sys
from pathlib import Path

FOLDERS = ("tiering", "aio", "gpu", "cpu_optim", "runtime", "tools")
SKIPPED = re.compile(r'R"\w*\(.*?\)\w*"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\]|\\.)\'(?![0-9a-fA-F])|//[^\n]*|/\*.*?\*/', re.DOTALL)
TOKEN = re.compile(r"[{};]|\bnamespace(?:\s+(?P<space>[\w:]+))?\s*(?=\{)"
                   r"|\b(?:struct|class)\s+(?:\[\[\w+\]\]\s*)?(?P<type>\w+)(?:\s+final)?\s*(?::[^:{;()][^{;()]*)?(?=\{)")


def types_of(source):
    """The types at the level of a namespace that has a name."""
    open_ones, opening = [], "{"
    for token in TOKEN.finditer(SKIPPED.sub(" ", source)):
        if token[0] == "{":
            open_ones.append(opening)
        elif token[0] == "}":
            if open_ones:
                open_ones.pop()
        elif token["type"] and all(one.startswith("namespace ") for one in open_ones) and "namespace " not in open_ones:
            yield "::".join([one.removeprefix("namespace ") for one in open_ones] + [token["type"]])
        opening = f"namespace {token['space'] or ''}" if token[0].startswith("namespace") else "{"


def main(root):
    places = collections.defaultdict(set)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                for name in types_of(path.read_text(encoding="utf-8")):
                    places[name].add(str(path.relative_to(root)))
    twice = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    for name, paths in sorted(twice.items()):
        print(f"{name} is defined in {' and in '.join(paths)}: give one of them another name")
    print(f"{len(places)} types, {len(twice)} with one name for two")
    return bool(twice) or not places


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)))
