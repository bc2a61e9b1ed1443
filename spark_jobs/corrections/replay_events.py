"""The events that decide an interval's compounds: those of its keys, as far as their chains reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from include.config.time_text import moment
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.stages.pairing_input import accepted_events
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse


@contextmanager
def events_around(warehouse: Warehouse, planned: LedgerRow) -> Iterator[DataFrame]:
    """All accepted events (`event_schema`) of the keys that have one in the interval, on disk during the block:

    - from the begin of the chain (events no further apart than the gap) that reaches into the interval, however long ago
      that is, because it decides where max_session cuts;
    - to where every session with an event of a compound of the interval has ended.
    """
    pipeline, window, reach = planned.pipeline, planned.replay.window, planned.replay.reach_ms

    def landed_before(span: Window) -> DataFrame:
        return accepted_events(
            warehouse, pipeline, lambda column: (column("batch_id") < planned.batch_id) & span.has(column("ts"))
        )

    key = list(pipeline.key)
    keys = landed_before(window).select(*key).distinct()
    until = window.end + 2 * reach
    span = reach + pipeline.gap_ms + 1
    first = window.start - span
    with ExitStack() as cleanup:

        def keep(low: int, high: int, of_keys: DataFrame) -> DataFrame:
            events = landed_before(Window(low, high)).join(of_keys, key, "left_semi").persist(StorageLevel.DISK_ONLY)
            cleanup.callback(events.unpersist)
            return events

        pieces = [keep(first, until, keys)]
        cut_off = _keys_cut_off(pieces[0], pipeline, window, first)
        while cut_off:
            wanted = F.broadcast(warehouse.spark.createDataFrame(cut_off, keys.schema))
            span *= 2
            pieces.append(keep(first - span, first, wanted))
            first -= span
            theirs = reduce(DataFrame.unionAll, pieces).join(wanted, key, "left_semi")
            cut_off = _keys_cut_off(theirs, pipeline, window, first)
        events = reduce(DataFrame.unionAll, pieces)
        removed = planned.replay.removed_until
        if removed is not None and _keys_cut_off(events, pipeline, window, removed + 1):
            raise NeedsOperator(
                f"the interval {window} cannot be replayed: sessions reach into it from before {moment(removed + 1)}, where raw rows were removed "
                "for their age; begin later"
            )
        yield events


def _keys_cut_off(events: DataFrame, pipeline: Pipeline, window: Window, first: int) -> list[Row]:
    """The keys whose chain into the interval may have begun before `first`, from which on their events were read."""
    # No field of a message can have such names.
    previous, entered, began = "ts before", "first ts of the interval", "begin of the chain"
    of_key = Over.partitionBy(*pipeline.key)
    inside = F.when(F.col("ts") >= window.start, F.col("ts"))
    walked = events.withColumns({previous: F.lag("ts").over(of_key.orderBy("ts")), entered: F.min(inside).over(of_key)})
    begins = F.col(previous).isNull() | (F.col("ts") - F.col(previous) > pipeline.gap_ms)
    chains = walked.where(begins & (F.col("ts") <= F.col(entered))).groupBy(*pipeline.key).agg(F.max("ts").alias(began))
    # The event before, if there is one, is at first - 1 or earlier.
    return chains.where(F.col(began) - (first - 1) <= pipeline.gap_ms).select(*pipeline.key).collect()
