"""Documents into rows."""

import bisect

import numpy as np


def packed(lengths, room):
    """Rows of documents that have `room` tokens at most: best fit, longest first. Each row is a list of indices.

    A function of the lengths alone. Within a row and among rows, documents stay in their order.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    rows, with_room, rooms = [], {}, []  # rows by the room that is left, and those rooms in order
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


def padded(lengths):
    return [[i] for i in range(len(lengths))]


def held_out(keys, share, seed_key):
    """Which samples are for validation: a share of the distinct keys, rounded up, never all of them.

    `seed_key` turns a key into what is sorted by. Equal keys stay together, so nothing is both learnt and validated.
    """
    distinct = sorted(set(keys), key=seed_key)
    count = min(int(np.ceil(len(distinct) * share)), len(distinct) - 1)
    chosen = set(distinct[:max(count, 0)])
    return np.array([key in chosen for key in keys], dtype=bool)
