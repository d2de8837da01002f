"""The `penstock` command, which the package carries, called from Python: options by name, answers as dictionaries."""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ._refusal import ENVIRONMENT, PenstockError

log = logging.getLogger("penstock")


def path():
    """Where PENSTOCK_COMMAND says; beside this file, as pip installs it; or on PATH."""
    beside = Path(__file__).parent / "bin" / "penstock"
    found = os.environ.get("PENSTOCK_COMMAND") or (str(beside) if beside.exists() else shutil.which("penstock"))
    if not found:
        raise PenstockError("the command `penstock` is not on PATH", ENVIRONMENT, "install the package with pip, or name"
                            " the command in PENSTOCK_COMMAND")
    return found


def arguments_of(options):
    """As the command takes them.

    >>> arguments_of(dict(params=7e9, budget=dict(host="64GiB", device=None), clip=False, machine=None, force=True))
    ['--params', '7000000000', '--budget', 'host=64GiB', '--clip', 'off', '--force']
    """
    arguments = []
    for name, value in options.items():
        if isinstance(value, dict):
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


def answer(*verb, **options):
    """The verb's JSON object. Its lines of progress go to logging; its refusal is raised."""
    command = [path(), *verb, *arguments_of(options), "--json"]
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True,
                              errors="replace") as process:
            for line in process.stderr:
                log.info("%s", line.strip())
        output.seek(0)
        said = output.read()
    try:
        found = json.loads(said)
    except ValueError:
        raise PenstockError(f"{' '.join(command)}: ended with {process.returncode} and no answer", ENVIRONMENT) from None
    if "error" in found and "fits" not in found:  # what does not fit is an answer
        refusal = found["error"]
        raise PenstockError(refusal["message"], refusal["code"], refusal.get("try", ""))
    return found


def main():
    os.execv(path(), ["penstock", *sys.argv[1:]])
