"""Late events by the intervals in which they lie: how many each has, how many of them a replay would pair, and which replays did.

An interval reaches from the first to the last minute with late events within an interval of `replay_schedule`. Batches keep theirs as breakdowns
(`LATE`, `HEALABLE`) with the exact times of those that a replay would pair (`TIMES`); replays keep their own interval (`LOOKED`), and how many
late events in it waited until then (`HEALED`). A late event is at the time of the compound that a replay would make it part of, so it waits for
a replay whose interval has that time, start inclusive, end exclusive.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from croniter import croniter

from include.config.pipeline import MS_PER_UNIT
from include.config.problem_marks import LookMark, read_marks
from include.config.store import pages_store
from spark_jobs.quality.batch import Batch, chosen_batches
from spark_jobs.quality.facts import ELSEWHERE, Facts
from spark_jobs.quality.numbers import Breakdown, rows_of
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED
from spark_jobs.tables.records import LIVE, REPLAY, Window
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.tables import Tables

LATE, HEALABLE, HEALED, TIMES, LOOKED = "late", "late_healable", "late_healed", "late_times", "late_looked"
# Facts of late events: the label of those with an unpaired partner.
LATE_FACT, PARTNER = "late_at", "has a partner"
MINUTE_MS = MS_PER_UNIT["m"]
# A batch with more late events keeps no exact times, only minutes.
EXACT = 5_000
# Of each batch, the first ones.
_INTERVALS = 200
_UNTIL, _FROM, _AFTER = "until", "from", "ms after"


class Look(NamedTuple):
    """A replay of an interval. None of the late events in it of batches up to `through` waits any longer. `replay`: its batch, None if it
    corrected nothing, and so made none.
    """

    through: int
    window: Window
    replay: int | None = None


class LateInterval(NamedTuple):
    """Late events of a batch with times in `window`. `healed`: how many of those that a replay would pair replays have looked at, `by`: these
    replays. `times` (epoch ms): of those that still wait, None if they are not known exactly.
    """

    window: Window
    late: int
    healable: int
    times: tuple[int, ...] | None = None
    healed: int = 0
    by: tuple[Look, ...] = ()

    @property
    def waiting(self) -> int:
        """How many late events a replay would still pair."""
        return self.healable - self.healed

    def after(self, *looks: Look) -> LateInterval:
        """The interval after these replays. Where times are not known, only a replay of all of it heals it.

        >>> interval = LateInterval(Window(0, 60_000), 4, 3, (7, 7, 9))
        >>> [interval.after(Look(1, Window(7, end))).healed for end in (7, 8, 9, 10)]
        [0, 2, 2, 3]
        """
        found = self
        for look in looks:
            start, end = look.window
            if found.times is None:
                left, is_whole = None, start <= found.window.start and found.window.end <= end
                number = found.waiting if is_whole else 0
            else:
                left = tuple(at for at in found.times if not start <= at < end)
                number = len(found.times) - len(left)
            if number:
                found = found._replace(times=left, healed=found.healed + number, by=(*found.by, look))
        return found


class LateHistory(NamedTuple):
    """The valid reported batches that have late events, or are replays; and all that replays have looked at, the first ones first."""

    batches: Sequence[Batch] = ()
    looks: Sequence[Look] = ()


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
    """The families `LATE`, `HEALABLE` and `TIMES` of a live batch: `bucket` is the first millisecond of an interval; `value` its end, exclusive, or
    the times after `bucket` in ms, as often as there are events.

    Late events more than 31 days away have no interval: of them only `LATE` has a row, without a bucket.
    """
    times: Counter[int] = Counter()
    healable: Counter[int] = Counter()
    for label, at, each in counted.of(LATE_FACT, (batch.batch_id,)):
        place = ELSEWHERE if at is None else at
        times[place] += each.number
        healable[place] += each.number if label == PARTNER else 0
    far = times.pop(ELSEWHERE, 0)
    minutes = {at // MINUTE_MS for at in times}
    spans = [(minute, Window(minute * MINUTE_MS, (minute + 1) * MINUTE_MS)) for minute in minutes]
    windows = [window for _, window in sorted(by_interval(spans, batch.planned.pipeline.replay_schedule).items())]
    found = [Breakdown(LATE, far)] if far else []
    for window in windows[:_INTERVALS]:
        late, partners = _within(times, window), _within(healable, window)
        found.append(_row(LATE, late.total(), window))
        found += [_row(HEALABLE, partners.total(), window)] if partners.total() else []
        if partners.total() and is_exact(batch):
            value = " ".join(str(at - window.start) for at in sorted(partners.elements()))
            found.append(Breakdown(TIMES, partners.total(), window.start, _AFTER, value))
    return found


def is_exact(batch: Batch) -> bool:
    """Whether the late events of a live batch are counted by their exact times, not by minutes."""
    return batch.pairing.late <= EXACT


def _within(times: Counter[int], window: Window) -> Counter[int]:
    return Counter({at: number for at, number in times.items() if window.start <= at < window.end})


def _row(family: str, number: int, window: Window) -> Breakdown:
    return Breakdown(family, number, window.start, _UNTIL, str(window.end))


def late_intervals(batch: Batch, looks: Iterable[Look] = ()) -> list[LateInterval]:
    """The intervals of a batch with late events, by time, after those of the replays that came later than it."""
    rows, later = batch.breakdowns, [look for look in looks if batch.batch_id <= look.through]
    healable = {row.bucket: row.number for row in rows_of(rows, HEALABLE)}
    times = {
        row.bucket: tuple((row.bucket or 0) + int(each) for each in (row.value or "").split())
        for row in rows_of(rows, TIMES)
    }
    return [
        LateInterval(
            Window(row.bucket, int(row.value)), row.number, healable.get(row.bucket, 0), times.get(row.bucket)
        ).after(*later)
        for row in sorted(rows_of(rows, LATE), key=lambda row: row.bucket or 0)
        if row.bucket is not None and row.value is not None
    ]


def looks_of(batches: Iterable[Batch], noted: Iterable[LookMark] = ()) -> list[Look]:
    """What the replays among the batches have looked at, and what replays have `noted` that made no batch; the first ones first."""
    found = [Look(each.batch, Window(each.start, each.end)) for each in noted]
    for batch in batches:
        rows = rows_of(batch.breakdowns, LOOKED)
        found += [Look(batch.batch_id - 1, Window(row.bucket or 0, int(row.value or 0)), batch.batch_id) for row in rows]
    return sorted(found, key=lambda look: (look.through, look.replay or 0))


class _ByTime:
    """Looks, to be found by time: a week may have thousands of replays and of batches with late events, and few pairs of them touch."""

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = sorted(enumerate(looks), key=lambda each: each[1].window.start)
        self._starts = [look.window.start for _, look in self._looks]
        self._longest = max((look.window.end - look.window.start for look in looks), default=0)

    def near(self, batch: Batch) -> list[Look]:
        """Those that may touch an interval of the batch, in the order that they were given in."""
        rows = rows_of(batch.breakdowns, LATE)
        spans = [(row.bucket, int(row.value)) for row in rows if row.bucket is not None and row.value is not None]
        if not spans:
            return []
        first, last = min(spans)[0] - self._longest, max(end for _, end in spans)
        found = self._looks[bisect_left(self._starts, first) : bisect_left(self._starts, last)]
        return [look for _, look in sorted(found)]


def waiting_after(batches: Iterable[Batch], looks: Sequence[Look]) -> dict[int, int]:
    """Of each batch, how many of its late events a replay would still pair; also of those that lie in no interval, which none is known to heal."""
    by_time = _ByTime(looks)
    return {
        batch.batch_id: int(batch.metrics[HEALABLE])
        - sum(each.healed for each in late_intervals(batch, by_time.near(batch)))
        for batch in batches
    }


def healed_breakdowns(replay: int, window: Window, before: LateHistory) -> list[Breakdown]:
    """The families `LOOKED` and `HEALED` of a replay of the window: of `HEALED` a row for each interval in which late events have waited for it.
    `bucket` is the batch that rejected them, `value` the begin of the interval.
    """
    mine = Look(replay - 1, window, replay)
    return [_row(LOOKED, 1, window)] + [
        Breakdown(HEALED, number, batch.batch_id, _FROM, str(each.window.start))
        for batch in before.batches
        for each in late_intervals(batch, before.looks)
        if (number := each.waiting - each.after(mine).waiting)
    ]


def healed_batches(batches: Sequence[Batch], before: Sequence[Batch]) -> list[Batch]:
    """The batches whose late events the replays among `batches` have healed. `before`: those before them."""
    known = {batch.batch_id: batch for batch in (*before, *batches)}
    touched = {row.bucket or 0 for batch in batches for row in rows_of(batch.breakdowns, HEALED)}
    return [known[batch_id] for batch_id in sorted(touched & known.keys())]


def late_history(warehouse: Tables, until: int) -> LateHistory:
    """That of the batches up to `until`, inclusive, as quality_metrics has them."""
    counted = warehouse.select_rows(LEDGER, ["batch_id", "kind", "counts"], lambda row: row("step") == PAIRED)
    asked = {row["batch_id"] for row in counted if row["kind"] == REPLAY}
    asked |= {row["batch_id"] for row in counted if row["kind"] == LIVE and dict(row["counts"] or ()).get("late")}
    rewinds = Ledger(warehouse).rewinds() if asked else []

    def is_valid(batch_id: int) -> bool:
        return not any(rewind.voids(batch_id) for rewind in rewinds)

    batches = chosen_batches(warehouse, [each for each in asked if each <= until and is_valid(each)])
    noted = read_marks(pages_store(warehouse.pipeline.name, warehouse.root)).looked if batches else ()
    return LateHistory(batches, looks_of(batches, [each for each in noted if is_valid(each.batch)]))
