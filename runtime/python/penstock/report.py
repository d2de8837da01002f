"""`penstock report RUN`: one HTML page about a run, that needs no network; and the same for other programs."""

import html
import json
import math
import os
import statistics
import sys
from pathlib import Path

from . import exports
from ._refusal import USAGE, Refusal
from ._verb import Arguments, run as run_verb
from .charts import chart, finite, short, smoothed, stacked
from .resources import LEFT_OUT_STEPS, Resources, advice_section, lane_section, tier_section, wear_section
from .run import Run
from .wording import bytes_text, lane_text, seconds_text, share_text

MARK = '<meta name="generator" content="penstock report">'  # of pages that may be replaced without asking

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#5d6670;--line:#dde1e6;--card:#f6f7f9;
--c0:#2563c9;--c1:#d9480f;--c2:#2b8a3e;--c3:#9c36b5;--c4:#b08900;--c5:#0b7285;--bad:#c92a2a}
@media(prefers-color-scheme:dark){:root{--bg:#15181c;--fg:#e6e9ed;--dim:#9aa4ae;--line:#2d333b;--card:#1d2126;
--c0:#74a9ff;--c1:#ff9466;--c2:#69db7c;--c3:#da9ceb;--c4:#ffd43b;--c5:#66d9e8;--bad:#ff8787}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:820px;padding:16px;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2em 0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.8em 0 .4em}
p,.dim{color:var(--dim)}.bad{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(145px,1fr));gap:8px;margin:12px 0}
.tiles div{background:var(--card);border-radius:8px;padding:8px 12px}
.tiles b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}.tiles span{color:var(--dim);font-size:.85rem}
figure{margin:14px 0}figcaption{font-weight:600}figure p{margin:.2em 0;font-size:.9rem}
.prompt{color:var(--fg);font-weight:600}.prompt,.samples td{white-space:pre-wrap;overflow-wrap:anywhere}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font:12px system-ui,sans-serif}
svg .grid{stroke:var(--line)}svg .strip{fill:var(--card)}.narrow{display:none}
.tier{color:var(--fg);font-weight:600;margin:1em 0 .3em}
.bar{display:flex;height:14px;border-radius:4px;overflow:hidden;background:var(--card);margin:4px 0}.bar i{display:block}
.lines i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.legend{font-size:.85rem;color:var(--dim);display:flex;flex-wrap:wrap;gap:2px 14px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap}th.n{white-space:normal}.whole td,.whole th{overflow-wrap:normal}td:last-child,th:last-child{padding-right:0}details summary{cursor:pointer;color:var(--dim)}
@media(max-width:560px){.wide{display:none}.narrow{display:block}body{padding:10px}td,th{font-size:.85rem;padding-right:6px}.keys td{display:block;border:0;padding:0}
.keys tr{display:block;border-bottom:1px solid var(--line);padding:4px 0}.keys td+td{color:var(--dim)}}
"""


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


def flat(config, prefix=""):
    rows = []
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            rows += flat(value, name)
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return rows


WHY = {"not_finite": "its loss is not finite", "spike": "its loss is a spike",
       "gradients_not_finite": "its gradients are not finite"}


def why_text(event):
    """Why a rule about the loss has acted on a batch."""
    of_loss = ", its loss is" if event.get("why") == "gradients_not_finite" else ","
    loss = f"{of_loss} {event['loss']:.4g}" if _finite(event.get("loss")) else ""
    above = f" above {event['highest']:.4g}" if loss and _finite(event.get("highest")) else ""
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
        self.steps, self.max_steps = last["step"], self.config.get("max_steps")
        self.losses = points_of(log, "loss")
        self.evaluations = points_of(log, "eval_loss")
        self.step_s, self.predicted_s = usual(points_of(log, "step_s")), usual(points_of(log, "predicted_s"))
        self.tokens_per_s = usual(points_of(log, "tokens_per_s"))
        self.floor_share, self.tflops = usual(points_of(log, "floor_share")), usual(points_of(log, "tflops"))
        self.mfu = usual(points_of(log, "mfu"))
        self.read, self.written = usual(points_of(log, "nvme_read_bytes")), usual(points_of(log, "nvme_written_bytes"))
        self.rss = max((y for _, y in points_of(log, "rss_bytes")), default=None)
        self.skipped = [e["step"] for e in log if e.get("skipped")]
        self.not_finite = [e["step"] for e in log if not _finite(e.get("loss"))]
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


def _finite(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def tiles(s):
    losses, best = finite(s.losses), s.best_evaluation()
    ratio = s.step_s / s.predicted_s if s.step_s and s.predicted_s else None
    shown = [("steps", f"{s.steps}" + (f" of {s.max_steps}" if s.max_steps else "")),
             ("loss, first to last", f"{losses[0][1]:.3f} → {losses[-1][1]:.3f}" if losses else "–")]
    if best:
        shown.append((f"best held-out loss, step {best[0]}", f"{best[1]:.4f}"))
        shown.append(("its perplexity", short(math.exp(best[1]) if best[1] < 700 else math.inf)))
    shown += [("a step, usually", seconds_text(s.step_s)),
              ("predicted" + (f"; it took {ratio:.2f} of that" if ratio else ""), seconds_text(s.predicted_s))]
    if s.floor_share:
        shown.append(("of a step is what drives or computing alone would take", share_text(s.floor_share)))
    shown.append(("tokens a second", short(s.tokens_per_s) if s.tokens_per_s else "–"))
    if s.tflops:
        shown.append(("TFLOP/s of the model's arithmetic", short(s.tflops)))
    if s.mfu:
        shown.append(("of what large products reach here by themselves", share_text(s.mfu)))
    shown += [("read a step", bytes_text(s.read)), ("written a step", bytes_text(s.written)),
              ("program's memory, most", bytes_text(s.rss)), ("time of all steps", seconds_text(s.seconds))]
    return "".join(f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in shown)


def remarks(s):
    found = []
    if s.log[-1].get("stopped_early"):
        found.append(f"stopped early at step {s.steps}: its evaluations did not become better any more")
    if s.stopped:
        found.append(stop_text(s.stopped))
    if s.not_finite:
        found.append(f"the loss of {len(s.not_finite)} steps is not finite, of step {s.not_finite[0]} first")
    if s.skipped:
        found.append(f"{len(s.skipped)} steps changed nothing, since their gradients were not finite: "
                     + ", ".join(map(str, s.skipped[:12])) + (" ..." if len(s.skipped) > 12 else ""))
    if s.gaps:
        found.append(f"{s.gaps} steps are not in the log")
    if s.run.bad_lines:
        found.append(f"{s.run.bad_lines} lines of log.jsonl could not be read")
    return "".join(f'<p class="bad">{html.escape(line)}</p>' for line in found)


def stall_table(s):
    if not s.stalls:
        return "<p>No step waited.</p>"
    rows = "".join(f'<tr><td>{html.escape(lane_text(lane))}</td><td class="n">{seconds_text(sum_s)}</td>'
                   f'<td class="n">{sum_s / s.seconds * 100 if s.seconds else 0:.1f} %</td></tr>'
                   for lane, sum_s in s.stalls.items())
    return ('<table><tr><th>waited for</th><th class="n">in all</th><th class="n">of the time</th></tr>' + rows + "</table>"
            "<p>Time in which computing waited, by the lane that was late.</p>")


def evaluation_table(s):
    entries = [e for e in s.log if _finite(e.get("eval_loss"))]
    if not entries:
        return ""
    shown = entries if len(entries) <= 12 else entries[:: math.ceil(len(entries) / 11)] + [entries[-1]]
    rows = "".join(
        f'<tr><td class="n">{e["step"]}</td><td class="n">{e["eval_loss"]:.4f}</td>'
        f'<td class="n">{short(e.get("eval_perplexity"))}</td><td class="n">{e.get("eval_tokens", "–")}</td></tr>'
        for e in {e["step"]: e for e in shown}.values())
    return ('<table><tr><th class="n">step</th><th class="n">held-out loss</th><th class="n">perplexity</th>'
            f'<th class="n">tokens</th></tr>{rows}</table>{evaluation_of_sets(entries[-1])}')


def evaluation_of_sets(entry):
    """Of the last evaluation, where several sets hold something out."""
    rows = "".join(
        f'<tr><td>{html.escape(str(one.get("set")))}</td><td class="n">{short(one.get("loss"))}</td>'
        f'<td class="n">{short(one.get("perplexity"))}</td><td class="n">{one.get("tokens", "–")}</td></tr>'
        for one in entry.get("eval_sets") or [])
    if not rows:
        return ""
    return (f'<table><tr><th>set, at step {entry["step"]}</th><th class="n">held-out loss</th>'
            f'<th class="n">perplexity</th><th class="n">tokens</th></tr>{rows}</table>')


def event_table(s):
    if not s.events:
        return ""
    shown = s.events[-50:]
    rows = "".join(f'<tr><td class="n">{html.escape(str(e["step"]))}</td><td class="n">{html.escape(str(e.get("batch")))}</td>'
                   f'<td>{html.escape(why_text(e))}</td><td>{html.escape(done_text(e))}</td>'
                   f'<td>{"<br>".join(html.escape(str(where)) for where in (e.get("samples") or [])[:4])}</td></tr>' for e in shown)
    more = f"<p>The last {len(shown)} of {len(s.events)}.</p>" if len(shown) < len(s.events) else ""
    return ('<h2>Batches that rules about the loss met</h2><table><tr><th class="n">step</th><th class="n">batch</th>'
            f'<th>why</th><th>what was done</th><th>its worst micro-batch</th></tr>{rows}</table>{more}')


def samples_of(log):
    """(prompt, [(step, answer, whether it ended)]) for each prompt, in the order of the last samples."""
    found = {}
    for entry in log:
        samples = entry.get("samples")
        for sample in samples if isinstance(samples, list) else ():
            if isinstance(sample, dict) and isinstance(sample.get("prompt"), str) and isinstance(sample.get("text"), str):
                found.setdefault(sample["prompt"], []).append((entry["step"], sample["text"], bool(sample.get("ended"))))
    return list(found.items())


def sample_tables(s):
    parts = []
    for prompt, answers in samples_of(s.log):
        few = answers if len(answers) <= 6 else answers[:: math.ceil(len(answers) / 5)] + [answers[-1]]
        rows = "".join(f'<tr><td class="n">{step}</td><td>{html.escape(text)}{"" if ended else " …"}</td></tr>'
                       for step, text, ended in dict.fromkeys(few))
        parts.append(f'<p class="prompt">{html.escape(prompt)}</p><table class="samples">'
                     f'<tr><th class="n">step</th><th>answer</th></tr>{rows}</table>')
    return "<h2>Samples</h2>" + "".join(parts) if parts else ""


def page(s):
    log, losses = s.log, finite(s.losses)
    many = len(losses) > 20
    loss = [{"name": "loss of a step", "points": losses, "faint": many, "color": "var(--c0)"}]
    if many:
        loss.append({"name": "smoothed", "points": smoothed(losses), "color": "var(--c0)"})
    if s.evaluations:
        loss.append({"name": "held out", "points": s.evaluations, "dots": True, "color": "var(--c1)"})
    rows = [(e["step"], {lane_text(k): v for k, v in (e.get("stall_s") or {}).items() if _finite(v)}) for e in log]
    scales = points_of(log, "loss_scale")
    name = s.run.path.resolve().name
    parts = [
        f"<h1>{html.escape(name)}</h1>",
        f'<p>{html.escape(str(s.config.get("model") or "built-in model"))}, '
        f'{html.escape(str(s.config.get("precision", "")))}</p>',
        remarks(s), f'<div class="tiles">{tiles(s)}</div>',
        "<h2>Learning</h2>", chart("Loss", loss), evaluation_table(s),
        chart("Learning rate", [{"name": "", "points": points_of(log, "lr")}], from_zero=True),
        chart("Gradient norm", [{"name": "", "points": points_of(log, "grad_norm")}], log=True),
        chart("Loss scale", [{"name": "", "points": scales}], log=True) if len({y for _, y in scales}) > 1 else "",
        event_table(s),
        sample_tables(s),
        "<h2>Time</h2>",
        chart("Seconds a step", [{"name": "actual", "points": points_of(log, "step_s")},
                                 {"name": "predicted", "points": points_of(log, "predicted_s"), "dashed": True}],
              from_zero=True),
        chart("Tokens a second", [{"name": "", "points": points_of(log, "tokens_per_s")}], from_zero=True),
        stacked("Waiting, seconds a step", [lane_text(lane) for lane in s.stalls], rows) if len(rows) > 1 else "",
        stall_table(s),
        lane_section(s.resources), advice_section(s.resources),
        "<h2>Bytes</h2>",
        chart("Drives, MiB a step", [{"name": "read", "points": points_of(log, "nvme_read_bytes", 2**-20)},
                                     {"name": "written", "points": points_of(log, "nvme_written_bytes", 2**-20)}],
              from_zero=True),
        chart("Memory of the program, MiB", [{"name": "", "points": points_of(log, "rss_bytes", 2**-20)}], from_zero=True),
        tier_section(s.resources), wear_section(s.resources),
        "<h2>Configuration</h2>",
        '<table class="keys">' + "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>"
                                         for k, v in flat(s.config)) + "</table>",
    ]
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8">{MARK}'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{html.escape(name)}: penstock report</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def write_page(path, content, force):
    path = Path(path)
    if path.exists() and not force:
        with open(path, "rb") as file:
            if MARK.encode() not in file.read(4096):
                raise Refusal(f"report: {path}: exists already and is no report", "another --out, or --force to replace it")
    exports.replace(path, content.encode())


def report(arguments, progress):
    parser = Arguments("penstock report")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--tensorboard", metavar="FOLDER")
    parser.add_argument("--prometheus", metavar="FILE")
    parser.add_argument("--wandb", metavar="PROJECT")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    summary = Summary(Run(options.run))
    out = options.out or os.path.join(options.run, "report.html")
    write_page(out, page(summary), options.force)
    fields, made = {**summary.fields(), "page": os.path.abspath(out)}, [out]
    if options.tensorboard:
        made.append(exports.write_tensorboard(options.tensorboard, summary.run))
        fields["tensorboard"] = os.path.abspath(made[-1])
    if options.prometheus:
        exports.replace(Path(options.prometheus), exports.prometheus_text(summary).encode())
        made.append(options.prometheus)
        fields["prometheus"] = os.path.abspath(options.prometheus)
    if options.wandb:
        made.append(exports.send_to_wandb(options.wandb, summary.run))
        fields["wandb"] = made[-1]
    return "".join(f"{path}\n" for path in made), fields


if __name__ == "__main__":
    sys.exit(run_verb("report", report, sys.argv[1:]))
