"""A run as one HTML page that needs no network."""

import html
import json
import math

from .charts import chart, finite, short, smoothed, stacked
from .resources import advice_section, lane_section, tier_section, wear_section
from .summary import done_text, is_finite, points_of, samples_of, stop_text, why_text
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


def flat(config, prefix=""):
    rows = []
    for key, value in config.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            rows += flat(value, name)
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return rows


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
    if s.told_steps and not s.max_steps:
        found.append(f"config.json says {s.told_steps} steps in all, and the log has step {s.steps}")
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
    entries = [e for e in s.log if is_finite(e.get("eval_loss"))]
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
    rows = [(e["step"], {lane_text(k): v for k, v in (e.get("stall_s") or {}).items() if is_finite(v)}) for e in log]
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
