"""Counts the rows of a batch in the raw tables and compares them with its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.local_workers import has_workers, run_parts
from spark_jobs.spark.workers import are_for_own_workers
from spark_jobs.tables.ledger_rows import LedgerRow, OffsetRange
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.reading import Reading
from spark_jobs.tables.records import LandedCounts, LivePlan
from spark_jobs.tables.schemas import raw_table
from spark_jobs.tables.warehouse import Warehouse

_PLACE = ["topic", "partition", "problem"]
# A row with `records` counts rows of one place. One without is a run: rows of one partition with rising offsets.
_COUNTED = pa.schema(
    {"topic": pa.string(), "partition": pa.int32(), "problem": pa.string()}
    | dict.fromkeys(("records", "first", "last", "max_ts"), pa.int64())
)


class LandedRows(NamedTuple):
    """The rows of a batch that have one topic, partition and problem."""

    topic: str
    partition: int
    problem: str | None
    records: int
    # Both inclusive.
    first: int
    last: int
    # Epoch ms; None if no row has one.
    max_ts: int | None
    # How many different ones.
    offsets: int


def landed_counts(warehouse: Warehouse, planned: LedgerRow) -> list[LandedRows]:
    """Reads back what the raw tables have of the batch."""
    counted = _counted(warehouse, planned, [*_PLACE, "offset", "ts"], InWorker(count_and_runs, _COUNTED, is_summary=True))
    is_run = pc.is_null(counted["records"])
    aggregates = [("records", "sum"), ("first", "min"), ("last", "max"), ("max_ts", "max")]
    places = counted.filter(pc.invert(is_run)).group_by(_PLACE).aggregate(aggregates)
    rows = places.rename_columns(counted.schema.names).to_pylist()
    exact: dict[tuple[str, int, str | None], int] = {}
    if _overlap(counted.filter(is_run)):
        # Records landed twice, or another program has ordered the rows anew.
        sides = (
            warehouse.read(raw_table(side), [*_PLACE, "offset"], batches=[planned.batch_id])
            for side in planned.pipeline.sides
        )
        offsets = reduce(DataFrame.unionAll, sides).groupBy(*_PLACE).agg(F.countDistinct("offset"))
        exact = {(topic, partition, problem): count for topic, partition, problem, count in offsets.collect()}
    return [
        LandedRows(**row, offsets=exact.get((row["topic"], row["partition"], row["problem"]), row["records"]))
        for row in rows
    ]


def _counted(warehouse: Warehouse, planned: LedgerRow, columns: list[str], made: InWorker) -> pa.Table:
    tables, batches = [raw_table(side) for side in planned.pipeline.sides], [planned.batch_id]
    readings = [warehouse.reading(table, columns, batches=batches, made=made) for table in tables]
    few = [each.few() for each in readings]
    if not any(rows is None for rows in few):
        return pa.concat_tables(few)
    if has_workers() and are_for_own_workers(sum(each.rows for each in readings)):
        found = (run_parts(each.shares, each.read) for each in readings)
        return pa.Table.from_batches(chain.from_iterable(found), _COUNTED)
    return reduce(DataFrame.unionAll, map(Reading.in_spark, readings)).toArrow()


def count_and_runs(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a raw table (`topic, partition, problem, offset, ts`) as rows of `_COUNTED`: as few as there are places, and runs.

    Where the runs of a partition do not overlap, all its offsets are different.

    >>> columns = [["t"] * 4, [0] * 4, [None, None, "late", None], [62, 63, 64, 64], [5, None, 7, 6]]
    >>> types = [pa.string(), pa.int32(), pa.string(), pa.int64(), pa.int64()]
    >>> rows = [pa.array(values, kind) for values, kind in zip(columns, types)]
    >>> made = count_and_runs(pa.record_batch(rows, ["topic", "partition", "problem", "offset", "ts"]))
    >>> for row in made.to_pylist(): print(list(row.values()))
    ['t', 0, None, 3, 62, 64, 6]
    ['t', 0, 'late', 1, 64, 64, 7]
    ['t', 0, None, None, 62, 64, None]
    ['t', 0, None, None, 64, 64, None]
    """
    aggregates = [("offset", "count"), ("offset", "min"), ("offset", "max"), ("ts", "max")]
    counted = pa.Table.from_batches([rows]).group_by(_PLACE, use_threads=False).aggregate(aggregates)
    offset = rows["offset"].to_numpy()
    falls = np.append(True, offset[1:] <= offset[:-1])
    starts = np.flatnonzero(falls | _changes(rows["topic"].dictionary_encode().indices) | _changes(rows["partition"]))
    none = pa.nulls(len(starts), pa.int64())
    place = rows.select(_PLACE[:2]).take(pa.array(starts)).columns
    ends = np.append(starts[1:], rows.num_rows) - 1
    runs = [*place, pa.nulls(len(starts), pa.string()), none, pa.array(offset[starts]), pa.array(offset[ends]), none]
    columns = [pa.concat_arrays([*whole.chunks, run]) for whole, run in zip(counted.columns, runs, strict=True)]
    return pa.record_batch(columns, schema=_COUNTED)


def _changes(values: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each value differs from the one before it; true for the first."""
    numbers = values.to_numpy()
    return np.append(True, numbers[1:] != numbers[:-1])


def _overlap(runs: pa.Table) -> bool:
    """Whether two runs of a partition have offsets in common."""
    ordered = runs.sort_by([("topic", "ascending"), ("partition", "ascending"), ("first", "ascending")]).to_pylist()
    return any(
        (one["topic"], one["partition"]) == (other["topic"], other["partition"]) and other["first"] <= one["last"]
        for one, other in pairwise(ordered)
    )


def advance(known: OffsetRange, rows: list[LandedRows]) -> OffsetRange:
    """The landed range with its largest accepted timestamp; raises BrokenInvariant if other offsets of its partition are landed."""
    mine = [row for row in rows if (row.topic, row.partition) == known.place]
    for row in mine:
        outside = row.first < known.from_offset or row.last >= known.until_offset
        if outside or row.records != row.offsets:
            raise BrokenInvariant(
                f"{known.topic}-{known.partition}: planned offsets {known.from_offset} to {known.until_offset} (exclusive), landed "
                f"{row.records} records with {row.offsets} different offsets from {row.first} to {row.last}"
            )
    times = [known.max_ts, *(row.max_ts for row in mine if row.problem is None)]
    return known._replace(max_ts=max((ts for ts in times if ts is not None), default=None))


def count(
    planned: LedgerRow,
    ranges: Sequence[OffsetRange],
    rows: list[LandedRows],
    held: tuple[int, int | None],
    revised: int,
) -> LandedCounts:
    """The counts of the landed rows (`landed_counts`); `held`: see `total_held`; `revised`: of `revised_records`.

    Raises BrokenInvariant if more are landed than planned.
    """
    offsets_planned = sum(known.planned for known in ranges)
    landed, accepted, problems = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        landed[row.topic] += row.records
        if row.problem is None:
            accepted[row.topic] += row.records
        else:
            problems[row.problem] += row.records
    if landed.total() > offsets_planned:
        raise BrokenInvariant(
            f"batch {planned.batch_id}: {offsets_planned} offsets planned, but {landed.total()} records landed"
        )
    of_sides = [[sum(counted[topic] for topic in mine) for counted in (landed, accepted)] for mine in planned.topics]
    (landed_left, accepted_left), (landed_right, accepted_right) = of_sides
    return LandedCounts(
        planned=offsets_planned,
        landed=landed.total(),
        offset_gaps=offsets_planned - landed.total(),
        lost=sum(known.lost + known.cut for known in ranges),
        backlog=sum(known.end_offset - known.until_offset for known in ranges),
        accepted=accepted.total(),
        landed_left=landed_left,
        accepted_left=accepted_left,
        landed_right=landed_right,
        accepted_right=accepted_right,
        gone_at_start=planned.plan.gone_at_start if isinstance(planned.plan, LivePlan) else 0,
        held=held[0],
        held_since=held[1],
        revised=revised,
        **problems,
    )
