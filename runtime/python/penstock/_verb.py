"""How a verb of the command that is written in Python meets its user: arguments, progress, answers, refusals."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from ._refusal import DOES_NOT_FIT, ENVIRONMENT, INTERRUPTED, USAGE, Refusal

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Arguments(argparse.ArgumentParser):
    """Refuses as the command does, and takes what all its verbs take."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.add_argument("--progress", choices=("auto", "json"), default="auto", help="json: an object a line on stderr")

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{self.prog.removeprefix('penstock ')}: {message}", f"{self.prog} --help")


def count(word: str) -> int:
    """A number as the command takes it: 500, 20k, 3M."""
    scale = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}.get(word[-1:], 1)
    number = float(word if scale == 1 else word[:-1]) * scale
    if number != int(number):
        raise ValueError(word)
    return int(number)


class Progress:
    """A bar in a terminal; elsewhere a plain line, at most every five seconds; or objects for a program. On stderr."""

    BAR_PAUSE_S, PLAIN_PAUSE_S, CELLS = 0.1, 5.0, 24

    def __init__(self, stream: TextIO | None = None, as_json: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._json = as_json
        self._terminal = self._stream.isatty() and not as_json
        self._last = time.monotonic() if not self._terminal else 0.0
        self._drawn = False

    def update(self, share: float, what: str) -> None:
        now = time.monotonic()
        if now - self._last < (self.BAR_PAUSE_S if self._terminal or self._json else self.PLAIN_PAUSE_S):
            return
        self._last = now
        if self._json:
            self._say({"progress": {"share": min(max(share, 0), 1), "what": what}})
            return
        percent = f"{min(max(share, 0), 1) * 100:3.0f} %"
        if self._terminal:
            full = int(min(max(share, 0), 1) * self.CELLS)
            self._stream.write(f"\r\033[K[{'#' * full}{' ' * (self.CELLS - full)}] {percent} {what}")
            self._drawn = True
        else:
            self._stream.write(f"{percent} {what}\n")
        self._stream.flush()

    def _say(self, fields: dict[str, Any]) -> None:
        self._stream.write(json.dumps(fields) + "\n")
        self._stream.flush()

    def note(self, line: str) -> None:
        if self._json:
            self._say({"note": line})
            return
        self.clear()
        self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._drawn = False


def refusal_of(error: OSError) -> Refusal:
    """What the system refused, in a sentence."""
    what = f"{error.filename}: {error.strerror}" if error.filename else (error.strerror or str(error))
    if error.errno in _NO_ROOM:
        return Refusal(what, "make room, or choose another place", DOES_NOT_FIT)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Refusal(what, "a place that may be read and written", ENVIRONMENT)
    return Refusal(what, code=USAGE if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR) else ENVIRONMENT)


def run(
    name: str, action: Callable[[list[str], Progress], tuple[str, dict[str, Any]]], arguments: list[str]
) -> int:
    """Runs `action(arguments, progress)`, which gives (text, fields); prints the answer or the refusal. The exit code.

    SIGTERM ends it as Ctrl-C does. A reader who closes the pipe has seen enough.
    """
    progress = Progress(as_json="--progress=json" in arguments or ("--progress", "json") in zip(arguments, arguments[1:]))
    as_json = "--json" in arguments

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    text, refusal = "", None
    fields: dict[str, Any] = {}
    try:
        text, fields = action(arguments, progress)
    except Refusal as refused:
        refusal = refused
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        refusal = refusal_of(error)
    except KeyboardInterrupt:
        refusal = Refusal(f"{name}: interrupted", code=INTERRUPTED)
    except MemoryError:
        refusal = Refusal(f"{name}: memory is exhausted", code=DOES_NOT_FIT)
    progress.clear()
    if refusal and not refusal.remedy and refusal.code == USAGE:
        refusal.remedy = f"penstock {name} --help"
    if as_json:
        answer = {"schema": f"penstock.{name.replace(' ', '.')}/1", **fields}
        if refusal:
            answer["error"] = {"code": refusal.code, "message": refusal.message, "try": refusal.remedy}
        text = json.dumps(answer, indent=2) + "\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if refusal is None:
        return 0
    sys.stderr.write(f"penstock: {refusal.message}\n" + (f"try: {refusal.remedy}\n" if refusal.remedy else ""))
    return refusal.code
