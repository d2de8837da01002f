"""A run of `penstock train` as its folder tells it: config.json, plan.json and log.jsonl."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import _command
from ._refusal import USAGE, Refusal


class Run:
    """What a run left, or leaves while it goes on. Reading changes nothing."""

    path: Path
    bad_lines: int

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise Refusal(f"run: {self.path}: no such folder", "the folder that `penstock train --run` was given", USAGE)
        if not (self.path / "log.jsonl").is_file() and not (self.path / "config.json").is_file():
            raise Refusal(f"run: {self.path}: not a run: it has neither log.jsonl nor config.json",
                          "the folder that `penstock train --run` was given", USAGE)
        self.bad_lines = 0

    @property
    def config(self) -> dict[str, Any]:
        """The config as it was followed; {} if there is none."""
        return self._object("config.json")

    @property
    def plan(self) -> dict[str, Any]:
        """What the planner says of the plan that the run follows: budget lines, planned lanes, drives, advice; {} if
        there is none, as of runs that another version made."""
        return self._object("plan.json")

    def _object(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def log(self) -> list[dict[str, Any]]:
        """One dict a step, in order. A step that was done again after a crash counts as it was done last; a line that
        is being written does not count yet. `bad_lines` says how many others could not be read."""
        steps: dict[int, dict[str, Any]] = {}
        for entry in self._entries():
            step = entry["step"]
            if entry.get("stopped"):
                continue
            steps = {s: e for s, e in steps.items() if s < step} if step in steps else steps
            steps[step] = entry
        return [steps[step] for step in sorted(steps)]

    @property
    def written_bytes(self) -> float:
        """By all steps of the log to the drives, those included that were done again after a crash."""
        found = (entry.get("nvme_written_bytes") for entry in self._entries())
        return sum(number for number in found if isinstance(number, (int, float)) and math.isfinite(number))

    @property
    def stopped(self) -> dict[str, Any] | None:
        """The last line of the log, if a rule about the loss has ended the run with it; else None."""
        entries = self._entries()
        return entries[-1] if entries and entries[-1].get("stopped") else None

    @property
    def loss_events(self) -> list[dict[str, Any]]:
        """What rules about the loss did, in order: the log's loss_events, each with its step. A rollback's own step is
        the one that met the batch."""
        events = {}
        for entry in self._entries():
            found = entry.get("loss_events")
            for event in found if isinstance(found, list) else ():
                if isinstance(event, dict):
                    event = {"step": entry["step"], **event}
                    events[event["step"], event.get("batch")] = event
        return list(events.values())

    def _entries(self) -> list[dict[str, Any]]:
        self.bad_lines, entries = 0, []
        try:
            content = (self.path / "log.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        whole, _, _ = content.rpartition(b"\n")
        for line in whole.split(b"\n"):
            try:
                entry = json.loads(line)
                entry["step"] = int(entry["step"])
                entries.append(entry)
            except (ValueError, KeyError, TypeError):
                self.bad_lines += bool(line.strip())
        return entries

    def columns(self) -> dict[str, list[Any]]:
        """The log as a table: a list for each key, None where a step lacks it. pandas.DataFrame(run.columns()) works."""
        log = self.log
        keys = dict.fromkeys(key for entry in log for key in entry)
        return {key: [entry.get(key) for entry in log] for key in keys}

    def export(self, out: str | os.PathLike[str], *options: str) -> Path:
        """The trained model as a folder of Hugging Face's; `options` are those of `penstock checkpoint export`."""
        stores = self.config.get("penstock", {}).get("stores")
        if not stores:
            raise Refusal(f"run: {self.path}/config.json: names no stores", "penstock checkpoint export STORE FOLDER")
        _command.run(["checkpoint", "export", ",".join(stores), os.fspath(out), *options])
        return Path(out)

    def __repr__(self) -> str:
        log = self.log
        return f"<penstock.Run {self.path}: {log[-1]['step'] if log else 0} steps>"


def train(
    config: dict[str, Any] | str | os.PathLike[str] | None = None,
    *,
    run: str | os.PathLike[str],
    options: Iterable[str] = (),
    **keys: Any,
) -> Run:
    """Trains as `penstock train` does, and gives the Run.

    `config` is a dict, or a file's path. `keys` change it: a section that is given as a dict is merged with what is
    there, anything else replaces it. `run` is the run's folder. `options` are flags of the command, as words. Progress
    goes to stderr; what the command refuses is raised.
    """
    whole = {}
    if isinstance(config, (str, os.PathLike)):
        options = [os.fspath(config), *options]
        if keys:
            raise Refusal("train: keywords change a config that is a dict", "json.load() the file, or use `options`")
    elif config is not None:
        whole = json.loads(json.dumps(config))
    _merge(whole, keys)
    whole.setdefault("penstock", {})["run"] = os.fspath(run)
    folder = Path(run)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(config, (str, os.PathLike)):
        _command.run(["train", *options, "--run", os.fspath(run)])
    else:
        told = folder / "told.json"  # what was asked for; config.json is what was made of it
        told.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        _command.run(["train", os.fspath(told), *options])
    return Run(folder)


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
