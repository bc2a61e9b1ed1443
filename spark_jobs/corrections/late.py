"""The replays that live batches request (`late: replay`) for their late events, and for compounds of another pipeline that their records correct
after these were decided: of which intervals, and which of them are due.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from include.config.pipeline import MS_PER_UNIT, Pipeline
from spark_jobs.quality.late_intervals import by_interval
from spark_jobs.rules.reasons import Reason
from spark_jobs.rules.rules import LEFT, REVERSED, RIGHT, SOURCE, source_names
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.stages.pairing_input import accepted_events, accepted_rows
from spark_jobs.stages.revisions import newest_revisions, revised_batches, superseded_events
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, LedgerRow, find_rewinds, paired_batches
from spark_jobs.tables.places import placed, placed_by_side, topic_column
from spark_jobs.tables.records import LIVE, REPLAY, Window
from spark_jobs.tables.schemas import OPEN, REJECTED
from spark_jobs.tables.warehouse import Warehouse

_MINUTE = MS_PER_UNIT["m"]
# No field of a message can have such names.
_BEGINS, _CHAIN, _FIRST, _LAST = "begins a chain", "number of the chain", "first ts of the chain", "last ts of the chain"
_IS_LATE, _MINUTE_OF, _COPY = "is late", "minute of the late event", "number of the copy"


class ReplayRequest(NamedTuple):
    """A replay that the late events of a batch request."""

    batch_id: int
    # Epoch ms of the begin of the interval of `replay_schedule` that has the events.
    interval: int
    window: Window


def late_replays(warehouse: Warehouse, after: int = 0) -> dict[str, Any]:
    """`replays`: the due ones, of late events in batches > `after`. `waiting`: how many are not due yet. `settled`: the largest `after` for
    the next call, once these replays are started.
    """
    ledger = Ledger(warehouse)
    if after > ledger.last_ids()[PAIRED]:
        # `after` is of other tables: these were created again, or put back.
        after = 0
    rows = ledger.rows(after + 1)
    if find_rewinds(rows):
        # A rewind may have made replays void that were started long ago.
        rows = ledger.rows(1)
    paired = [row for row in rows if row.step == PAIRED]
    batches = late_batches(rows)
    if not batches:
        return {"replays": [], "waiting": 0, "settled": paired[-1].batch_id if paired else after}
    last, pipeline = paired[-1], warehouse.pipeline
    requests = [
        request
        for late in batches
        for request in _requested_replays(warehouse, late.batch_id, last.batch_id)
        if not is_done(request, rows)
    ]
    earliest = warehouse.read(OPEN, ["ts"], version=last.versions[OPEN]).agg(F.min("ts")).collect()[0][0]
    due = [each for each in requests if is_due(each.window, last, earliest, pipeline.gap_ms + pipeline.grace_ms)]
    waiting = [each for each in requests if each not in due]
    settled = min((each.batch_id - 1 for each in waiting), default=last.batch_id)
    rewound = max((rewind.batch_id for rewind in find_rewinds(rows)), default=0)
    return {"replays": [_run(each, rewound) for each in due], "waiting": len(waiting), "settled": settled}


def _run(request: ReplayRequest, rewound: int) -> dict[str, Any]:
    # After a rewind the same late events may request a replay again.
    again = f"_after_rewind_{rewound}" if rewound > request.batch_id else ""
    return {
        "run_id": f"late__batch_{request.batch_id}_{_iso(request.interval)}{again}",
        "batch_id": request.batch_id,
        "window_start": _iso(request.window.start),
        "window_end": _iso(request.window.end),
    }


def _iso(ts: int) -> str:
    return datetime.fromtimestamp(ts // 1000, UTC).replace(microsecond=ts % 1000 * 1000).isoformat()


def late_batches(rows: list[LedgerRow]) -> list[LedgerRow]:
    """The `paired` rows of valid live batches that rejected late events, or landed later revisions, and were planned with `late: replay`."""
    asking = {row.batch_id for row in rows if row.step == PLANNED and row.pipeline.late == "replay"}
    found = []
    for steps in paired_batches(rows):
        paired, landed = steps[PAIRED], steps.get(LANDED)
        if paired.kind == LIVE and paired.batch_id in asking and (paired.paired.late or (landed and landed.landed.revised)):
            found.append(paired)
    return found


def _requested_replays(warehouse: Warehouse, batch_id: int, last_batch: int) -> list[ReplayRequest]:
    """The replays that the late events of a batch request, at most one for each interval of `replay_schedule`.

    Events up to the last paired batch, `last_batch`, count.
    """
    windows = by_interval(_spans(warehouse, batch_id, last_batch), warehouse.pipeline.replay_schedule)
    return [ReplayRequest(batch_id, interval, window) for interval, window in windows.items()]


def is_due(window: Window, last: LedgerRow, first_open: int | None, after_ms: int) -> bool:
    """Whether the interval is closed, and no event before its end is still open. `after_ms`: gap + grace.

    `first_open`: the smallest timestamp of `open_events` after the batch `last`, None if there is none.
    """
    closed = last.clock is not None and window.end + after_ms <= last.clock
    return closed and (first_open is None or first_open >= window.end)


def is_done(request: ReplayRequest, rows: list[LedgerRow]) -> bool:
    """Whether a later valid replay has covered the interval, requested or not."""
    later = (steps[PAIRED] for steps in paired_batches(rows) if steps[PAIRED].batch_id > request.batch_id)
    replayed = (row.replay.window for row in later if row.kind == REPLAY)
    return any(window.start <= request.window.start and request.window.end <= window.end for window in replayed)


def _spans(warehouse: Warehouse, batch_id: int, last_batch: int) -> list[tuple[int, Window]]:
    """For each minute with late events of the batch the event times that they affect: their chains, as far as a session reaches."""
    pipeline, topics = warehouse.pipeline, Ledger(warehouse).topics()
    reach = pipeline.max_session_ms
    late = _late_events(warehouse, topics, batch_id)
    if revised_batches(warehouse, batch_id)[-1:] == [batch_id]:
        late = late.unionAll(_corrected_events(warehouse, topics, batch_id))
    late = late.persist()
    try:
        edges = late.agg(F.min("ts"), F.max("ts")).collect()[0]
        if edges[0] is None:
            return []
        # Far enough to see the gap before the earliest session, and the one after the last.
        around = Window(edges[0] - reach - pipeline.gap_ms, edges[1] + reach + pipeline.gap_ms + 1)
        events = accepted_events(warehouse, pipeline, topics, range(1, last_batch + 1), around)
        place, key = ["side", "partition", "offset"], list(pipeline.key)
        marked = events.join(late.select(*key).distinct(), key, "left_semi").join(
            late.select(*place, F.lit(True).alias(_IS_LATE)), place, "left"
        )
        if pipeline.drop_duplicates:
            says = [*key, "side", "ts", "payload", *source_names(pipeline)] + [REVERSED] * pipeline.is_unordered
            same = Over.partitionBy(*says).orderBy("partition", "offset")
            # A late event that only repeats another one has no effect.
            marked = marked.withColumn(_COPY, F.row_number().over(same)).where(F.col(_COPY) == 1)
        rows = _affected_times(marked, key, pipeline.gap_ms, reach).collect()
    finally:
        late.unpersist()
    return [(row[_MINUTE_OF], Window(row["start"], row["end"])) for row in rows]


def _late_events(warehouse: Warehouse, topics: SideTopics, batch_id: int) -> DataFrame:
    """Late events are new ones, so the batch that rejected them has landed them, too."""
    place = ["topic", "partition", "offset"]
    rejected = warehouse.read(REJECTED, place, batches=[batch_id], where=lambda column: column("reason") == str(Reason.LATE))
    places = _with_side(rejected, topics)
    events = accepted_events(warehouse, warehouse.pipeline, topics, batches=[batch_id])
    return events.join(places, places.columns, "left_semi").select(*_event_columns(warehouse.pipeline))


def _corrected_events(warehouse: Warehouse, topics: SideTopics, batch_id: int) -> DataFrame:
    """The events of which this batch landed a later revision when they were decided already: those that it did not reject as superseded."""
    pipeline, place = warehouse.pipeline, ["topic", "partition", "offset"]
    columns = [*pipeline.key, "partition", "offset", "ts", *SOURCE.names, *topic_column(topics)]
    tables = accepted_rows(warehouse, pipeline, columns, range(1, batch_id + 1), times=None)
    earlier = [
        rows.withColumns({"side": F.lit(number), "partition": placed(topics[number])}) for number, rows in enumerate(tables)
    ]
    known = superseded_events(reduce(DataFrame.unionAll, earlier), newest_revisions(warehouse, [batch_id]))
    in_time = warehouse.read(
        REJECTED, place, batches=[batch_id], where=lambda column: column("reason") == str(Reason.SUPERSEDED)
    )
    left = known.join(_with_side(in_time, topics), ["side", "partition", "offset"], "left_anti")
    return left.select(*_event_columns(pipeline))


def _with_side(rows: DataFrame, topics: SideTopics) -> DataFrame:
    is_left = F.col("topic").isin(*topics.left)
    side, number = F.when(is_left, LEFT).otherwise(RIGHT), placed_by_side(topics, is_left)
    return rows.select(side.alias("side"), number.alias("partition"), "offset")


def _event_columns(pipeline: Pipeline) -> list[str]:
    return [*pipeline.key, "side", "partition", "offset", "ts"]


def _affected_times(marked: DataFrame, key: list[str], gap_ms: int, reach: int) -> DataFrame:
    of_key = Over.partitionBy(*key).orderBy("ts", "side", "partition", "offset")
    begins = F.coalesce(F.col("ts") - F.lag("ts").over(of_key) > gap_ms, F.lit(True))
    chained = marked.withColumn(_BEGINS, begins.cast("int"))
    chained = chained.withColumn(_CHAIN, F.sum(_BEGINS).over(of_key.rowsBetween(Over.unboundedPreceding, Over.currentRow)))
    of_chain = Over.partitionBy(*key, _CHAIN)
    edges = chained.withColumn(_FIRST, F.min("ts").over(of_chain)).withColumn(_LAST, F.max("ts").over(of_chain))
    mine = edges.where(F.col(_IS_LATE)).withColumn(_MINUTE_OF, F.floor(F.col("ts") / _MINUTE))
    start, last = F.greatest(F.col(_FIRST), F.col("ts") - reach), F.least(F.col(_LAST), F.col("ts") + reach)
    return mine.groupBy(_MINUTE_OF).agg(F.min(start).alias("start"), (F.max(last) + 1).alias("end"))
