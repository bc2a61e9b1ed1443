"""Late events by the intervals in which they lie: how many each has, how many of them a replay would pair, and which replay did.

An interval reaches from the first to the last minute with late events within an interval of `replay_schedule`. Batches keep theirs as breakdowns
(`LATE`, `HEALABLE`), and replays those that they covered (`HEALED`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from croniter import croniter

from include.config.pipeline import MS_PER_UNIT
from spark_jobs.quality.batch import Batch, chosen_batches
from spark_jobs.quality.facts import ELSEWHERE, Facts
from spark_jobs.quality.numbers import Breakdown, rows_of
from spark_jobs.tables.ledger import PAIRED, Ledger
from spark_jobs.tables.records import LIVE, REPLAY, Window
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.warehouse import Tables

LATE, HEALABLE, HEALED = "late", "late_healable", "late_healed"
# Facts of late events: the label of those with an unpaired partner.
LATE_FACT, PARTNER = "late_at", "has a partner"
MINUTE_MS = MS_PER_UNIT["m"]
# Of each batch, the first ones.
_INTERVALS = 200
_UNTIL, _FROM = "until", "from"


class LateInterval(NamedTuple):
    """Late events of a batch with times in `window`; `healed_by`: the replay that covered it, None before that."""

    window: Window
    late: int
    healable: int
    healed_by: int | None = None


def by_interval(spans: Iterable[tuple[int, Window]], cron: str) -> dict[int, Window]:
    """One window for each interval of the cron expression (UTC), from its first span's start to its last one's end.

    `spans`: the minute of a late event (minutes since the epoch, cron's smallest unit), and the event times that it affects.

    >>> by_interval([(59, Window(1, 5)), (60, Window(7, 9)), (119, Window(6, 8))], "0 * * * *")
    {0: Window(start=1, end=5), 3600000: Window(start=6, end=9)}
    """
    windows: dict[int, Window] = {}
    for minute, span in sorted(spans):
        # The expression's last time that is not after the minute's begin.
        begin = int(croniter(cron, minute * 60 + 1).get_prev(float)) * 1000
        window = windows.get(begin, span)
        windows[begin] = Window(min(window.start, span.start), max(window.end, span.end))
    return windows


def late_breakdowns(batch: Batch, counted: Facts) -> list[Breakdown]:
    """The families `LATE` and `HEALABLE` of a live batch: `bucket` is the first millisecond of an interval, `value` its end, exclusive.

    Late events more than 31 days away have no interval: of them only `LATE` has a row, without a bucket.
    """
    minutes: dict[int, list[int]] = {}
    for label, minute, each in counted.of(LATE_FACT, (batch.batch_id,)):
        numbers = minutes.setdefault(ELSEWHERE if minute is None else minute, [0, 0])
        numbers[0] += each.number
        numbers[1] += each.number if label == PARTNER else 0
    far, _ = minutes.pop(ELSEWHERE, (0, 0))
    spans = [(at // MINUTE_MS, Window(at, at + MINUTE_MS)) for at in minutes]
    windows = [window for _, window in sorted(by_interval(spans, batch.planned.pipeline.replay_schedule).items())]
    found = [Breakdown(LATE, far)] if far else []
    for window in windows[:_INTERVALS]:
        late, healable = (sum(column) for column in zip(*_within(minutes, window), strict=True))
        found.append(_row(LATE, late, window))
        found += [_row(HEALABLE, healable, window)] if healable else []
    return found


def _within(minutes: Mapping[int, Sequence[int]], window: Window) -> list[Sequence[int]]:
    return [numbers for at, numbers in minutes.items() if window.start <= at < window.end]


def _row(family: str, number: int, window: Window) -> Breakdown:
    return Breakdown(family, number, window.start, _UNTIL, str(window.end))


def late_intervals(breakdowns: Iterable[Breakdown], healed: Mapping[int, int] | None = None) -> list[LateInterval]:
    """The intervals of a batch with late events, by time. `healed`: start of an interval -> the replay that covered it.

    >>> rows = [Breakdown("late", 3, 0, "until", "60000"), Breakdown("late_healable", 2, 0, "until", "60000")]
    >>> late_intervals(rows, {0: 9})
    [LateInterval(window=Window(start=0, end=60000), late=3, healable=2, healed_by=9)]
    """
    rows, healed = list(breakdowns), healed or {}
    healable = {row.bucket: row.number for row in rows_of(rows, HEALABLE)}
    return [
        LateInterval(Window(row.bucket, int(row.value)), row.number, healable.get(row.bucket, 0), healed.get(row.bucket))
        for row in sorted(rows_of(rows, LATE), key=lambda row: row.bucket or 0)
        if row.bucket is not None and row.value is not None
    ]


def healed_breakdowns(window: Window, before: Iterable[Batch]) -> list[Breakdown]:
    """The family `HEALED` of a replay of the window: the intervals with `HEALABLE` events that it covers, each only once in all replays.

    `bucket` is the batch that rejected the events, `value` the begin of the interval. `before`: the valid batches before the replay.
    """
    batches = list(before)
    done = {(batch_id, start) for batch in batches for batch_id, start in healed_by(batch)}
    return [
        Breakdown(HEALED, each.healable, batch.batch_id, _FROM, str(each.window.start))
        for batch in batches
        for each in late_intervals(batch.breakdowns)
        if each.healable and window.start <= each.window.start and each.window.end <= window.end
        if (batch.batch_id, each.window.start) not in done
    ]


def healed_by(replay: Batch) -> list[tuple[int, int]]:
    """The batch of late events, and the begin of their interval, of each interval that the replay covered."""
    return [(row.bucket or 0, int(row.value or 0)) for row in rows_of(replay.breakdowns, HEALED)]


def healed_pages(batches: Sequence[Batch], before: Sequence[Batch]) -> list[tuple[Batch, dict[int, int]]]:
    """The batches whose late events the replays among `batches` have covered, each with start of interval -> replay, of all replays.

    `before`: the batches before them that have late events, or are replays.
    """
    known = {batch.batch_id: batch for batch in (*before, *batches)}
    touched = {batch_id for batch in batches for batch_id, _ in healed_by(batch)}
    healed: dict[int, dict[int, int]] = {batch_id: {} for batch_id in sorted(touched & known.keys())}
    for replay in known.values():
        for batch_id, start in healed_by(replay):
            healed.get(batch_id, {})[start] = replay.batch_id
    return [(known[batch_id], starts) for batch_id, starts in healed.items()]


def batches_with_late(warehouse: Tables, until: int) -> list[Batch]:
    """The valid reported batches up to `until`, inclusive, that rejected late events, and the replays, as quality_metrics has them."""
    counted = warehouse.select_rows(LEDGER, ["batch_id", "kind", "counts"], lambda row: row("step") == PAIRED)
    asked = {row["batch_id"] for row in counted if row["kind"] == REPLAY}
    asked |= {row["batch_id"] for row in counted if row["kind"] == LIVE and dict(row["counts"] or ()).get("late")}
    rewinds = Ledger(warehouse).rewinds()
    valid = [each for each in asked if each <= until and not any(rewind.voids(each) for rewind in rewinds)]
    return chosen_batches(warehouse, valid)
