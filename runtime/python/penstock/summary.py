"""Summary: what a run comes to, in numbers, and in words where a rule about the loss has acted. For pages, terminals and
other programs."""

import math
import statistics

from ._refusal import USAGE, Refusal
from .charts import finite, short
from .resources import LEFT_OUT_STEPS, Resources

WHY = {"not_finite": "its loss is not finite", "spike": "its loss is a spike",
       "gradients_not_finite": "its gradients are not finite"}


def is_finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def points_of(log, key, scale=1.0):
    return [(e["step"], e[key] * scale) for e in log if isinstance(e.get(key), (int, float)) and not isinstance(e[key], bool)]


def usual(points):
    values = [y for _, y in finite(points)]
    values = values[LEFT_OUT_STEPS:] or values
    return statistics.median(values) if values else None


def stalls_of(log):
    """Seconds by what was waited for, most first; what a step waits for without a lane is "none" in the log."""
    sums = {}
    for entry in log:
        stalls = entry.get("stall_s")
        for lane, seconds in (stalls if isinstance(stalls, dict) else {}).items():
            if isinstance(seconds, (int, float)) and math.isfinite(seconds):
                sums[lane] = sums.get(lane, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def samples_of(log):
    """(prompt, [(step, answer, whether it ended)]) for each prompt, in the order of the last samples."""
    found = {}
    for entry in log:
        samples = entry.get("samples")
        for sample in samples if isinstance(samples, list) else ():
            if isinstance(sample, dict) and isinstance(sample.get("prompt"), str) and isinstance(sample.get("text"), str):
                found.setdefault(sample["prompt"], []).append((entry["step"], sample["text"], bool(sample.get("ended"))))
    return list(found.items())


def why_text(event):
    """Why a rule about the loss has acted on a batch."""
    of_loss = ", its loss is" if event.get("why") == "gradients_not_finite" else ","
    loss = f"{of_loss} {event['loss']:.4g}" if is_finite(event.get("loss")) else ""
    above = f" above {event['highest']:.4g}" if loss and is_finite(event.get("highest")) else ""
    return WHY.get(event.get("why"), "its loss") + loss + above


def done_text(event):
    """What was done about it."""
    if event.get("action") == "rollback":
        return f"back to step {event.get('back_to')}, batches {event.get('first_left_out')} to {event.get('batch')} left out"
    if event.get("action") == "lower_rate":
        return f"left out, rates are {short(event.get('rate_factor'))} of the schedule's"
    return "the run stopped" if event.get("action") == "stop" else "left out"


def stop_text(entry):
    events = entry.get("loss_events") or [{}]
    return f"stopped at step {entry['step']}: batch {entry.get('batch')}: {why_text(events[-1])}"


def told_steps(config):
    """How many steps the config says that the run has, if it says so."""
    told = config.get("max_steps")
    return told if isinstance(told, int) and told > 0 else None


class Summary:
    """What a run comes to, in numbers."""

    def __init__(self, run):
        self.run, self.config, self.log = run, run.config, run.log
        self.events, self.stopped = run.loss_events, run.stopped
        if not self.log and self.stopped:
            raise Refusal(f"report: {run.path}: the run {stop_text(self.stopped)}, which was its first", "", USAGE)
        if not self.log:
            raise Refusal(f"report: {run.path}: no step is in its log yet", "wait for the first step", USAGE)
        log, last = self.log, self.log[-1]
        self.steps, self.told_steps = last["step"], told_steps(self.config)
        # The log knows better than a config that has fewer steps than were done.
        self.max_steps = self.told_steps if self.told_steps and self.told_steps >= self.steps else None
        self.losses = points_of(log, "loss")
        self.evaluations = points_of(log, "eval_loss")
        self.step_s, self.predicted_s = usual(points_of(log, "step_s")), usual(points_of(log, "predicted_s"))
        self.tokens_per_s = usual(points_of(log, "tokens_per_s"))
        self.floor_share, self.tflops = usual(points_of(log, "floor_share")), usual(points_of(log, "tflops"))
        self.mfu = usual(points_of(log, "mfu"))
        self.read, self.written = usual(points_of(log, "nvme_read_bytes")), usual(points_of(log, "nvme_written_bytes"))
        self.rss = max((y for _, y in points_of(log, "rss_bytes")), default=None)
        self.skipped = [e["step"] for e in log if e.get("skipped")]
        self.not_finite = [e["step"] for e in log if not is_finite(e.get("loss"))]
        self.seconds = sum(y for _, y in finite(points_of(log, "step_s")))
        self.stalls = stalls_of(log)
        self.resources = Resources(run, log)
        self.gaps = sum(b["step"] - a["step"] - 1 for a, b in zip(log, log[1:]))

    def best_evaluation(self):
        return min(finite(self.evaluations), key=lambda p: p[1], default=None)

    def fields(self):
        best, losses = self.best_evaluation(), finite(self.losses)
        return {
            "run": str(self.run.path), "steps": self.steps, "max_steps": self.max_steps,
            "loss_first": losses[0][1] if losses else None, "loss_last": losses[-1][1] if losses else None,
            "eval_loss_best": best[1] if best else None, "eval_loss_best_step": best[0] if best else None,
            "step_s": self.step_s, "predicted_s": self.predicted_s, "tokens_per_s": self.tokens_per_s,
            "nvme_read_bytes": self.read, "nvme_written_bytes": self.written, "peak_rss_bytes": self.rss,
            "loss_events": self.events, "stopped": bool(self.stopped),
            "stall_s": self.stalls, "skipped_steps": self.skipped, "bad_lines": self.run.bad_lines,
            "floor_share": self.floor_share, **self.resources.fields(),
        }
