"""The `penstock` command, which the package carries, called from Python: options by name, answers as dictionaries."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ._refusal import ENVIRONMENT, Refusal

log = logging.getLogger("penstock")


def path() -> str:
    """Where PENSTOCK_COMMAND says; beside this file, as pip installs it; or on PATH."""
    beside = Path(__file__).parent / "bin" / "penstock"
    found = os.environ.get("PENSTOCK_COMMAND") or (str(beside) if beside.exists() else shutil.which("penstock"))
    if not found:
        raise Refusal("the command `penstock` is not on PATH",
                      "install the package with pip, or name the command in PENSTOCK_COMMAND", ENVIRONMENT)
    return found


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """As the command takes them.

    >>> arguments_of(dict(params=7e9, budget=dict(host="64GiB", device=None), clip=False, machine=None, force=True))
    ['--params', '7000000000', '--budget', 'host=64GiB', '--clip', 'off', '--force']
    """
    arguments = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={one}" for key, one in value.items() if one is not None)
        if name == "clip" and isinstance(value, bool):
            value = "on" if value else "off"
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or value is False:
            continue
        arguments.append("--" + name.replace("_", "-"))
        if value is not True:
            arguments.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return arguments


def run(words: Iterable[object], heard: Callable[[str], object] | None = None) -> dict[str, Any]:
    """Runs the command with these words; its JSON object, {} if it said nothing. Its refusal is raised. heard() gets its
    lines of progress, which go to stderr otherwise. Ctrl-C waits until its last step is committed."""
    command = [path(), *map(str, words), "--json"]
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, text=True, errors="replace",
                              stderr=subprocess.PIPE if heard else None) as process:
            try:
                if heard:
                    for line in process.stderr or ():
                        heard(line.strip())
                process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                process.communicate()
                raise
        output.seek(0)
        said = output.read()
    nothing = {"message": f"{' '.join(command)}: ended with {process.returncode} and no answer", "code": ENVIRONMENT}
    try:
        found = json.loads(said) if said.strip() else {}
    except ValueError:
        found = {"error": nothing}
    if "error" in found or process.returncode:
        if "fits" in found:
            return found  # what does not fit is an answer
        refusal = found.get("error", nothing)
        raise Refusal(refusal["message"], refusal.get("try", ""), refusal["code"])
    return found


def answer(*verb: str, **options: object) -> dict[str, Any]:
    """The verb's JSON object; `options` by name. Its lines of progress go to logging."""
    return run([*verb, *arguments_of(options)], lambda line: log.info("%s", line))


def main() -> NoReturn:
    os.execv(path(), ["penstock", *sys.argv[1:]])
