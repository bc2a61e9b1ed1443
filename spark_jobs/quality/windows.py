"""What the trend adds up to: counts of the last hours and days, and the late events that still wait for a replay.

Void batches count for nothing: the batches after their rewind have read their records again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from include.config.health import WINDOWS, Counts
from spark_jobs.quality.trend import KINDS, METRIC_OF, Trend
from spark_jobs.tables.records import REWIND

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


def late_events(trend: Trend) -> LateEvents:
    """Of the last 7 days. A replay pairs the oldest ones first, so far as this goes: it says how many it paired, not which."""
    waiting: list[tuple[int, int, float]] = []
    for row in _rows(trend, void_batches(trend), trend.columns["at"][-1] - LONGEST_S, trend.columns["at"][-1]):
        if late := _value(trend, "late_healable", row):
            waiting.append((late, trend.columns["batch"][row], trend.columns["at"][row]))
        healed = _healed(trend, row)
        while healed and waiting:
            number, batch, at = waiting.pop(0)
            if number > healed:
                waiting.insert(0, (number - healed, batch, at))
            healed = max(healed - number, 0)
    if not waiting:
        return LateEvents(0)
    (_, first, since), (_, newest, last) = waiting[0], waiting[-1]
    return LateEvents(sum(number for number, *_ in waiting), first, since, newest, last)


def _healed(trend: Trend, row: int) -> int:
    """Late events that a batch has paired. Rows before that was counted say how many orphans have found their partner."""
    if "late_healed" in trend.values and trend.values["late_healed"][row] is not None:
        return _value(trend, "late_healed", row)
    return _value(trend, "healed_left", row) + _value(trend, "healed_right", row)


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
