"""A prepared set that is being made, in FOLDER.partial: it can be gone on with after an interruption or a kill.

What is written is journalled now and then; who comes back cuts the files to what the journal says. The folder is
locked, so that two do not write one set.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._refusal import ENVIRONMENT, Refusal
from .prepared import FILES, FORMAT

KEY_BYTES = 16
_SAMPLE = np.dtype([("tokens", "<u4"), ("set", "<u4"), ("key", f"V{KEY_BYTES}")])
_GROWING = ("tokens.u32", "learnt.u8", "samples.bin")
_PASSING = ("samples.bin", "journal.json", "journal.next", "lock")  # in a set only while it is made


def sync_folder(folder: str | os.PathLike[str]) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: str | os.PathLike[str], content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def is_set(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is a prepared set, or has nothing but files that one has while it is made or taken away."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return False
    try:
        manifest = json.loads((Path(folder) / "manifest.json").read_bytes())
    except (OSError, ValueError):
        manifest = None
    is_known = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return is_known or set(os.listdir(folder)) <= {"manifest.json", *FILES, *_PASSING}


class AppearedMeanwhile(Refusal):
    """Something else stands where the set was to be."""


class Writing:
    """`identity`: what the set is made from, and how; another one begins anew."""

    def __init__(self, out: str | os.PathLike[str], identity: object) -> None:
        self.out, self.folder = Path(out), Path(f"{out}.partial")
        self._replaces = os.path.lexists(self.out)
        made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Refusal(f"data: {self.folder}: another process is preparing this set", "wait until it ends",
                          ENVIRONMENT) from None
        self.identity = json.loads(json.dumps(identity))
        self._files: dict[str, BinaryIO] = {}
        try:
            self._open(made)
        except BaseException:
            self.abandon()
            raise

    def _open(self, made: bool) -> None:
        journal = {} if made else self._journal()
        self.state = journal.get("state")
        sizes = journal.get("sizes", {name: 0 for name in _GROWING})
        for name in _GROWING:
            file = self._files[name] = open(self.folder / name, "ab")
            file.truncate(sizes[name])
        samples = np.fromfile(self.folder / "samples.bin", dtype=_SAMPLE)
        self.keys = {bytes(key) for key in samples["key"]}
        self.documents = len(samples)

    def _journal(self) -> dict[str, Any]:
        try:
            journal = json.loads((self.folder / "journal.json").read_bytes())
            sizes = journal["sizes"]
            whole = all((self.folder / name).stat().st_size >= sizes[name] for name in _GROWING)
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return journal if whole and journal.get("identity") == self.identity else {}

    def add(self, which_set: int, key: bytes, tokens: Sequence[int] | NDArray[Any], learnt: ArrayLike) -> None:
        self._files["tokens.u32"].write(np.asarray(tokens, dtype="<u4").tobytes())
        self._files["learnt.u8"].write(np.asarray(learnt, dtype="u1").tobytes())
        self._files["samples.bin"].write(np.array([(len(tokens), which_set, key)], dtype=_SAMPLE).tobytes())
        self.keys.add(key)
        self.documents += 1

    def journal(self, state: object) -> None:
        """From here one can go on, after a kill too."""
        self._sync()
        sizes = {name: os.path.getsize(self.folder / name) for name in _GROWING}
        content = json.dumps({"identity": self.identity, "sizes": sizes, "state": state})
        write_synced(self.folder / "journal.next", content.encode())
        os.replace(self.folder / "journal.next", self.folder / "journal.json")

    def _sync(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def samples(self) -> NDArray[np.void]:
        """Tokens, set and key of each document."""
        self._sync()
        return np.fromfile(self.folder / "samples.bin", dtype=_SAMPLE)

    def write(self, name: str, numbers: ArrayLike) -> None:
        write_synced(self.folder / name, np.ascontiguousarray(numbers, dtype="<u8").tobytes())

    def finish(self, manifest: dict[str, Any]) -> None:
        """The set is there, whole, under its own name."""
        if os.path.lexists(self.out) and not self._replaces:
            raise AppearedMeanwhile(f"data: {self.out}: has appeared while this set was prepared",
                                    "move it away, and run this again: what is prepared is kept")
        write_synced(self.folder / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
        self._close()
        for name in _PASSING:
            (self.folder / name).unlink(missing_ok=True)
        sync_folder(self.folder)
        old = Path(f"{self.out}.replaced")
        if self.out.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self.out, old)
        os.rename(self.folder, self.out)
        sync_folder(self.out.parent)
        shutil.rmtree(old, ignore_errors=True)

    def abandon(self) -> None:
        """Nothing of it stays."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._close()

    def keep(self) -> None:
        """It stays as it is, to be gone on with."""
        self._close()

    def _close(self) -> None:
        for file in self._files.values():
            try:
                file.close()
            except OSError:  # what could not be written is thrown away
                pass
        os.close(self._lock)
