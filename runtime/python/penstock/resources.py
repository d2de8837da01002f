"""What a run makes of its machine: how busy lanes are, what tiers hold, how drives wear, and what would be faster.

The log has what was measured, plan.json what the planner said. Either may lack anything: runs of older versions do.
"""

import html
import math
import statistics

from .charts import bar, strips
from .wording import bytes_text, days_text, lane_text, seconds_text, share_text

LEFT_OUT_STEPS = 1  # at the beginning, from what is usual: the first step fetches everything
TIERS = ("device", "host", "nvme")
COLORED = 5  # lines of a tier that get a colour of their own


def _number(value):
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def _numbers(found):
    """The numbers of an object, by name."""
    return {k: v for k, v in found.items() if _number(v) is not None} if isinstance(found, dict) else {}


def _objects(found):
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class Resources:
    def __init__(self, run, log):
        self.plan = run.plan
        self.lanes = self._lanes(log)
        self.planned = _numbers(self.plan.get("lanes"))
        self.planned_step_s = _number(self.plan.get("predicted_s"))
        self.saved = _numbers(self.plan.get("saved_by_a_tenth_faster_s"))
        self.bottleneck = self.plan.get("bottleneck") if isinstance(self.plan.get("bottleneck"), str) else None
        self.written = run.written_bytes
        self.seconds = sum(_number(e.get("step_s")) or 0 for e in log)
        self.pace = sum(_number(e.get("nvme_written_bytes")) or 0 for e in log) / self.seconds if self.seconds else 0
        self.rss = max((n for e in log if (n := _number(e.get("rss_bytes"))) is not None), default=None)
        self.advice = self.plan["advice"] if isinstance(self.plan.get("advice"), dict) else {}
        self.changes = [c for c in _objects(self.advice.get("changes"))
                        if isinstance(c.get("what"), str) and _number(c.get("step_s")) is not None]

    @staticmethod
    def _lanes(log):
        """{lane: [(step, share of the step in which it had something under way)]}, the busiest first."""
        found = {}
        for entry in log:
            step_s = _number(entry.get("step_s"))
            for lane, seconds in _numbers(entry.get("busy_s")).items() if step_s else ():
                found.setdefault(lane, []).append((entry["step"], min(seconds / step_s, 1)))
        return dict(sorted(found.items(), key=lambda item: -sum(share for _, share in item[1])))

    def busy_share(self):
        """{lane: share}, as it usually is."""
        return {lane: statistics.median([y for _, y in points[LEFT_OUT_STEPS:] or points]) for lane, points in self.lanes.items()}

    def tiers(self):
        """(tier, bytes that the plan takes of it, its budget or None, [(line, bytes)], the largest first)"""
        budgets, lines = self.plan.get("budget_bytes"), _objects(self.plan.get("budget"))
        for tier in TIERS:
            found = [(str(one.get("line")), one["bytes"]) for one in lines if one.get("tier") == tier and _number(one.get("bytes"))]
            if found:
                budget = _number((budgets if isinstance(budgets, dict) else {}).get(tier))
                yield tier, sum(b for _, b in found), budget, sorted(found, key=lambda line: -line[1])

    def state(self):
        """{role: {tier: bytes}} of what the newest step needs."""
        found = self.plan.get("state_bytes")
        return {role: _numbers(by_tier) for role, by_tier in (found if isinstance(found, dict) else {}).items()}

    def wear(self):
        """Bytes written so far; the share of what the drives are rated for, and the days that they last at this pace,
        where the profile says what they endure."""
        drives = _objects(self.plan.get("drives"))
        rated = [_number(drive.get("endurance_bytes")) for drive in drives]
        share = days = None
        part = _number(self.plan.get("drives_share")) or 1  # of all ranks' bytes, on these drives
        if rated and all(rated):
            share = self.written * part / sum(rated)
            days = sum(rated) / (self.pace * part) / 86400 if self.pace else None
        return {"written_bytes": self.written, "endurance_share": share, "days_at_this_pace": days}

    def best_change(self):
        """What the planner would change first: (what, seconds of a step); None where nothing helps by 1 %."""
        best = min(self.changes, key=lambda c: c["step_s"], default=None)
        if not best or not self.planned_step_s or best["step_s"] > 0.99 * self.planned_step_s:
            return None
        return best["what"], best["step_s"]

    def fields(self):
        return {"busy_share": self.busy_share(), "planned_busy_s": self.planned, "bottleneck": self.bottleneck,
                "tiers": {tier: {"planned_bytes": planned, "budget_bytes": budget} for tier, planned, budget, _ in self.tiers()},
                "wear": self.wear(), "advice": self.changes}


def bound_text(bottleneck):
    """What a plan is bound by."""
    return "the order of its parts, which wait for one another" if bottleneck == "order" else lane_text(bottleneck)


# -- for the page -----------------------------------------------------------------------------------------------------


def _table(head, rows):
    """Of texts; all columns but the first are numbers."""
    def cells(tag, row):
        return "".join(f'<{tag}{" class=n" if i else ""}>{cell}</{tag}>' for i, cell in enumerate(row))
    return f'<table><tr>{cells("th", head)}</tr>' + "".join(f'<tr>{cells("td", row)}</tr>' for row in rows) + "</table>"


def lane_section(resources):
    """Lanes over time, and each against the plan."""
    r, usual = resources, resources.busy_share()
    names = [*usual, *(lane for lane in r.planned if lane not in usual and r.planned[lane] > 0)]
    if not names:
        return ""
    def planned(lane):
        return share_text(r.planned[lane] / r.planned_step_s) if lane in r.planned and r.planned_step_s else "–"
    def saved(lane):
        return share_text(round(max(r.saved[lane], 0) / r.planned_step_s, 3)) if lane in r.saved and r.planned_step_s else ""
    rows = [(html.escape(lane_text(lane)), share_text(usual.get(lane)), planned(lane), saved(lane)) for lane in names]
    bound = f"<p>By the plan a step is bound by {html.escape(bound_text(r.bottleneck))}.</p>" if r.bottleneck and r.bottleneck != "unknown" else ""
    return ("<h2>Lanes</h2>" + strips("Busy, share of each step", [(lane_text(lane), points) for lane, points in r.lanes.items()])
            + f'<div class="whole">{_table(("lane", "busy", "as planned", "a tenth faster"), rows)}</div>{bound}'
            + "<p>A lane is busy while something of it is under way; a full height is the whole step. The last column is the "
              "share of a step that would be saved if the lane were a tenth faster.</p>")


def tier_section(resources):
    """What rests where: each tier's lines against its budget, and the model's state by role."""
    parts = []
    for tier, taken, budget, lines in resources.tiers():
        head = f"{tier}: {bytes_text(taken)}" + (f" of {bytes_text(budget)}, {share_text(taken / budget)}" if budget else ", without a limit")
        colored = lines[:COLORED] + ([("others", sum(b for _, b in lines[COLORED:]))] if lines[COLORED:] else [])
        rows = [(f'<i style="background:var(--c{min(i, COLORED)})"></i>{html.escape(name)}', bytes_text(number)) for i, (name, number) in enumerate(lines)]
        most = f"<p>The program had at most {bytes_text(resources.rss)} of it, as measured.</p>" if tier == "host" and resources.rss else ""
        parts.append(f'<p class="tier">{html.escape(head)}</p>{bar(colored, budget)}<div class="lines">{_table(("line", "bytes"), rows)}</div>{most}')
    state = resources.state()
    if state:
        tiers = [tier for tier in TIERS if any(by_tier.get(tier) for by_tier in state.values())]
        rows = [(html.escape(role.replace("_", " ")), *(bytes_text(by_tier[tier]) if by_tier.get(tier) else "" for tier in tiers))
                for role, by_tier in state.items()]
        parts.append('<p class="tier">The model\'s state between steps</p>' + _table(("role", *tiers), rows))
    return "<h2>Tiers</h2>" + "".join(parts) if parts else ""


def wear_section(resources):
    wear = resources.wear()
    if not wear["written_bytes"] and not resources.plan:
        return ""
    rows = [("written by the steps so far", bytes_text(wear["written_bytes"])),
            ("a day at this pace", bytes_text(resources.pace * 86400))]
    if wear["endurance_share"] is not None:
        rows += [("of what the drives are rated for", share_text(wear["endurance_share"])),
                 ("they last at this pace", days_text(wear["days_at_this_pace"]))]
    unknown = "" if wear["endurance_share"] is not None else (
        "<p>What the drives endure is not known: endurance_bytes in the machine's profile says it.</p>")
    return "<h2>Drive wear</h2><table>" + "".join(f'<tr><td>{name}</td><td class="n">{text}</td></tr>' for name, text in rows) + "</table>" + unknown


def advice_section(resources):
    r = resources
    if not r.changes or not r.planned_step_s:
        return ""
    rows = [("as it is", seconds_text(r.planned_step_s), "")]
    for change in r.changes:
        gain = max(0.0, 1 - change["step_s"] / r.planned_step_s)
        rows.append((html.escape(change["what"]), seconds_text(change["step_s"]), share_text(round(gain, 3))))
    left_out = "" if r.advice.get("complete", True) else (
        "<p>Other changes were not planned, since planning them would have taken too much of this run's time; "
        "<code>penstock plan --advise</code> does.</p>")
    return ("<h2>What would make it faster</h2>" + _table(("what would change", "a step", "gain"), rows)
            + "<p>Each is planned again from nothing, all else as it is.</p>" + left_out)


# -- for the terminal -------------------------------------------------------------------------------------------------


def panel_lines(resources):
    """What is short enough for a terminal."""
    r, lines = resources, []
    lanes = [f"{lane_text(lane)} {share_text(share)}" for lane, share in list(r.busy_share().items())[:4]]
    if lanes:
        lines.append("busy      " + ", ".join(lanes))
    tiers = [f"{tier} {bytes_text(taken)}" + (f" of {bytes_text(budget)}" if budget else "") for tier, taken, budget, _ in r.tiers()]
    if tiers:
        lines.append("tiers     " + ", ".join(tiers))
    wear = r.wear()
    if wear["written_bytes"]:
        share = f", {share_text(wear['endurance_share'])} of the drives' rating" if wear["endurance_share"] is not None else ""
        days = f"; {days_text(wear['days_at_this_pace'])} at this pace" if wear["days_at_this_pace"] else ""
        lines.append(f"wear      {bytes_text(wear['written_bytes'])} written{share}{days}")
    best = r.best_change()
    if best:
        lines.append(f"faster    {best[0]}: by the plan {seconds_text(best[1])} a step instead of {seconds_text(r.planned_step_s)}")
    return lines
