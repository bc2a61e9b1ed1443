"""Late events that are to be replayed without anybody's asking (`late: replay`): of which intervals, and whether it is time yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from croniter import croniter
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from include.config.pipeline import MS_PER_UNIT
from spark_jobs.rules.reasons import Reason
from spark_jobs.stages.pairing_input import accepted_events
from spark_jobs.tables.ledger import PAIRED, PLANNED, LedgerRow, rewinds_among
from spark_jobs.tables.records import LIVE, REPLAY, Window
from spark_jobs.tables.warehouse import OPEN, REJECTED, Warehouse

_MINUTE = MS_PER_UNIT["m"]
# No field of a message can have such names.
_BEGINS, _CHAIN, _FIRST, _LAST = "begins a chain", "number of the chain", "first ts of the chain", "last ts of the chain"
_IS_LATE, _MINUTE_OF, _COPY = "is late", "minute of the late event", "number of the copy"


class Asked(NamedTuple):
    """A replay that the late events of a batch ask for. `interval`: begin of the interval of `replay_schedule` that they are in."""

    batch_id: int
    interval: int
    window: Window


def late_batches(rows: list[LedgerRow]) -> list[LedgerRow]:
    """The `paired` rows of the live batches that rejected late events and were planned with `late: replay`, less the void ones."""
    rewinds = rewinds_among(rows)
    asking = {row.batch_id for row in rows if row.step == PLANNED and row.pipeline.late == "replay"}
    return [
        row
        for row in rows
        if (row.kind, row.step) == (LIVE, PAIRED)
        and row.paired.late
        and row.batch_id in asking
        and not any(rewind.voids(row.batch_id) for rewind in rewinds)
    ]


def asked(warehouse: Warehouse, late: LedgerRow, last: LedgerRow) -> list[Asked]:
    """The replays that the late events of a batch ask for, at most one for each interval of `replay_schedule`.

    `late`: the batch's `paired` row; `last`: that of the last paired batch, whose events count, too.
    """
    minutes = _spans(warehouse, late.batch_id, last.batch_id)
    return [
        Asked(late.batch_id, interval, window)
        for interval, window in by_interval(minutes, warehouse.pipeline.replay_schedule).items()
    ]


def by_interval(spans: Iterable[tuple[int, Window]], cron: str) -> dict[int, Window]:
    """One window for each interval of the cron expression (UTC), from its first span's start to its last one's end.

    `spans`: minute in which a late event lies (minutes since the epoch, since cron knows nothing smaller), and what it touches.

    >>> by_interval([(59, Window(1, 5)), (60, Window(7, 9)), (119, Window(6, 8))], "0 * * * *")
    {0: Window(start=1, end=5), 3600000: Window(start=6, end=9)}
    """
    found: dict[int, Window] = {}
    for minute, span in sorted(spans):
        # The expression's last time that is not after the minute's begin.
        begin = int(croniter(cron, minute * 60 + 1).get_prev(float)) * 1000
        known = found.get(begin, span)
        found[begin] = Window(min(known.start, span.start), max(known.end, span.end))
    return found


def is_due(window: Window, last: LedgerRow, first_open: int | None, after_ms: int) -> bool:
    """Whether the interval is closed, and no event before its end is still open. `after_ms`: gap + grace.

    `first_open`: the smallest timestamp of `open_events` after the batch `last`, None if there is none.
    """
    closed = last.clock is not None and window.end + after_ms <= last.clock
    return closed and (first_open is None or first_open >= window.end)


def first_open(warehouse: Warehouse, last: LedgerRow) -> int | None:
    """The smallest timestamp of the events that the batch has left open."""
    found = warehouse.read(OPEN, ["ts"], version=last.versions[OPEN]).agg(F.min("ts")).first()
    return None if found is None else found[0]


def is_done(wanted: Asked, rows: list[LedgerRow]) -> bool:
    """Whether a later replay that still counts has covered the interval, whoever asked for it."""
    rewinds = rewinds_among(rows)
    return any(
        (row.kind, row.step) == (REPLAY, PAIRED)
        and row.batch_id > wanted.batch_id
        and row.replay.window.start <= wanted.window.start
        and wanted.window.end <= row.replay.window.end
        and not any(rewind.voids(row.batch_id) for rewind in rewinds)
        for row in rows
    )


def _spans(warehouse: Warehouse, batch_id: int, last_batch: int) -> list[tuple[int, Window]]:
    """For each minute with late events of the batch what they touch: the chains that they are in, as far as a session reaches."""
    pipeline = warehouse.pipeline
    reach = pipeline.max_session_ms
    late = _late_events(warehouse, batch_id).persist()
    try:
        edges = late.agg(F.min("ts"), F.max("ts")).collect()[0]
        if edges[0] is None:
            return []
        # Far enough to see the gap before the earliest session, and the one after the last.
        around = Window(edges[0] - reach - pipeline.gap_ms, edges[1] + reach + pipeline.gap_ms + 1)
        events = accepted_events(
            warehouse, pipeline, lambda column: around.has(column("ts")) & (column("batch_id") <= last_batch)
        )
        place, key = ["side", "partition", "offset"], list(pipeline.key)
        marked = events.join(late.select(*key).distinct(), key, "left_semi").join(
            late.select(*place, F.lit(True).alias(_IS_LATE)), place, "left"
        )
        if pipeline.drop_duplicates:
            same = Over.partitionBy(*key, "side", "ts", "payload").orderBy("partition", "offset")
            # A late event that only repeats another one changes nothing.
            marked = marked.withColumn(_COPY, F.row_number().over(same)).where(F.col(_COPY) == 1)
        found = _touched(marked, key, pipeline.gap_ms, reach).collect()
    finally:
        late.unpersist()
    return [(row[_MINUTE_OF], Window(row["start"], row["end"])) for row in found]


def _late_events(warehouse: Warehouse, batch_id: int) -> DataFrame:
    """Late events are new ones, so the batch that rejected them has landed them, too."""
    topics = F.when(F.col("topic") == warehouse.pipeline.left.topic, 0).otherwise(1)
    place = ["topic", "partition", "offset"]
    rejected = warehouse.read(REJECTED, place, batches=[batch_id], where=lambda column: column("reason") == str(Reason.LATE))
    places = rejected.select(topics.alias("side"), "partition", "offset")
    return accepted_events(warehouse, warehouse.pipeline, batches=[batch_id]).join(places, places.columns, "left_semi")


def _touched(marked: DataFrame, key: list[str], gap_ms: int, reach: int) -> DataFrame:
    of_key = Over.partitionBy(*key).orderBy("ts", "side", "partition", "offset")
    begins = F.coalesce(F.col("ts") - F.lag("ts").over(of_key) > gap_ms, F.lit(True))
    chained = marked.withColumn(_BEGINS, begins.cast("int"))
    chained = chained.withColumn(_CHAIN, F.sum(_BEGINS).over(of_key.rowsBetween(Over.unboundedPreceding, Over.currentRow)))
    of_chain = Over.partitionBy(*key, _CHAIN)
    edges = chained.withColumn(_FIRST, F.min("ts").over(of_chain)).withColumn(_LAST, F.max("ts").over(of_chain))
    mine = edges.where(F.col(_IS_LATE)).withColumn(_MINUTE_OF, F.floor(F.col("ts") / _MINUTE))
    start, last = F.greatest(F.col(_FIRST), F.col("ts") - reach), F.least(F.col(_LAST), F.col("ts") + reach)
    return mine.groupBy(_MINUTE_OF).agg(F.min(start).alias("start"), (F.max(last) + 1).alias("end"))
