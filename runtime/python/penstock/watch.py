"""`penstock watch RUN`: how a run stands, in the terminal, until it ends. In a pipe, a line for each new step."""

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from ._verb import Arguments, run as run_verb
from .charts import finite, short
from .holders import is_held
from .resources import panel_lines
from .run import Run
from .summary import Summary, done_text, is_finite, samples_of, stop_text, told_steps, why_text
from .wording import bytes_text, lane_text, seconds_text

BARS = "▁▂▃▄▅▆▇█"
PAUSE_S = 1.0
LOOKS_ALONE = 3  # until a run that nobody has counts as one that has stopped: its process may be starting


def spark(values, width):
    """Values as a line of bars; each is the mean of its part."""
    if not values:
        return ""
    parts = min(width, len(values))
    means = []
    for i in range(parts):
        part = values[i * len(values) // parts:(i + 1) * len(values) // parts]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    return "".join(BARS[int((v - low) / (high - low) * (len(BARS) - 1) + 0.5) if high > low else 0] for v in means)


def one_line(text):
    """Nothing of it moves the cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


def has_ended(config, log, stopped):
    """By what the run itself says."""
    steps = told_steps(config)
    return bool(stopped or (log and (log[-1].get("stopped_early") or (steps and log[-1]["step"] >= steps))))


def gone_text(config, log):
    """Of a run that has not ended, and that no process has."""
    steps, section = told_steps(config), config.get("penstock")
    stores = section.get("stores") if isinstance(section, dict) else None
    # Of several ranks --ranks is missing there, and the config does not have it.
    is_alone = bool(stores) and isinstance(stores, list) and not any(Path(str(folder), "rank1.tiles").exists() for folder in stores)
    command = f"`penstock train --store {shlex.quote(','.join(map(str, stores)))}`" if is_alone else "its command"
    return f"stopped at step {log[-1]['step']}" + (f" of {steps}" if steps else "") + f", and is not running; {command} goes on"


def panel(s, width, held=None):
    """Lines about a run, none wider than `width`. `held`: whether a process has it, as is_held() says."""
    losses = [y for _, y in finite(s.losses)]
    last = s.log[-1]
    share = s.steps / s.max_steps if s.max_steps else None
    head = f"{s.run.path.resolve().name}: step {s.steps}" + (f" of {s.max_steps}" if s.max_steps else "")
    if s.told_steps and not s.max_steps:
        head += f", although config.json says {s.told_steps} in all"
    if held is False and not has_ended(s.config, s.log, s.stopped):
        head += ", not running"
    elif share is not None and share < 1 and s.step_s:
        head += f", {seconds_text((s.max_steps - s.steps) * s.step_s)} to go"
    lines = [head]
    if share is not None:
        cells = max(10, min(width - 8, 60))
        full = int(min(share, 1) * cells)
        lines.append(f"[{'#' * full}{' ' * (cells - full)}] {share * 100:3.0f} %")
    if losses:
        lines.append(f"loss      {losses[-1]:.4f}  {spark(losses, max(8, min(50, width - 20)))}")
    best = s.best_evaluation()
    if best:
        lines.append(f"held out  {s.evaluations[-1][1]:.4f} at step {s.evaluations[-1][0]}, best {best[1]:.4f} at {best[0]}")
    lines.append(f"rate      {short(last.get('lr'))}   gradient norm {short(last.get('grad_norm'))}")
    # The last one's, as the plan may have changed.
    predicted = f", predicted {seconds_text(last['predicted_s'])}" if is_finite(last.get("predicted_s")) else ""
    lines.append(f"step      {seconds_text(last.get('step_s'))}{predicted}; usually {seconds_text(s.step_s)}, "
                 f"{short(s.tokens_per_s)} tokens/s")
    lines.append(f"bytes     {bytes_text(last.get('nvme_read_bytes'))} read, {bytes_text(last.get('nvme_written_bytes'))} "
                 f"written; memory {bytes_text(last.get('rss_bytes'))}")
    stalls = [f"{lane_text(k)} {v / s.seconds * 100:.0f} %" for k, v in list(s.stalls.items())[:4] if s.seconds]
    lines.append("waited    " + (", ".join(stalls) if stalls else "for nothing"))
    lines += panel_lines(s.resources)
    if s.skipped:
        lines.append(f"skipped   {len(s.skipped)} steps")
    if s.events:
        last = s.events[-1]
        lines.append(f"loss      {len(s.events)} batches met a rule, last {last.get('batch')} at step {last['step']}: {done_text(last)}")
    if s.stopped:
        lines.append(stop_text(s.stopped))
    for prompt, answers in samples_of(s.log):
        lines.append(f"sample    {one_line(prompt)} => {one_line(answers[-1][1])}")
    return [line[:width] for line in lines]


def plain(entry):
    """A step in one line, and one more for each sample."""
    held_out = f", held out {entry['eval_loss']:.4f}" if isinstance(entry.get("eval_loss"), float) else ""
    events = "".join(f"\n    batch {event.get('batch')}: {why_text(event)}: {done_text(event)}"
                     for event in entry.get("loss_events") or [])
    answers = "".join(f"\n    {one_line(prompt)} => {one_line(found[-1][1])}" for prompt, found in samples_of([entry]))
    return (f"step {entry['step']}: loss {entry.get('loss') if entry.get('loss') is None else round(entry['loss'], 4)}"
            f"{held_out}, {seconds_text(entry.get('step_s'))}, {short(entry.get('tokens_per_s'))} tokens/s{events}{answers}")


class Screen:
    """The panel, drawn over the one before it."""

    def __init__(self, out):
        self.out, self.drawn = out, 0

    def show(self, lines):
        up = f"\033[{self.drawn}A" if self.drawn else ""
        self.out.write(up + "".join(f"\033[K{line}\n" for line in lines) + "\033[J")
        self.out.flush()
        self.drawn = len(lines)


def mark_of(run):
    try:
        stat = os.stat(run.path / "log.jsonl")
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def watch(arguments, progress, out=None, pause=time.sleep):
    parser = Arguments("penstock watch")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    out = out or sys.stdout
    run = Run(options.run)
    if options.once or options.json:
        held, summary = is_held(run.path), Summary(run)
        lines = panel(summary, shutil.get_terminal_size().columns, held)
        if held is False and not has_ended(summary.config, summary.log, summary.stopped):
            lines.append(gone_text(summary.config, summary.log))
        return "\n".join(lines) + "\n", {**summary.fields(), "running": held}
    try:
        return _follow(run, out, pause)
    except KeyboardInterrupt:  # the usual end
        return "", {}


def _follow(run, out, pause):
    screen = Screen(out) if out.isatty() else None
    seen, said, looks_alone, log, stopped = None, {}, 0, [], None
    while True:
        held = is_held(run.path)  # first: a process gives the run back behind its last line
        mark = mark_of(run)
        if mark != seen:
            seen, log, stopped, looks_alone = mark, run.log, run.stopped, 0
            if log and screen:
                screen.show(panel(Summary(run), shutil.get_terminal_size().columns))
            elif log:
                steps = {entry["step"]: entry for entry in log}
                # What is done again is another.
                out.writelines(plain(entry) + "\n" for step, entry in steps.items() if said.get(step) != entry)
                out.flush()
                said = steps
            if stopped and not screen:
                out.write(stop_text(stopped) + "\n")
        if not held and has_ended(run.config, log, stopped):
            return "", {}
        looks_alone = looks_alone + 1 if log and held is False else 0
        if looks_alone == LOOKS_ALONE:
            if screen:
                screen.show(panel(Summary(run), shutil.get_terminal_size().columns, held))
            out.write(gone_text(run.config, log) + "\n")
            return "", {}
        pause(PAUSE_S)


if __name__ == "__main__":
    sys.exit(run_verb("watch", watch, sys.argv[1:]))
