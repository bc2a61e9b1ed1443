"""Rule 5: which left event belongs to which right event inside a closed session.

`one_to_one` is an alignment problem. Let V[i, j] be the best value of the lefts from i on and the rights from j on, where a
pair is worth `unit` less its distance; `unit` outweighs every possible sum of distances, so more pairs always win and the
smaller sum decides among equals. Rows are computed from the last left to the first; going forward again, each left takes
the first right that reaches the optimum, which makes the list of pairs lexicographically smallest. All sessions of one
shape (lefts x rights) go through the same numpy operations at once.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import numpy as np

from spark_jobs.pairing.rules import LEFT, RIGHT, Ints

_CELLS_AT_ONCE = 4_000_000
_IMPOSSIBLE = np.int64(-(2**62))


class Partners(NamedTuple):
    """Positions of the events that were paired, aligned: left[i] belongs to right[i]."""

    left: Ints
    right: Ints


def match_one_to_one(session: Ints, ts: Ints, side: Ints, tolerance_ms: int) -> Partners:
    """Partners among events in session order; `session` numbers ascend. Events in no pair stay alone.

    >>> match_one_to_one(np.zeros(3, int), np.array([0, 50, 100]), np.array([RIGHT, LEFT, RIGHT]), 60)
    Partners(left=array([1]), right=array([0]))
    """
    # No pair can span a silence longer than the tolerance, so each stretch between two such silences is a problem of its own.
    new_stretch = np.ones(len(ts), dtype=bool)
    new_stretch[1:] = (np.diff(session) != 0) | (np.diff(ts) > tolerance_ms)
    stretch = np.cumsum(new_stretch) - 1
    lefts, rights = np.flatnonzero(side == LEFT), np.flatnonzero(side == RIGHT)
    stretches = int(stretch[-1]) + 1 if len(ts) else 0
    left_count, right_count = (
        np.bincount(stretch[lefts], minlength=stretches),
        np.bincount(stretch[rights], minlength=stretches),
    )
    left_start, right_start = np.cumsum(left_count) - left_count, np.cumsum(right_count) - right_count
    both = np.flatnonzero((left_count > 0) & (right_count > 0))
    shapes, shape_of = np.unique(np.stack((left_count[both], right_count[both]), axis=1), axis=0, return_inverse=True)
    found: list[Partners] = []
    for number, (n, m) in enumerate(shapes.tolist()):
        members = both[shape_of == number]
        per_chunk = max(1, _CELLS_AT_ONCE // ((n + 1) * (m + 1)))
        for begin in range(0, len(members), per_chunk):
            chunk = members[begin : begin + per_chunk]
            left = lefts[left_start[chunk][:, None] + np.arange(n)]
            right = rights[right_start[chunk][:, None] + np.arange(m)]
            rank = align(ts[left], ts[right], tolerance_ms)
            row, left_rank = np.nonzero(rank >= 0)
            found.append(Partners(left[row, left_rank], right[row, rank[row, left_rank]]))
    if not found:
        return Partners(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    return Partners(np.concatenate([p.left for p in found]), np.concatenate([p.right for p in found]))


def align(left_ts: Ints, right_ts: Ints, tolerance_ms: int) -> Ints:
    """For sessions of one shape: left_ts (sessions, n) and right_ts (sessions, m), each row ascending -> (sessions, n) ranks
    of the right partners, -1 where there is none. Memory grows with m * sqrt(n), time with n * m.
    """
    sessions, n = left_ts.shape
    m = right_ts.shape[1]
    if n == 1 and m == 1:
        return np.where(np.abs(left_ts - right_ts) <= tolerance_ms, 0, -1)
    unit = tolerance_ms * min(n, m) + 1
    if unit * min(n, m) >= -int(_IMPOSSIBLE):
        raise OverflowError(f"a session of {n} left and {m} right events is too large to be matched; lower max_session")
    # Only every block-th row is kept; the rows of one block are computed again when the forward walk comes to it.
    block = n if sessions * (n + 1) * (m + 1) <= 2 * _CELLS_AT_ONCE else isqrt(n) + 1
    row = np.zeros((sessions, m + 1), dtype=np.int64)
    kept = {n: row}
    for i in range(n - 1, -1, -1):
        row = _row_above(row, left_ts[:, i], right_ts, tolerance_ms, unit)
        if i % block == 0:
            kept[i] = row
    return _walk_forward(kept, block, left_ts, right_ts, tolerance_ms, unit)


def _walk_forward(kept: dict[int, Ints], block: int, left_ts: Ints, right_ts: Ints, tolerance_ms: int, unit: int) -> Ints:
    sessions, n = left_ts.shape
    rank = np.full((sessions, n), -1, dtype=np.int64)
    each, column = np.arange(sessions), np.arange(right_ts.shape[1])
    next_right = np.zeros(sessions, dtype=np.int64)
    for begin in range(0, n, block):
        stop = min(begin + block, n)
        rows = [kept[stop]]
        for i in range(stop - 1, begin, -1):
            rows.append(_row_above(rows[-1], left_ts[:, i], right_ts, tolerance_ms, unit))
        rows.append(kept[begin])
        for i in range(begin, stop):
            optimum, below = rows[stop - i], rows[stop - i - 1]
            value = _pair_values(below, left_ts[:, i], right_ts, tolerance_ms, unit)
            reaches = (value == optimum[each, next_right][:, None]) & (column >= next_right[:, None])
            pairs = reaches.any(axis=1)
            rank[pairs, i] = reaches[pairs].argmax(axis=1)
            next_right[pairs] = rank[pairs, i] + 1
    return rank


def _pair_values(below: Ints, left: Ints, right_ts: Ints, tolerance_ms: int, unit: int) -> Ints:
    """Value of pairing this left with each right, the best of what follows included."""
    distance = np.abs(left[:, None] - right_ts)
    return np.where(distance <= tolerance_ms, unit - distance + below[:, 1:], _IMPOSSIBLE)


def _row_above(below: Ints, left: Ints, right_ts: Ints, tolerance_ms: int, unit: int) -> Ints:
    row = below.copy()
    best_from = np.maximum.accumulate(_pair_values(below, left, right_ts, tolerance_ms, unit)[:, ::-1], axis=1)[:, ::-1]
    np.maximum(row[:, :-1], best_from, out=row[:, :-1])
    return row


def match_collapse(session: Ints, side: Ints) -> tuple[Partners, Ints]:
    """One compound a session, as Kafka Streams makes it: the first event of each side, however far apart.

    Returns the partners of two-sided sessions and the positions of all events that are not the first of their side.

    >>> match_collapse(np.array([0, 0, 0, 1]), np.array([LEFT, LEFT, RIGHT, LEFT]))
    (Partners(left=array([0]), right=array([2])), array([1]))
    """
    group = session * 2 + side
    _, first = np.unique(group, return_index=True)
    collapsed = np.setdiff1d(np.arange(len(session)), first)
    left, right = first[side[first] == LEFT], first[side[first] == RIGHT]
    _, in_left, in_right = np.intersect1d(session[left], session[right], assume_unique=True, return_indices=True)
    return Partners(left[in_left], right[in_right]), collapsed
