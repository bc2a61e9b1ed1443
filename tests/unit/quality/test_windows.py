"""Counts of the last hours and days, at their boundaries, without void batches; and the late events that wait."""

from __future__ import annotations

import pytest

from spark_jobs.quality.trend import KINDS, Trend
from spark_jobs.quality.windows import LateEvents, late_events, void_batches, windows_of, with_late

HOUR = 3_600


def trend_of(*rows):
    """Rows: (W in seconds, metrics), of batches from 1 on; `to` among the metrics makes a rewind, `replay` a replay."""
    trend = Trend("calls")
    names = {name for _, metrics in rows for name in metrics} - {"to", "replay"}
    for number, (at, metrics) in enumerate(rows, 1):
        kind = KINDS.index("rewind" if "to" in metrics else "replay" if "replay" in metrics else "live")
        row = {"batch": number, "at": at, "kind": kind, "state": 0, "settings": 0, "to": metrics.get("to"), "said": None}
        for name, value in row.items():
            trend.columns[name].append(value)
        for name in names:
            trend.values.setdefault(name, []).append(metrics.get(name))
    return trend


def test_a_window_begins_after_its_first_moment():
    newest = 8 * 24 * HOUR
    back = [7 * 24 * HOUR, 24 * HOUR, HOUR, 0]
    rows = [
        (newest - each - 1 + late, {"landed": 10**power})
        for power, each in enumerate(back)
        for late in (1, 2)
        if each or late == 1
    ]
    windows, hours = windows_of(trend_of(*rows))
    # At each edge there is a batch exactly on it, which is out, and one a second later, which is in.
    assert {name: counts.landed for name, counts in windows.items()} == {"1h": 1_100, "24h": 1_210, "7d": 1_221}
    assert [counts.landed for counts in hours[:1] + hours[-2:]] == [10, 100, 1_100] and len(hours) == 24
    assert sum(counts.landed for counts in hours) == 1_210


def test_batches_that_a_rewind_gave_up_count_for_nothing():
    trend = trend_of(*((HOUR, {"pair": 1}) for _ in range(4)), (HOUR, {"to": 2}), (HOUR, {"pair": 1, "rejected_late": 3}))
    assert void_batches(trend) == {3, 4}
    windows, _ = windows_of(trend)
    assert (windows["1h"].pair, windows["1h"].late) == (3, 3)


@pytest.mark.parametrize(
    ("rows", "left", "late"),
    [
        ([(1.0, {"late_healable": 0})], {}, LateEvents(0)),
        ([(1.0, {"late_healable": 2}), (5.0, {"late_healable": 3}), (9.0, {})], {}, LateEvents(5, 1, 1.0, 2, 5.0)),
        # Of what replays have paired, what is left counts.
        ([(1.0, {"late_healable": 2}), (5.0, {"late_healable": 3})], {1: 0, 2: 1}, LateEvents(1, 2, 5.0, 2, 5.0)),
        ([(1.0, {"late_healable": 2}), (5.0, {"late_healable": 3})], {2: 0}, LateEvents(2, 1, 1.0, 1, 1.0)),
        ([(1.0, {"late_healable": 2})], {1: 0}, LateEvents(0)),
        ([(1.0, {"late_healable": 3}), (2.0, {"late_healable": 4}), (3.0, {"to": 1})], {}, LateEvents(3, 1, 1.0, 1, 1.0)),
        # Older than seven days.
        ([(1.0, {"late_healable": 3}), (1.0 + 7 * 24 * HOUR, {})], {}, LateEvents(0)),
    ],
)
def test_late_events_wait_until_a_replay_pairs_them(rows, left, late):
    assert late_events(trend_of(*rows), left) == late


def test_the_batches_that_say_which_late_events_wait():
    late, replay = {"late_healable": 1}, {"replay": 1}
    trend = trend_of((1.0, replay), (2.0, late), (3.0, replay), (4.0, {}), (5.0, late), (6.0, {"late_healable": 0}))
    # A replay before the first of them has healed nothing of theirs.
    assert with_late(trend) == ([2, 5], [3])
    assert with_late(trend_of((1.0, replay), (2.0, {}))) == ([], [])
