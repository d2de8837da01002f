"""Numbers as reports and panels say them."""

import math


def bytes_text(number):
    if number is None:
        return "–"
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(number) >= unit:
            return f"{number / unit:.3g} {name}" if number < 1000 * unit else f"{number / unit:.0f} {name}"
    return f"{number:.0f} B"


def seconds_text(seconds):
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def days_text(days):
    if days is None:
        return "–"
    return f"{days:.0f} days" if days < 3650 else f"{days / 365.25:.0f} years"


def lane_text(lane):
    return "other" if lane == "none" else lane.replace("_", " ")


def share_text(share):
    """In percent; a little that is not nothing is not said to be 0."""
    if share is None:
        return "–"
    return f"{share * 100:.0f} %" if share >= 0.1 or share == 0 else f"{share * 100:.2g} %"
