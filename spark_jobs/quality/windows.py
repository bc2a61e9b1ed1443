"""What the trend adds up to: counts of the last hours and days, and the late events that still wait for a replay.

Void batches count for nothing: the batches after their rewind have read their records again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from include.config.health import WINDOWS, Counts
from spark_jobs.quality.trend import KINDS, METRIC_OF, Trend
from spark_jobs.tables.records import REPLAY, REWIND

LONGEST_S = 3_600 * max(WINDOWS.values())
_HOURS = 24


class LateEvents(NamedTuple):
    """Late events of a window that a replay would pair and none has paired: how many, the first and newest batch with some, and their times."""

    number: int
    first: int = 0
    since: float = 0.0
    newest: int = 0
    last: float = 0.0


def void_batches(trend: Trend) -> set[int]:
    """The batches that a rewind gave up."""
    batches, kinds, targets = (trend.columns[name] for name in ("batch", "kind", "to"))
    rewinds = [(to, batch) for batch, kind, to in zip(batches, kinds, targets, strict=True) if KINDS[kind] == REWIND]
    return {batch for batch in batches for to, rewind in rewinds if to < batch < rewind}


def windows_of(trend: Trend) -> tuple[dict[str, Counts], tuple[Counts, ...]]:
    """The counts of each window up to the newest batch, and of each of the last 24 hours, oldest first. A window excludes its begin."""
    at, void = trend.columns["at"][-1], void_batches(trend)
    windows = {name: _counted(trend, void, at - 3_600 * hours, at) for name, hours in WINDOWS.items()}
    hours = (_counted(trend, void, at - 3_600 * back, at - 3_600 * (back - 1)) for back in range(_HOURS, 0, -1))
    return windows, tuple(hours)


def with_late(trend: Trend) -> tuple[list[int], list[int]]:
    """The batches of the last 7 days with late events that a replay would pair when they were reported, and the replays since the first of them."""
    batches, kinds, rows = trend.columns["batch"], trend.columns["kind"], [*_newest_rows(trend)]
    late = [row for row in rows if _value(trend, "late_healable", row)]
    replays = [row for row in rows if late and row > late[0] and KINDS[kinds[row]] == REPLAY]
    return [batches[row] for row in late], [batches[row] for row in replays]


def late_events(trend: Trend, left: Mapping[int, int]) -> LateEvents:
    """Of the last 7 days. `left`: of batches of which replays have paired some, how many they left."""
    at, batches = trend.columns["at"], trend.columns["batch"]
    found = [
        (left.get(batches[row], _value(trend, "late_healable", row)), batches[row], at[row]) for row in _newest_rows(trend)
    ]
    waiting = [each for each in found if each[0]]
    if not waiting:
        return LateEvents(0)
    (_, first, since), (_, newest, last) = waiting[0], waiting[-1]
    return LateEvents(sum(number for number, *_ in waiting), first, since, newest, last)


def _newest_rows(trend: Trend) -> Iterator[int]:
    """Of the valid batches of the last 7 days."""
    newest = trend.columns["at"][-1]
    return _rows(trend, void_batches(trend), newest - LONGEST_S, newest)


def _counted(trend: Trend, void: set[int], after: float, until: float) -> Counts:
    rows = list(_rows(trend, void, after, until))
    return Counts(**{name: sum(_value(trend, metric, row) for row in rows) for name, metric in METRIC_OF.items()})


def _rows(trend: Trend, void: set[int], after: float, until: float) -> Iterator[int]:
    """Of the batches that count with after < W <= until."""
    times, batches = trend.columns["at"], trend.columns["batch"]
    return (row for row, at in enumerate(times) if after < at <= until and batches[row] not in void)


def _value(trend: Trend, name: str, row: int) -> int:
    column = trend.values.get(name)
    return int((column[row] if column else None) or 0)
