"""Documents into rows."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Rows of documents that have `room` tokens at most: best fit, longest first. Each row is a list of indices.

    A function of the lengths alone. Within a row and among rows, documents stay in their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # rows by the room that is left
    rooms: list[int] = []  # those rooms in order
    for i in order:
        at = bisect.bisect_left(rooms, lengths[i])
        if at == len(rooms):
            rows.append([i])
            left, row = room - lengths[i], len(rows) - 1
        else:
            best = rooms[at]
            row = with_room[best].pop()
            if not with_room[best]:
                del with_room[best], rooms[at]
            rows[row].append(i)
            left = best - lengths[i]
        if left > 1:  # no document has fewer than 2 tokens
            if left not in with_room:
                with_room[left] = []
                bisect.insort(rooms, left)
            with_room[left].append(row)
    return sorted(sorted(row) for row in rows)


def padded(lengths: Sequence[int]) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]


def held_out(
    keys: Sequence[bytes], share: float, seed_key: Callable[[bytes], Any]
) -> NDArray[np.bool_]:
    """Which samples are for validation: a share of the distinct keys, rounded up, never all of them.

    `seed_key` turns a key into what is sorted by. Equal keys stay together, so nothing is both learnt and validated.
    """
    distinct = sorted(set(keys), key=seed_key)
    count = min(int(np.ceil(len(distinct) * share)), len(distinct) - 1)
    chosen = set(distinct[:max(count, 0)])
    return np.array([key in chosen for key in keys], dtype=bool)
