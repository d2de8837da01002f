"""Line and area charts as SVG, without anything else: drawn twice, for a wide page and for a phone."""

import html
import math

COLORS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)")
POINTS_MOST = 600  # of a line; more are joined to the extremes of runs


def ticks(low, high, count):
    """Round numbers between two others."""
    if not high > low:
        return [low]
    rough = (high - low) / max(count, 1)
    power = 10 ** math.floor(math.log10(rough))
    unit = next(u * power for u in (1, 2, 5, 10) if u * power >= rough * 0.999)
    first = math.ceil(low / unit - 1e-9)
    found = []
    while (first + len(found)) * unit <= high + unit * 1e-9:
        found.append((first + len(found)) * unit)
    return found


def log_ticks(low, high, count):
    """Powers of ten between 10**low and 10**high, with twice and five times them where those are few."""
    for parts in ((1,), (1, 3), (1, 2, 5)):
        found = [part * 10.0 ** power for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
        found = [value for value in found if low <= math.log10(value) <= high]
        if len(found) >= max(2, count // 2):
            break
    return found[:: -(-len(found) // (2 * count))] if found else [10.0 ** low]


def short(number):
    """A number in a few characters."""
    if number is None or not math.isfinite(number):
        return "–"
    size = abs(number)
    if size >= 1e4:
        for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= unit:
                return f"{number / unit:.3g}{name}"
    if size and size < 1e-3:
        return f"{number:.3g}"
    return f"{number:.4g}"


def thinned(points, most=POINTS_MOST):
    """At most so many points: of each run of x, the lowest and the highest."""
    if len(points) <= most:
        return points
    runs, kept = most // 2, []
    for i in range(runs):
        run = points[i * len(points) // runs:(i + 1) * len(points) // runs]
        kept += sorted({min(run, key=lambda p: p[1]), max(run, key=lambda p: p[1])})
    return kept


def finite(points):
    return [(x, y) for x, y in points if y is not None and math.isfinite(y)]


def smoothed(points):
    """An exponential mean over a twentieth of the points, but a few at least; corrected for its beginning."""
    weight = 1 - min(0.5, max(0.02, 20 / max(len(points), 1)))
    kept, mean, share = [], 0.0, 0.0
    for x, y in points:
        mean, share = weight * mean + (1 - weight) * y, weight * share + (1 - weight)
        kept.append((x, mean / share))
    return kept


class Frame:
    """Where values lie in a picture of some size."""

    def __init__(self, width, height, x, y, log=False):
        self.width, self.height, self.log = width, height, log
        self.left, self.right, self.top, self.bottom = 52, 10, 8, 26
        self.x0, self.x1 = x
        self.y0, self.y1 = (math.log10(y[0]), math.log10(y[1])) if log else y
        self.y1 += (self.y1 - self.y0) * 0.04
        if self.x1 <= self.x0:
            self.x0, self.x1 = self.x0 - 0.5, self.x1 + 0.5
        if self.y1 <= self.y0:
            pad = abs(self.y0) * 0.05 or 1
            self.y0, self.y1 = self.y0 - pad, self.y1 + pad

    def at(self, x, y):
        y = math.log10(y) if self.log else y
        across = (x - self.x0) / (self.x1 - self.x0)
        up = (y - self.y0) / (self.y1 - self.y0)
        return (self.left + across * (self.width - self.left - self.right),
                self.height - self.bottom - up * (self.height - self.top - self.bottom))

    def grid(self):
        parts = []
        rows = max(2, int(self.height / 55))
        for value in log_ticks(self.y0, self.y1, rows) if self.log else ticks(self.y0, self.y1, rows):
            _, y = self.at(self.x0, value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.width - self.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                         f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
        for value in ticks(self.x0, self.x1, max(2, int(self.width / 110))):
            if value != int(value):
                continue
            x, _ = self.at(value, 10 ** self.y0 if self.log else self.y0)
            parts.append(f'<text x="{x:.1f}" y="{self.height - 8}" text-anchor="middle">{short(int(value))}</text>')
        return "".join(parts)


def _path(frame, points):
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (frame.at(*p) for p in points))


def _picture(width, height, kind, series, log, from_zero, label):
    all_y = [y for s in series for _, y in s["points"]]
    all_x = [x for s in series for x, _ in s["points"]]
    low, high = min(all_y), max(all_y)
    if from_zero:
        low, high = min(low, 0), max(high, 0)
    frame = Frame(width, height, (min(all_x), max(all_x)), (low, high), log)
    parts = [frame.grid()]
    for s in series:
        points = s["points"]
        if s.get("between"):  # an area over another line
            edge = _path(frame, points) + "L" + _path(frame, s["between"][::-1])[1:] + "Z"
            parts.append(f'<path d="{edge}" fill="{s["color"]}" stroke="none"/>')
        elif s.get("dots") or len(points) == 1:
            dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in (frame.at(*p) for p in points))
            line = f'<path d="{_path(frame, points)}" fill="none" stroke-width="1.5"/>' if len(points) > 1 else ""
            parts.append(f'<g fill="{s["color"]}" stroke="{s["color"]}">{line}{dots}</g>')
        else:
            extra = ' stroke-dasharray="5 4"' if s.get("dashed") else ""
            faint = ' opacity="0.35"' if s.get("faint") else ""
            parts.append(f'<path d="{_path(frame, points)}" fill="none" stroke="{s["color"]}" stroke-width="1.7"{extra}{faint}/>')
    return (f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">'
            f'{"".join(parts)}</svg>')


def chart(title, series, note="", log=False, from_zero=False):
    """A figure with a legend. Each of `series`: name, points and, as wanted, dots, dashed, faint, between (for areas).
    Empty if there is nothing to draw."""
    kept = []
    for s in series:
        points = finite(s["points"])
        points = [p for p in points if p[1] > 0] if log else points
        if points:
            between = s.get("between")
            if between:
                kept.append({**s, "points": points})
            else:
                kept.append({**s, "points": thinned(points)})
    if not kept:
        return ""
    for i, s in enumerate(kept):
        s.setdefault("color", COLORS[i % len(COLORS)])
    pictures = "".join(_picture(width, height, kind, kept, log, from_zero, title)
                       for kind, width, height in (("wide", 760, 250), ("narrow", 360, 230)))
    legend = "".join(f'<span><i style="background:{s["color"]}{";opacity:.35" if s.get("faint") else ""}"></i>{html.escape(s["name"])}</span>'
                     for s in kept if s.get("name"))
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return f'<figure><figcaption>{html.escape(title)}</figcaption><div class="legend">{legend}</div>{pictures}{note}</figure>'


def stacked(title, names, rows, note=""):
    """Areas one upon another: `rows` are (x, {name: y}). Each run of x is joined to its mean."""
    if not rows or not names:
        return ""
    runs = min(len(rows), POINTS_MOST // 2)
    joined = []
    for i in range(runs):
        run = rows[i * len(rows) // runs:(i + 1) * len(rows) // runs]
        joined.append((run[0][0], {n: sum(values.get(n, 0) for _, values in run) / len(run) for n in names}))
    below = [(x, 0.0) for x, _ in joined]
    series = []
    for i, name in enumerate(names):
        above = [(x, y + joined[j][1][name]) for j, (x, y) in enumerate(below)]
        series.append({"name": name, "points": above, "between": below, "color": COLORS[i % len(COLORS)]})
        below = above
    return chart(title, series, note, from_zero=True)


def _strip_picture(width, kind, rows, x0, x1, label):
    """A row for each name: its share of the whole height as an area, over what is behind."""
    left, right, height, gap = 104, 14, 22, 8
    across = (width - left - right) / max(x1 - x0, 1)
    parts, y = [], 2
    for i, (name, points) in enumerate(rows):
        bottom = y + height
        kept = points if len(points) > 1 else [points[0], (x1 if x1 > x0 else x0 + 1, points[0][1])]
        line = "L".join(f"{left + (x - x0) * across:.1f} {bottom - height * min(max(share, 0), 1):.1f}" for x, share in kept)
        begin, end = (left + (x - x0) * across for x in (kept[0][0], kept[-1][0]))
        parts.append(f'<rect class="strip" x="{left}" y="{y}" width="{width - left - right}" height="{height}"/>'
                     f'<path d="M{begin:.1f} {bottom}L{line}L{end:.1f} {bottom}Z" fill="{COLORS[i % len(COLORS)]}"/>'
                     f'<text x="{left - 6}" y="{bottom - 6}" text-anchor="end">{html.escape(name)}</text>')
        y += height + gap
    for value in ticks(x0, x1, max(2, int(width / 110))):
        if value == int(value):
            parts.append(f'<text x="{left + (value - x0) * across:.1f}" y="{y + 10}" text-anchor="middle">{short(int(value))}</text>')
    return (f'<svg class="{kind}" viewBox="0 0 {width} {y + 16}" role="img" aria-label="{html.escape(label)}">'
            f'{"".join(parts)}</svg>')


def strips(title, rows, note=""):
    """Shares from 0 to 1, each in a row of its own: `rows` are (name, points). Each run of x is joined to its mean."""
    kept = []
    for name, points in rows:
        points = finite(points)
        runs = min(len(points), POINTS_MOST // 4)
        parts = [points[i * len(points) // runs:(i + 1) * len(points) // runs] for i in range(runs)]
        if parts:
            kept.append((name, [(part[0][0], sum(y for _, y in part) / len(part)) for part in parts]))
    if not kept:
        return ""
    x0, x1 = min(p[0][0] for _, p in kept), max(p[-1][0] for _, p in kept)
    pictures = "".join(_strip_picture(width, kind, kept, x0, x1, title) for kind, width in (("wide", 760), ("narrow", 360)))
    note = f"<p>{html.escape(note)}</p>" if note else ""
    return f'<figure><figcaption>{html.escape(title)}</figcaption>{pictures}{note}</figure>'


def bar(parts, whole):
    """What parts take of a whole: [(name, amount)], side by side. More than the whole fills it."""
    full = max(whole or 0, sum(amount for _, amount in parts))
    if not full:
        return ""
    shown = "".join(f'<i style="width:{amount / full * 100:.3g}%;background:{COLORS[i % len(COLORS)]}" title="{html.escape(name)}"></i>'
                    for i, (name, amount) in enumerate(parts))
    return f'<div class="bar">{shown}</div>'
