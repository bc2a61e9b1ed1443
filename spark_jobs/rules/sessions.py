"""Rules 3, 4 and 6: where sessions begin and end, and which of them are closed or late."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from spark_jobs.rules.rules import Flags, Ints, Rules


class Sessions(NamedTuple):
    """`number`: the session of each event, counted from 0. The others: one entry a session, `start` and `end` in epoch ms."""

    number: Ints
    start: Ints
    end: Ints
    closed: Flags
    late: Flags


def cut_sessions(key: Ints, ts: Ints, is_open: Flags, rules: Rules) -> Sessions:
    """Cuts events in the order (key, ts, …) into sessions: where the key changes, after a silence longer than the gap, at max_session.

    A late session consists of new events only and was over before the previous batch's clock. Late ones are not `closed`.
    """
    first = _first_of_session(key, ts, rules)
    starts = np.flatnonzero(first)
    number = np.cumsum(first) - 1
    start, end = ts[starts], ts[np.append(starts[1:], len(ts)) - 1] if len(ts) else ts[starts]
    has_open = np.zeros(len(starts), dtype=bool)
    has_open[number[is_open]] = True
    late = ~has_open & rules.over_before(end, rules.previous_clock)
    closed = rules.over_before(end, rules.clock) & ~late
    return Sessions(number, start, end, closed, late)


def _first_of_session(key: Ints, ts: Ints, rules: Rules) -> Flags:
    first = np.ones(len(ts), dtype=bool)
    if not len(ts):
        return first
    # Exactly one gap apart is still the same session.
    first[1:] = (np.diff(key) != 0) | (np.diff(ts) > rules.pipeline.gap_ms)
    chain_start = np.flatnonzero(first)
    chain_stop = np.append(chain_start[1:], len(ts))
    for chain in np.flatnonzero(ts[chain_stop - 1] - ts[chain_start] > rules.pipeline.max_session_ms):
        begin, stop = int(chain_start[chain]), int(chain_stop[chain])
        cuts = _cuts_of_chain(ts[begin:stop].tolist(), rules.pipeline.max_session_ms)
        first[begin + np.array(cuts)] = True
    return first


def _cuts_of_chain(ts: list[int], max_session_ms: int) -> list[int]:
    """Positions before which to cut: the first event beyond start + max_session (exactly there still belongs), and so on.

    >>> _cuts_of_chain([0, 40, 100, 101, 150, 202], 100)
    [3, 5]
    """
    cuts: list[int] = []
    begin = 0
    while (begin := bisect_right(ts, ts[begin] + max_session_ms, lo=begin)) < len(ts):
        cuts.append(begin)
    return cuts
