"""Late events that are about to go: which of them no replay has taken in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import MS_PER_UNIT
from spark_jobs.maintenance.age import standing, with_late_events
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import PLANNED, LedgerRow
from spark_jobs.tables.records import REPLAY
from spark_jobs.tables.warehouse import REJECTED, Warehouse, raw_table

# Intervals of replays begin and end with a minute.
_MINUTE = MS_PER_UNIT["m"]


class Left(NamedTuple):
    """Late events of a batch that lie in one minute and that no later replay has taken in; the first and the last of their times."""

    batch_id: int
    events: int
    first: int
    last: int


def left_behind(warehouse: Warehouse, rows: Sequence[LedgerRow], until: int) -> list[Left]:
    """Those of the batches up to `until`. `rows`: the ledger's from the first batch that is left to its newest."""
    late = {row.batch_id for row in with_late_events(rows, until)}
    replays = [row for row in standing(rows) if row.kind == REPLAY]
    found = _by_minute(warehouse, sorted(late)) if late else []
    return [one for one in found if not any(_takes_in(replay, one) for replay in replays)]


def first_to_wait_for(warehouse: Warehouse, rows: Sequence[LedgerRow], left: Sequence[Left]) -> int | None:
    """The first batch whose late events the live DAG has still to get replayed (`late: replay`); None if there is none."""
    asking = {row.batch_id for row in rows if row.step == PLANNED and row.pipeline.late == "replay"}
    waiting = [one.batch_id for one in left if one.batch_id in asking]
    return min(waiting, default=None) if warehouse.pipeline.late == "replay" else None


def _takes_in(replay: LedgerRow, left: Left) -> bool:
    window = replay.replay.window
    return replay.batch_id > left.batch_id and window.start <= left.first and left.last < window.end


def _by_minute(warehouse: Warehouse, batch_ids: list[int]) -> list[Left]:
    """rejected_events has no event times, so the raw rows are asked: of one batch they are of the same."""
    place = ["topic", "partition", "offset", "batch_id"]
    raw = [warehouse.read(raw_table(side), [*place, "ts"], batches=batch_ids) for side in warehouse.pipeline.sides]
    late = warehouse.read(REJECTED, place, batches=batch_ids, where=lambda column: column("reason") == str(Reason.LATE))
    minutes = (
        reduce(DataFrame.unionAll, raw).join(late, place, "left_semi").groupBy("batch_id", F.floor(F.col("ts") / _MINUTE))
    )
    counted = minutes.agg(F.count("*").alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last"))
    return [Left(*(row[name] for name in Left._fields)) for row in counted.collect()]
