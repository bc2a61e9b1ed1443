"""Rule 5: which left event belongs to which right event inside a closed session.

Pairs do not cross, so it is enough to know which events are matched: the first left then belongs to the first right, the second
to the second, and so on. Where all events of a stretch match that way, no search is needed; `excursions` searches the others.
Time and memory are linear in the number of events for any input.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_jobs.rules.excursions import matched_events
from spark_jobs.rules.rules import LEFT, RIGHT, Flags, Ints


class Partners(NamedTuple):
    """Positions of the paired events, aligned: left[i] belongs to right[i]."""

    left: Ints
    right: Ints


def match_one_to_one(session: Ints, ts: Ints, side: Ints, tolerance_ms: int) -> Partners:
    """Pairs events in session order; `session` numbers ascend, `ts` in epoch ms. Events without a partner are in neither column.

    >>> match_one_to_one(np.zeros(3, int), np.array([0, 50, 100]), np.array([RIGHT, LEFT, RIGHT]), 60)
    Partners(left=array([1]), right=array([0]))
    """
    is_left = side == LEFT
    if not len(ts):
        return Partners(np.flatnonzero(is_left), np.flatnonzero(is_left))
    # No pair spans a silence longer than the tolerance, so each stretch between two such silences is matched by itself.
    start = np.flatnonzero(np.append(True, (np.diff(session) != 0) | (np.diff(ts) > tolerance_ms)))
    length = np.diff(np.append(start, len(ts)))
    stretch = np.repeat(np.arange(len(start)), length)
    left_count = np.add.reduceat(is_left, start, dtype=np.int64)
    complete = _completely_matched(stretch, ts, is_left, 2 * left_count == length, tolerance_ms)
    matched = complete[stretch]
    searched = ~complete & (left_count > 0) & (left_count < length)
    if searched.any():
        events = np.flatnonzero(searched[stretch])
        begins = np.cumsum(length[searched]) - length[searched]
        among = matched_events(ts[events], side[events], begins, tolerance_ms)
        matched[events] = _first_of_equals(among, ts[events], side[events], begins)
    return Partners(np.flatnonzero(matched & is_left), np.flatnonzero(matched & ~is_left))


def _completely_matched(stretch: Ints, ts: Ints, is_left: Flags, balanced: Flags, tolerance_ms: int) -> Flags:
    """Which of the balanced stretches match completely: only one way to do so does not cross."""
    complete = balanced.copy()
    inside = balanced[stretch]
    left, right = np.flatnonzero(inside & is_left), np.flatnonzero(inside & ~is_left)
    complete[stretch[left[np.abs(ts[left] - ts[right]) > tolerance_ms]]] = False
    return complete


def _first_of_equals(matched: Flags, ts: Ints, side: Ints, begins: Ints) -> Flags:
    """Moves the matches among events of one side and timestamp to the first of these events."""
    new = np.append(True, (np.diff(ts) != 0) | (np.diff(side) != 0))
    new[begins] = True
    start = np.flatnonzero(new)
    size = np.diff(np.append(start, len(ts)))
    rank = np.arange(len(ts)) - np.repeat(start, size)
    return rank < np.repeat(np.add.reduceat(matched, start, dtype=np.int64), size)


def match_collapse(session: Ints, side: Ints) -> tuple[Partners, Flags]:
    """Makes one compound a session, as Kafka Streams does: the first event of each side, at any distance.

    Arguments as of `match_one_to_one`. Returns the partners in two-sided sessions, and True for each event that is not the
    first of its side.

    >>> match_collapse(np.array([0, 0, 0, 1]), np.array([LEFT, LEFT, RIGHT, LEFT]))
    (Partners(left=array([0]), right=array([2])), array([False,  True, False, False]))
    """
    collapsed = np.ones(len(session), dtype=bool)
    firsts = []
    for one_side in (LEFT, RIGHT):
        events = np.flatnonzero(side == one_side)
        first = events[np.diff(session[events], prepend=-1) != 0]
        collapsed[first] = False
        firsts.append(np.full(int(session.max(initial=0)) + 1, -1))
        firsts[-1][session[first]] = first
    both = (firsts[0] >= 0) & (firsts[1] >= 0)
    return Partners(firsts[0][both], firsts[1][both]), collapsed
