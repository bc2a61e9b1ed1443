"""What the raw tables hold of a batch, counted and held against what it was to land."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.job.run import Counts
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger import LedgerRow, OffsetRange
from spark_jobs.tables.warehouse import Warehouse, raw_table


def landed_counts(warehouse: Warehouse, planned: LedgerRow) -> list[Row]:
    """What the raw tables hold of the batch, by partition and problem."""
    place = ("topic", "partition", "problem")
    columns, mine = [*place, "offset", "ts"], [planned.batch_id]
    sides = (warehouse.read(raw_table(side), columns, batches=mine) for side in planned.pipeline.sides)
    # Different offsets, counted as the bits of blocks of 64: a 64th of the rows of a count_distinct is brought together.
    block = F.shiftright("offset", 6).alias("block")
    bit = F.expr("shiftleft(1L, int(offset & 63))")
    blocks = (
        reduce(DataFrame.unionAll, sides)
        .groupBy(*place, block)
        .agg(
            F.count("*").alias("records"),
            F.bit_or(bit).alias("bits"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.max("ts").alias("max_ts"),
        )
    )
    return list(
        blocks.groupBy(*place)
        .agg(
            F.sum("records").alias("records"),
            F.sum(F.bit_count("bits")).alias("offsets"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max("max_ts").alias("max_ts"),
        )
        .collect()
    )


def is_of(row: Row, known: OffsetRange) -> bool:
    """Whether a row of `landed_counts` is of this range's partition."""
    return row["topic"] == known.topic and row["partition"] == known.partition


def advance(known: OffsetRange, found: list[Row]) -> OffsetRange:
    """The range with the largest accepted timestamp after it was landed; raises BrokenInvariant if it holds other offsets."""
    for row in found:
        outside = row["first"] < known.from_offset or row["last"] >= known.until_offset
        if outside or row["records"] != row["offsets"]:
            raise BrokenInvariant(
                f"{known.topic}-{known.partition}: planned offsets {known.from_offset} to {known.until_offset} (exclusive), landed "
                f"{row['records']} records with {row['offsets']} different offsets from {row['first']} to {row['last']}"
            )
    landed = [row["max_ts"] for row in found if row["problem"] is None]
    seen = [ts for ts in (*landed, known.max_ts) if ts is not None]
    return known._replace(max_ts=max(seen, default=None))


def count(pipeline: Pipeline, batch_id: int, ranges: Sequence[OffsetRange], found: list[Row]) -> Counts:
    """landed rows = offsets planned - offset gaps; landed = accepted + those with a problem, by reason."""
    offsets_planned = sum(known.planned for known in ranges)
    landed = sum(row["records"] for row in found)
    if landed > offsets_planned:
        raise BrokenInvariant(f"batch {batch_id}: {offsets_planned} offsets planned, but {landed} records landed")
    counts = {"planned": offsets_planned, "landed": landed, "offset_gaps": offsets_planned - landed}
    counts["lost"] = sum(known.lost + known.cut for known in ranges)
    counts["backlog"] = sum(known.end_offset - known.until_offset for known in ranges)
    counts["accepted"] = sum(row["records"] for row in found if row["problem"] is None)
    for side in pipeline.sides:
        mine = [row for row in found if row["topic"] == side.topic]
        counts[f"landed_{side.payload}"] = sum(row["records"] for row in mine)
        counts[f"accepted_{side.payload}"] = sum(row["records"] for row in mine if row["problem"] is None)
    for row in found:
        if row["problem"] is not None:
            counts[row["problem"]] = counts.get(row["problem"], 0) + row["records"]
    return counts
