"""Which rows may be removed for their age, which late events no replay has included, and the sums that stay of removed ledger rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import MS_PER_UNIT
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger_rows import (
    LANDED,
    PAIRED,
    PLANNED,
    LedgerRow,
    OffsetRange,
    acknowledged_compounds,
    paired_batches,
)
from spark_jobs.tables.records import LIVE, OUTCOMES, REPLAY
from spark_jobs.tables.schemas import REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

# Intervals of replays begin and end with a minute.
_MINUTE = MS_PER_UNIT["m"]
# Summed by name: of landed and of paired rows.
_LANDED = ("landed", "accepted", "offset_gaps", "lost")
_PAIRED = ("rejected", *OUTCOMES)
_SUMMED = ("batches", "corrections", "compounds", "published", *_LANDED, *_PAIRED)


def valid_batches(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The `paired` rows of the batches that no rewind among these rows made void, by batch_id."""
    return [steps[PAIRED] for steps in paired_batches(rows)]


def last_removable(rows: Sequence[LedgerRow], until: int, before: int) -> LedgerRow | None:
    """The `paired` row of the last batch up to `until` that was planned before epoch ms `before`, and that can be removed with all before it.

    `rows`: the ledger from the first batch that is left to the newest. From a rewind on, for as long as compounds of void batches may come
    back, every batch looks up their revisions. So the removal ends at the rewind's target, or where these look-ups are over.
    """
    old = [
        row for row in valid_batches(rows) if row.batch_id <= until and row.wall_time < before and row.plan.corrected is None
    ]
    return old[-1] if old else None


class UnreplayedEvents(NamedTuple):
    """Late events of a batch in one minute of event time that no later replay has included."""

    batch_id: int
    events: int
    first: int  # smallest of their timestamps
    last: int  # largest one


def unreplayed_events(warehouse: Warehouse, rows: Sequence[LedgerRow], until: int) -> list[UnreplayedEvents]:
    """Those of the batches up to `until`. `rows`: the ledger from the first batch that is left to the newest."""
    valid = valid_batches(rows)
    late = sorted(row.batch_id for row in valid if row.batch_id <= until and row.kind == LIVE and row.paired.late)
    replays = [row for row in valid if row.kind == REPLAY]
    found = _late_by_minute(warehouse, late) if late else []
    return [events for events in found if not any(_includes(replay, events) for replay in replays)]


def first_waiting(warehouse: Warehouse, rows: Sequence[LedgerRow], left: Sequence[UnreplayedEvents]) -> int | None:
    """The first batch whose late events the live DAG has yet to replay (`late: replay`); None if there is none."""
    asking = {row.batch_id for row in rows if row.step == PLANNED and row.pipeline.late == "replay"}
    waiting = [events.batch_id for events in left if events.batch_id in asking]
    return min(waiting, default=None) if warehouse.pipeline.late == "replay" else None


def _includes(replay: LedgerRow, events: UnreplayedEvents) -> bool:
    window = replay.replay.window
    return replay.batch_id > events.batch_id and window.start <= events.first and events.last < window.end


def _late_by_minute(warehouse: Warehouse, batch_ids: list[int]) -> list[UnreplayedEvents]:
    """rejected_events has no event times, so they come from the raw rows, which the same batch landed."""
    place = ["topic", "partition", "offset", "batch_id"]
    # An erased event, which has a problem, no replay can include.
    raw = [
        warehouse.read(raw_table(side), [*place, "ts"], batches=batch_ids, where=lambda column: column("problem").is_null())
        for side in warehouse.pipeline.sides
    ]
    late = warehouse.read(REJECTED, place, batches=batch_ids, where=lambda column: column("reason") == str(Reason.LATE))
    minutes = (
        reduce(DataFrame.unionAll, raw).join(late, place, "left_semi").groupBy("batch_id", F.floor(F.col("ts") / _MINUTE))
    )
    counted = minutes.agg(F.count("*").alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last"))
    return [UnreplayedEvents(*(row[name] for name in UnreplayedEvents._fields)) for row in counted.collect()]


def sum_batches(
    before: LedgerRow | None, rows: Iterable[LedgerRow], first: int
) -> tuple[dict[str, int], tuple[OffsetRange, ...]]:
    """The sums over all batches ahead of batch `first`, by the names of RemovedBatches, and the ranges that were given up as lost.

    `rows`: the ledger from the first batch that is left to the newest; `before`: the row with the sums of earlier removals. A lost range
    ends at its `from_offset`, as in the row of its batch. Void batches do not count: their records were read again, and lost again.
    """
    counts = Counter({name: getattr(before.counts, name) for name in _SUMMED} if before else {})
    lost = list(before.offsets if before else ())
    for steps in paired_batches(rows):
        paired, landed = steps[PAIRED], steps.get(LANDED)
        if paired.batch_id >= first:
            break
        counts["batches"] += paired.kind == LIVE
        counts["corrections"] += paired.kind != LIVE
        counts["compounds"] += paired.paired.compounds
        counts["published"] += acknowledged_compounds(steps)
        if landed is not None:
            counts.update({name: getattr(landed.landed, name) for name in _LANDED})
            counts.update({name: getattr(paired.paired, name) for name in _PAIRED})
            given_up = (at for at in landed.offsets if at.lost or at.cut)
            lost += (at._replace(until_offset=at.from_offset, end_offset=at.from_offset, max_ts=None) for at in given_up)
    return dict(counts), tuple(lost)
