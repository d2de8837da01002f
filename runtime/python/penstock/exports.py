"""A run's log for other programs: TensorBoard's event files, Prometheus's text format, Weights & Biases."""

import hashlib
import math
import os
import secrets
import struct
import time
from pathlib import Path

from ._refusal import ENVIRONMENT, Refusal

PROMETHEUS_BEGINS = b"# HELP penstock_step "  # every text of prometheus_text()
_TAGS = {"loss": "train/loss", "lr": "train/learning_rate", "grad_norm": "train/gradient_norm",
         "loss_scale": "train/loss_scale", "eval_loss": "eval/loss", "eval_perplexity": "eval/perplexity",
         "step_s": "time/step_s", "predicted_s": "time/predicted_s", "tokens_per_s": "time/tokens_per_s",
         "floor_share": "time/floor_share", "tflops": "time/tflops", "mfu": "time/mfu",
         "nvme_read_bytes": "bytes/nvme_read", "nvme_written_bytes": "bytes/nvme_written", "rss_bytes": "bytes/rss"}


def replace(path, content):
    """The file is there whole, or as it was. Its folder must be there."""
    path = Path(path)
    made = path.with_name(f"penstock-{secrets.token_hex(8)}.partial")
    try:
        with open(made, "xb") as file:
            file.write(content)
        os.replace(made, path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def make_folder(flag, folder):
    """The folder is there, made where it was missing; `flag` is what named it."""
    check_folder(flag, folder)
    Path(folder).mkdir(parents=True, exist_ok=True)


def check_folder(flag, folder):
    """Refuses what can be no folder, since it or what it would be in is something else."""
    there = next((one for one in (Path(folder), *Path(folder).parents) if os.path.lexists(one)), None)
    if there is not None and not there.is_dir():
        raise Refusal(f"report: {there}: is not a folder", f"{flag} in another place, or move that away")


def _crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc32c(data):
    """CRC-32C as record files of TensorFlow's have it: rotated, and something added."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def _field(number, payload):
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _record(event):
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc32c(length)) + event + struct.pack("<I", masked_crc32c(event))


def scalars_of(entry):
    """(tag, value) of a step of the log."""
    for key, tag in _TAGS.items():
        value = entry.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield tag, value
    for lane, seconds in (entry.get("stall_s") or {}).items():
        yield f"stall_s/{lane}", seconds
    for lane, seconds in (entry.get("busy_s") or {}).items():
        yield f"busy_s/{lane}", seconds


def event_file(log, end_s):
    """The bytes of an event file. `end_s`: when the last step ended; the log has no times of day, but durations."""
    begin = end_s - sum(e.get("step_s") or 0 for e in log)
    parts = [_record(struct.pack("<Bd", 9, begin) + _field(3, b"brain.Event:2"))]
    now = begin
    for entry in log:
        now += entry.get("step_s") or 0
        values = b"".join(_field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
                          for tag, value in scalars_of(entry))
        parts.append(_record(struct.pack("<Bd", 9, now) + b"\x10" + _varint(entry["step"]) + _field(5, values)))
    return b"".join(parts)


def write_tensorboard(folder, run):
    """One event file of the whole run, replaced when it is written again. Its path."""
    folder = Path(folder)
    make_folder("--tensorboard", folder)
    path = folder / "events.out.tfevents.0.penstock"
    log_file = run.path / "log.jsonl"
    replace(path, event_file(run.log, log_file.stat().st_mtime if log_file.exists() else time.time()))
    return os.fspath(path)


def prometheus_text(summary):
    """Gauges of the last step, for node_exporter's textfile collector."""
    last, run = summary.log[-1], str(summary.run.path.resolve().name)
    label = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []

    def gauge(name, about, values):
        kept = [(labels, v) for labels, v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if not kept:
            return
        lines.append(f"# HELP penstock_{name} {about}")
        lines.append(f"# TYPE penstock_{name} gauge")
        for labels, value in kept:
            number = "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)
            lines.append(f'penstock_{name}{{run="{label}"{labels}}} {number}')

    gauge("step", "Steps that are done", [("", last["step"])])
    gauge("max_steps", "Steps of the whole run", [("", summary.max_steps)])
    for key, name, about in (
            ("loss", "loss", "Loss of the last step"), ("lr", "learning_rate", "Learning rate of the last step"),
            ("grad_norm", "gradient_norm", "Norm of all gradients"), ("step_s", "step_seconds", "Time of the last step"),
            ("predicted_s", "predicted_step_seconds", "Time that the plan predicted"),
            ("tokens_per_s", "tokens_per_second", "Tokens learnt in a second"),
            ("nvme_read_bytes", "nvme_read_bytes", "Read from drives in the last step"),
            ("nvme_written_bytes", "nvme_written_bytes", "Written to drives in the last step"),
            ("rss_bytes", "resident_bytes", "Memory of the program")):
        gauge(name, about, [("", last.get(key))])
    if summary.evaluations:
        gauge("eval_loss", "Held-out loss, as last evaluated", [("", summary.evaluations[-1][1])])
    gauge("stall_seconds", "Waiting in the last step, by lane",
          [(f',lane="{lane}"', seconds) for lane, seconds in (last.get("stall_s") or {}).items()])
    gauge("busy_seconds", "Time in the last step with something under way, by lane",
          [(f',lane="{lane}"', seconds) for lane, seconds in (last.get("busy_s") or {}).items()])
    gauge("written_bytes", "Written to drives by all steps", [("", summary.resources.written)])
    gauge("endurance_share", "Written, as a share of what the drives are rated for",
          [("", summary.resources.wear()["endurance_share"])])
    gauge("skipped_steps", "Steps that changed nothing", [("", len(summary.skipped))])
    return "\n".join(lines) + "\n"


def send_to_wandb(project, run):
    """The run's steps and samples to Weights & Biases, by the package that is installed and as its environment says
    (WANDB_MODE=offline leaves them in the run's folder). Sent again it is the same run, which gets what is new. Where
    the package keeps it."""
    try:
        import wandb
    except ImportError as error:
        raise Refusal(f"report: --wandb: {error}", "pip install wandb", ENVIRONMENT) from error
    path = run.path.resolve()
    try:
        sent = wandb.init(project=project, name=path.name, id=hashlib.sha256(os.fsencode(path)).hexdigest()[:16],
                          resume="allow", dir=os.fspath(path), config=run.config, settings=wandb.Settings(silent=True))
        for entry in run.log:
            values = dict(scalars_of(entry))
            samples = entry.get("samples")
            if isinstance(samples, list) and samples:
                values["samples"] = wandb.Table(columns=["prompt", "answer"],
                                                data=[[str(s.get("prompt")), str(s.get("text"))] for s in samples])
            sent.log(values, step=entry["step"])
        where = os.path.dirname(sent.dir)
        sent.finish()
    except (wandb.Error, OSError) as error:
        raise Refusal(f"report: --wandb: {error}", "WANDB_MODE=offline, or `wandb login`", ENVIRONMENT) from error
    return where
