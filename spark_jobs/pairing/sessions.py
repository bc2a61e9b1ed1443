"""Rules 3, 4 and 6: sessions, when they are closed, and when they came too late."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_jobs.pairing.rules import Flags, Ints, Rules


class Sessions(NamedTuple):
    """`number`: the session of each event, counted from 0. The others: one entry a session, `start` and `end` in epoch ms."""

    number: Ints
    start: Ints
    end: Ints
    closed: Flags
    late: Flags


def cut_sessions(key: Ints, ts: Ints, is_open: Flags, rules: Rules) -> Sessions:
    """Sessions of events in the order (key, ts, …): cut where the key changes, after a silence, and at max_session.

    A late session consists of new events only and was over before the previous batch's clock. Late ones are not `closed`.
    """
    first = _first_of_session(key, ts, rules)
    starts = np.flatnonzero(first)
    number = np.cumsum(first) - 1
    start, end = ts[starts], ts[np.append(starts[1:], len(ts)) - 1] if len(ts) else ts[starts]
    has_open = np.zeros(len(starts), dtype=bool)
    np.logical_or.at(has_open, number[is_open], True)
    late = ~has_open & rules.over_before(end, rules.previous_clock)
    closed = rules.over_before(end, rules.clock) & ~late
    return Sessions(number, start, end, closed, late)


def _first_of_session(key: Ints, ts: Ints, rules: Rules) -> Flags:
    first = np.ones(len(ts), dtype=bool)
    # Exactly one gap apart is still the same session.
    first[1:] = (np.diff(key) != 0) | (np.diff(ts) > rules.gap_ms)
    chain_starts = np.flatnonzero(first)
    chain_ends = np.append(chain_starts[1:], len(ts))
    for begin, stop in zip(chain_starts, chain_ends, strict=True):
        if ts[stop - 1] - ts[begin] > rules.max_session_ms:
            _cut_long_chain(first, ts, int(begin), int(stop), rules.max_session_ms)
    return first


def _cut_long_chain(first: Flags, ts: Ints, begin: int, stop: int, max_session_ms: int) -> None:
    """Cuts before the first event beyond start + max_session (exactly there still belongs), again and again."""
    while ts[stop - 1] - ts[begin] > max_session_ms:
        begin += int(np.searchsorted(ts[begin:stop], ts[begin] + max_session_ms, side="right"))
        first[begin] = True
