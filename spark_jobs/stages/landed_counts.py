"""What the raw tables hold of a batch, counted and held against what it was to land."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import reduce

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger import LedgerRow, OffsetRange
from spark_jobs.tables.records import LandedCounts
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


def count(
    pipeline: Pipeline,
    batch_id: int,
    ranges: Sequence[OffsetRange],
    found: list[Row],
    held: tuple[int, int | None],
    gone_at_start: int,
) -> LandedCounts:
    """The counts of the landed rows (`landed_counts`); `held`: see `total_held`. Raises BrokenInvariant if more are landed than planned."""
    offsets_planned = sum(known.planned for known in ranges)
    landed = sum(row["records"] for row in found)
    if landed > offsets_planned:
        raise BrokenInvariant(f"batch {batch_id}: {offsets_planned} offsets planned, but {landed} records landed")

    def rows(topics: Collection[str], only_accepted: bool = False) -> int:
        return sum(
            row["records"] for row in found if row["topic"] in topics and not (only_accepted and row["problem"] is not None)
        )

    problems = Counter[str]()
    for row in found:
        if row["problem"] is not None:
            problems[row["problem"]] += row["records"]
    left, right = ((side.topic,) for side in pipeline.sides)
    return LandedCounts(
        planned=offsets_planned,
        landed=landed,
        offset_gaps=offsets_planned - landed,
        lost=sum(known.lost + known.cut for known in ranges),
        backlog=sum(known.end_offset - known.until_offset for known in ranges),
        accepted=rows(pipeline.topics, only_accepted=True),
        landed_left=rows(left),
        accepted_left=rows(left, only_accepted=True),
        landed_right=rows(right),
        accepted_right=rows(right, only_accepted=True),
        gone_at_start=gone_at_start,
        held=held[0],
        held_since=held[1],
        **problems,
    )
