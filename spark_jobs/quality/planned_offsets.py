"""The ledger by itself, and the raw tables against it: every offset planned once, every planned offset landed."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.quality.aged import Aged
from spark_jobs.quality.findings import Finding, flagged
from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, PUBLISHED, PUBLISHING, REMOVED_RAW, Rewind
from spark_jobs.tables.records import LIVE


def is_void(rewinds: list[Rewind]) -> Column:
    """Whether a rewind gave the row's batch up: its records were read again by later batches, which answer for them."""
    void = F.lit(False)
    for rewind in rewinds:
        void = void | ((F.col("batch_id") > rewind.to_batch) & (F.col("batch_id") < rewind.batch_id))
    return void


def planned_ranges(ledger: DataFrame) -> DataFrame:
    """One row a batch and input partition: batch_id, topic, partition, from_offset, until_offset (exclusive), lost, cut, began.

    As planned, but without what the broker lost before it was landed: that is lost, too, as the `landed` row says.
    """
    live, place = ledger.where(F.col("kind") == LIVE), ["batch_id", "topic", "partition"]
    planned, landed = (
        live.where(F.col("step") == step).select("batch_id", F.explode("offsets").alias("part")).select("batch_id", "part.*")
        for step in (PLANNED, LANDED)
    )
    by_then = landed.groupBy(*place).agg(
        F.max("lost").alias("lost_by_then"), F.max("cut").alias("cut_by_then"), F.min("until_offset").alias("landed_until")
    )
    lost, cut = F.coalesce("lost_by_then", "lost"), F.coalesce("cut_by_then", "cut")
    return planned.join(by_then, place, "left").select(
        *place,
        (F.col("from_offset") + lost - F.col("lost")).alias("from_offset"),
        F.when(cut > F.col("cut"), F.col("landed_until")).otherwise(F.col("until_offset")).alias("until_offset"),
        lost.alias("lost"),
        cut.alias("cut"),
        "began",
    )


def check_contiguous(ranges: DataFrame, begins: int) -> DataFrame:
    """A range begins where the previous batch's ended; what was lost in between was accepted, and the ledger says so. The first one begins
    where the partition did when the pipeline began, or at 0; of a ledger whose first batches went for their age (it `begins` behind
    batch 1), those of its first batch with ranges begin anywhere.
    """
    before = F.lag("until_offset").over(Window.partitionBy("topic", "partition").orderBy("batch_id"))
    begin = F.col("from_offset") - F.col("lost")
    oldest = ranges.agg(F.min("batch_id")).first() if begins > 1 else None
    first = F.when(F.col("batch_id") == oldest[0], begin).otherwise(F.col("began")) if oldest else F.col("began")
    before = F.coalesce(before, first)
    return flagged(
        ranges.withColumn("before", before).withColumn("begin", begin),
        F.format_string("%s-%d:%d-%d before batch %d", "topic", "partition", "before", "begin", "batch_id"),
        {
            Finding.OFFSETS_SKIPPED: F.col("begin") > F.col("before"),
            Finding.OFFSETS_TWICE: F.col("begin") < F.col("before"),
        },
    )


def check_steps(ledger: DataFrame, rewinds: list[Rewind]) -> DataFrame:
    """Every batch has each step once, up to `published`; a rewind or replay lands nothing, a void batch may have been given up anywhere
    before it was paired.
    """
    # Begun again, a publication is noted again where the topic has grown meanwhile.
    grouped = (
        ledger.where(F.col("step") != PUBLISHING)
        .groupBy("batch_id")
        .agg(F.collect_list("step").alias("steps"), F.max("kind").alias("kind"))
    )
    steps = grouped.where(~is_void(rewinds) | F.array_contains("steps", PAIRED))
    wanted = F.array(*(F.lit(step) for step in (PLANNED, LANDED, PAIRED, PUBLISHED)))
    wanted = F.when(F.col("kind") != LIVE, F.array_remove(wanted, LANDED)).otherwise(wanted)
    repeated = F.filter(F.array_distinct("steps"), lambda step: F.size(F.array_remove("steps", step)) < F.size("steps") - 1)
    found = steps.select("batch_id", F.array_except(wanted, "steps").alias("missing"), repeated.alias("twice"))
    return reduce(
        DataFrame.unionAll,
        (
            flagged(
                found,
                F.concat_ws(" ", F.lit("batch"), "batch_id", F.array_join(which, ", ")),
                {finding: F.size(which) > 0},
            )
            for which, finding in (("missing", Finding.STEP_MISSING), ("twice", Finding.STEP_TWICE))
        ),
    )


def check_removed(counting: DataFrame, aged: Aged) -> DataFrame:
    """As many raw rows were removed for their age as the batches up to the last of these had landed."""
    landed = counting.where((F.col("step") == LANDED) & (F.col("batch_id") <= aged.raw))
    both = landed.agg((_sum(F.try_element_at("counts", F.lit("landed"))) + F.lit(aged.landed_before)).alias("landed"))
    return flagged(
        both,
        F.format_string(f"batches 1 to {aged.raw}: %d raw rows landed, {aged.gone(REMOVED_RAW)} removed", "landed"),
        {Finding.REMOVED_NOT_COUNTED: F.col("landed") != F.lit(aged.gone(REMOVED_RAW))},
    )


def check_landed(ledger: DataFrame, ranges: DataFrame, raw: DataFrame) -> list[DataFrame]:
    """Raw rows lie in their batch's ranges, and are as many as were planned less the offset gaps."""
    place = ["batch_id", "topic", "partition"]
    spans = raw.groupBy(*place).agg(
        F.count("*").alias("rows"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    both = ranges.join(spans, place, "full")
    outside = (
        F.col("from_offset").isNull() | (F.col("first") < F.col("from_offset")) | (F.col("last") >= F.col("until_offset"))
    )
    batches = both.groupBy("batch_id").agg(
        _sum(F.col("until_offset") - F.col("from_offset")).alias("planned"), _sum(F.col("rows")).alias("rows")
    )
    gaps = ledger.where(F.col("step") == LANDED).select(
        "batch_id", F.try_element_at("counts", F.lit("offset_gaps")).alias("gaps")
    )
    counted = batches.join(gaps, "batch_id", "left")
    return [
        flagged(
            both.where(F.col("rows").isNotNull()),
            F.format_string("batch %d %s-%d:%d-%d", "batch_id", "topic", "partition", "first", F.col("last") + 1),
            {Finding.ROWS_NOT_PLANNED: outside},
        ),
        flagged(
            counted,
            F.format_string(
                "batch %d: %d offsets planned, %d of them gaps, %d raw rows", "batch_id", "planned", "gaps", "rows"
            ),
            {Finding.ROWS_NOT_COUNTED: F.col("planned") - F.coalesce("gaps", F.lit(0)) != F.col("rows")},
        ),
    ]


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
