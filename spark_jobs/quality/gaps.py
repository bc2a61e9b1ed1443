"""Planned offsets that hold no record: whether that is so is asked of the topics, where a batch has any."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.records import Span, read_records
from spark_jobs.quality.facts import facts
from spark_jobs.quality.laws import Steps
from spark_jobs.tables.ledger import LANDED, OffsetRange
from spark_jobs.tables.warehouse import Warehouse

Ranges = dict[int, tuple[OffsetRange, ...]]


def with_gaps(batches: list[Steps], topics: TopicsNow) -> Ranges:
    """batch_id -> ranges of the batches with offset gaps of which the broker still has everything."""
    found = {}
    for rows in batches:
        landed = rows.get(LANDED)
        if landed and landed.landed.offset_gaps:
            ranges = tuple(at for at in landed.offsets if at.planned)
            if all(_is_there(at, topics) for at in ranges):
                found[landed.batch_id] = ranges
    return found


def _is_there(at: OffsetRange, topics: TopicsNow) -> bool:
    """At its end, too: a log may have been cut since."""
    place = (at.topic, at.partition)
    return topics.earliest.get(place, at.until_offset) <= at.from_offset and at.until_offset <= topics.end.get(place, 0)


def record_facts(warehouse: Warehouse, batches: Ranges) -> DataFrame:
    """Facts `record_left` and `record_right`: the records that the broker has in the ranges."""
    spans: dict[tuple[str, int], Span] = {}
    whose = F.lit(None).cast("bigint")
    for batch_id, ranges in batches.items():
        here = [
            (F.col("topic") == at.topic)
            & (F.col("partition") == at.partition)
            & (F.col("offset") >= at.from_offset)
            & (F.col("offset") < at.until_offset)
            for at in ranges
        ]
        whose = F.when(reduce(lambda one, other: one | other, here), F.lit(batch_id).cast("bigint")).otherwise(whose)
        for at in ranges:
            known = spans.get((at.topic, at.partition), Span(at.from_offset, at.until_offset))
            first, until = min(known.first, at.from_offset), max(known.until, at.until_offset)
            spans[at.topic, at.partition] = Span(first, until)
    found = read_records(warehouse.spark, spans, False, ["topic", "partition", "offset"])
    records = found.withColumn("batch_id", whose).where(F.col("batch_id").isNotNull())
    side = F.when(F.col("topic") == warehouse.pipeline.left.topic, "record_left").otherwise("record_right")
    return facts(records, side, F.lit(""))
