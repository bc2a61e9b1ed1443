"""Counts the rows of a batch in the raw tables and compares them with its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger import LedgerRow, OffsetRange
from spark_jobs.tables.read_files import Summary
from spark_jobs.tables.records import LandedCounts
from spark_jobs.tables.schemas import raw_table
from spark_jobs.tables.warehouse import Warehouse

_PLACE = ("topic", "partition", "problem")
_NUMBERS = ("block", "records", "bits", "first", "last", "max_ts")
_BLOCKS = "topic STRING, partition INT, problem STRING, " + ", ".join(f"{name} BIGINT" for name in _NUMBERS)
_NO_TS = np.iinfo(np.int64).min


def landed_counts(warehouse: Warehouse, planned: LedgerRow) -> list[Row]:
    """The batch's rows in the raw tables by partition and problem: number of `records` and of different `offsets`, `first` and `last` offset
    (both inclusive), and `max_ts` (epoch ms, null if no row has one).
    """
    columns, mine = [*_PLACE, "offset", "ts"], [planned.batch_id]
    summary = Summary(in_blocks, _BLOCKS)
    sides = (warehouse.read(raw_table(side), columns, batches=mine, summary=summary) for side in planned.pipeline.sides)
    blocks = (
        reduce(DataFrame.unionAll, sides)
        .groupBy(*_PLACE, "block")
        .agg(
            F.sum("records").alias("records"),
            F.bit_or("bits").alias("bits"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max("max_ts").alias("max_ts"),
        )
    )
    return list(
        blocks.groupBy(*_PLACE)
        .agg(
            F.sum("records").alias("records"),
            F.sum(F.bit_count("bits")).alias("offsets"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max("max_ts").alias("max_ts"),
        )
        .collect()
    )


def in_blocks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """One row (`_BLOCKS`) for each run of rows (`topic, partition, problem, offset, ts`) in the same block of 64 offsets.

    `bits`: which of the 64 exist, so that different offsets can be counted with a 64th of the rows. A block may have several runs.

    >>> columns = [["t"] * 4, [0] * 4, [None] * 4, [62, 63, 64, 64], [5, None, 7, 6]]
    >>> types = [pa.string(), pa.int32(), pa.string(), pa.int64(), pa.int64()]
    >>> rows = [pa.array(values, kind) for values, kind in zip(columns, types)]
    >>> made = in_blocks(pa.record_batch(rows, ["topic", "partition", "problem", "offset", "ts"])).to_pydict()
    >>> made["block"], made["records"], made["bits"], made["first"], made["last"], made["max_ts"]
    ([0, 1], [2, 2], [-4611686018427387904, 1], [62, 64], [63, 64], [5, 7])
    """
    offset = rows["offset"].to_numpy()
    block = offset >> 6
    starts = np.flatnonzero(reduce(np.logical_or, map(_changes, (block, *(_codes(rows[name]) for name in _PLACE)))))
    ts = pc.fill_null(rows["ts"], int(_NO_TS)).to_numpy()
    max_ts = np.maximum.reduceat(ts, starts)
    records = np.diff(np.append(starts, rows.num_rows))
    bits = np.bitwise_or.reduceat(np.int64(1) << (offset & 63), starts)
    first, last = np.minimum.reduceat(offset, starts), np.maximum.reduceat(offset, starts)
    place = rows.select(list(_PLACE)).take(pa.array(starts)).columns
    numbers = [*map(pa.array, (block[starts], records, bits, first, last)), pa.array(max_ts, mask=max_ts == _NO_TS)]
    return pa.record_batch([*place, *numbers], [*_PLACE, *_NUMBERS])


def _codes(column: pa.Array) -> npt.NDArray[Any]:
    """Numbers that are equal where the values are equal, and -1 for null."""
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    return column.dictionary_encode().indices.fill_null(-1).to_numpy()


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each value differs from the one before it; true for the first."""
    return np.append(True, values[1:] != values[:-1])


def is_of(row: Row, known: OffsetRange) -> bool:
    """Whether a row of `landed_counts` is of this range's partition."""
    return row["topic"] == known.topic and row["partition"] == known.partition


def advance(known: OffsetRange, rows: list[Row]) -> OffsetRange:
    """The landed range with its largest accepted timestamp; raises BrokenInvariant if other offsets are landed."""
    for row in rows:
        outside = row["first"] < known.from_offset or row["last"] >= known.until_offset
        if outside or row["records"] != row["offsets"]:
            raise BrokenInvariant(
                f"{known.topic}-{known.partition}: planned offsets {known.from_offset} to {known.until_offset} (exclusive), landed "
                f"{row['records']} records with {row['offsets']} different offsets from {row['first']} to {row['last']}"
            )
    landed = [row["max_ts"] for row in rows if row["problem"] is None]
    times = [ts for ts in (*landed, known.max_ts) if ts is not None]
    return known._replace(max_ts=max(times, default=None))


def count(
    pipeline: Pipeline,
    batch_id: int,
    ranges: Sequence[OffsetRange],
    rows: list[Row],
    held: tuple[int, int | None],
    gone_at_start: int,
) -> LandedCounts:
    """The counts of the landed rows (`landed_counts`); `held`: see `total_held`. Raises BrokenInvariant if more are landed than planned."""
    offsets_planned = sum(known.planned for known in ranges)
    landed = sum(row["records"] for row in rows)
    if landed > offsets_planned:
        raise BrokenInvariant(f"batch {batch_id}: {offsets_planned} offsets planned, but {landed} records landed")

    def records(topics: Collection[str], only_accepted: bool = False) -> int:
        return sum(
            row["records"] for row in rows if row["topic"] in topics and not (only_accepted and row["problem"] is not None)
        )

    problems = Counter[str]()
    for row in rows:
        if row["problem"] is not None:
            problems[row["problem"]] += row["records"]
    left, right = ((side.topic,) for side in pipeline.sides)
    return LandedCounts(
        planned=offsets_planned,
        landed=landed,
        offset_gaps=offsets_planned - landed,
        lost=sum(known.lost + known.cut for known in ranges),
        backlog=sum(known.end_offset - known.until_offset for known in ranges),
        accepted=records(pipeline.topics, only_accepted=True),
        landed_left=records(left),
        accepted_left=records(left, only_accepted=True),
        landed_right=records(right),
        accepted_right=records(right, only_accepted=True),
        gone_at_start=gone_at_start,
        held=held[0],
        held_since=held[1],
        **problems,
    )
