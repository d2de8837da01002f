"""`penstock nvme`: the rates of drives."""

from __future__ import annotations

import os
from typing import Any, Literal

from . import _command


def probe(
    *folders: str | os.PathLike[str],
    profile: str | os.PathLike[str] | None = None,
    size: str | None = None,
    duration: str | None = None,
    engine: Literal["auto", "io_uring", "libaio", "threads"] | None = None,
) -> dict[str, Any]:
    """Measures the drive of each folder for half a minute, and writes the machine's profile, from which plans are made.
    What it found: the keys of `penstock nvme probe --json`. Its progress goes to the logger "penstock".

    folders: one on each drive; a scratch file is made in each, and removed.
    profile: the file to write; None: ~/.config/penstock/profile.json.
    size: of a scratch file, such as "2GiB".
    duration: of the measurement, such as "20s".

        rates = penstock.nvme.probe("/mnt/nvme0", "/mnt/nvme1")
    """
    words = [os.fspath(folder) for folder in folders]
    return _command.answer("nvme", "probe", *words, profile=profile, size=size, duration=duration, engine=engine)
