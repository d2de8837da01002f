#!/usr/bin/env python3
"""What `penstock plan` answers to the questions in plan_answers.txt, word by word: whatever changes a plan, a number or a
word of it shows as a difference there. Where that is meant, --write puts the new answers in, to be read before they are
kept.

Usage: plan_answers_test.py PENSTOCK [--write]
"""
import difflib
import shlex
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE = Path(__file__).with_name("plan_answers.txt")


def answer(command, question):
    """What is printed, the files that were drawn as their sums, and the exit code unless it is 0."""
    with tempfile.TemporaryDirectory(prefix="penstock-plan-answers-") as folder:
        arguments = [word.replace("@", f"{folder}/") if word.startswith("@") else word for word in shlex.split(question)]
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=600)
        drawn = [f"{path.name}: crc32 {zlib.crc32(path.read_bytes()):08x}\n" for path in sorted(Path(folder).iterdir())]
        said = done.stdout + "".join(drawn)
        if done.returncode:
            said += f"exit {done.returncode}\n{done.stderr}"
        return said.replace(folder, "")


def main():
    command, write = sys.argv[1], "--write" in sys.argv
    asked = [(part + "\n").split("\n", 1) for part in ("\n" + FILE.read_text()).split("\n$ ")[1:]]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda one: answer(command, one[0]), asked))
    if write:
        FILE.write_text("".join(f"$ {question}\n{said.rstrip()}\n\n" for (question, _), said in zip(asked, answers)))
        return 0
    wrong = 0
    for (question, expected), said in zip(asked, answers):
        before, now = expected.strip().splitlines(), said.strip().splitlines()
        if before != now:
            wrong += 1
            print(f"penstock {question}")
            print("\n".join(difflib.unified_diff(before, now, "expected", "answered", lineterm="", n=1)), "\n")
    print(f"{len(asked)} questions, {wrong} answered differently")
    return wrong > 0


sys.exit(main())
