"""The preview of a rewind: void batches, removed rows, corrections, offsets to read again, and whether the broker still has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.corrections.rewind_target import (
    Target,
    appended_tables,
    check_open_events,
    count_each,
    rows_after,
    starting_ranges,
)
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.ranges import lost_range
from spark_jobs.tables.ledger_rows import OffsetRange
from spark_jobs.tables.outbox import changed_since
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse


class Preview(NamedTuple):
    """What a rewind would do, in numbers of rows."""

    target: Target
    # Removed rows of the appended tables, rows of open_events now, compounds to correct that consumers have (`published`) and that are not
    # published yet (`waiting`), and rows of compound_events of a batch that was never paired (`unsent`).
    rows: Counter[str]
    # Range to read again (from_offset to end_offset) -> its parts that the broker no longer has.
    again: dict[OffsetRange, list[str]]
    # Those of these parts of which the raw tables have rows.
    lost: list[str]


def make_preview(warehouse: Warehouse, target: Target, topics: TopicsNow) -> Preview:
    """Only reads. Raises NeedsOperator if open_events cannot be brought back."""
    check_open_events(warehouse, target.to_batch, target.open_version, target.open_after)
    if target.removed:
        _check_raw_rows(warehouse, target)
    if target.compounds_removed:
        _check_earlier_compounds(warehouse, target)
    landed = _landed(warehouse, target)
    again, lost = dict[OffsetRange, list[str]](), list[str]()
    for at in starting_ranges(target):
        if at.from_offset == at.end_offset:
            continue
        missing = missing_parts(at, topics)
        again[at] = [lost_range(at.topic, at.partition, *part) for part in missing]
        first, last = landed.get(at.place, (0, -1))
        parts = zip(again[at], missing, strict=True)
        lost += [text for text, (begin, end) in parts if first < end and last >= begin]
    return Preview(target, _rows(warehouse, target), again, lost)


def _check_raw_rows(warehouse: Warehouse, target: Target) -> None:
    """Raises NeedsOperator if the raw rows of open events are removed: such an event may be rejected, with its bytes."""
    waiting = warehouse.read(OPEN, ["batch_id"], version=target.open_version)
    if gone := waiting.where(F.col("batch_id") <= target.removed).count():
        raise NeedsOperator(
            f"{gone} events that batch {target.to_batch} left open are no longer in the raw tables, whose rows were removed for their age up "
            f"to batch {target.removed}: go back to a later batch"
        )


def _check_earlier_compounds(warehouse: Warehouse, target: Target) -> None:
    """Raises NeedsOperator if rows that later batches corrected are removed: without them a correction would retract the compounds."""
    columns = ["pair_id", "revision", "batch_id"]
    rows = warehouse.read(COMPOUNDS, columns, where=lambda column: column("batch_id") <= target.last_paired)
    later = F.when(F.col("batch_id") > target.to_batch, F.col("revision"))
    each = rows.groupBy("pair_id").agg(F.min(later).alias("later"), F.min("revision").alias("oldest"))
    # Revisions are counted from 0, and without a gap.
    gone = each.where((F.col("later") > 0) & (F.col("oldest") == F.col("later"))).count()
    if gone:
        raise NeedsOperator(
            f"{gone} compounds that batches after {target.to_batch} corrected were said otherwise by batches up to {target.compounds_removed}, "
            "whose rows were removed for their age: go back to a later batch"
        )


def _rows(warehouse: Warehouse, target: Target) -> Counter[str]:
    changed = changed_since(warehouse, target.to_batch, target.last_paired)
    seen = F.when(F.col("now.batch_id") <= target.published, "published").otherwise("waiting")
    frames = [rows_after(warehouse, table, target.to_batch, table) for table in appended_tables(warehouse)]
    frames += [rows_after(warehouse, OPEN, -1, OPEN), rows_after(warehouse, COMPOUNDS, target.last_paired, "unsent")]
    return count_each([*frames, changed.select(seen.alias("what"))])


def _landed(warehouse: Warehouse, target: Target) -> dict[tuple[str, int], tuple[int, int]]:
    """First and last offset, both inclusive, that the raw tables have of the void batches, by partition."""
    columns = ["topic", "partition", "offset"]
    sides = (
        warehouse.read(raw_table(side), columns, where=lambda column: column("batch_id") > target.to_batch)
        for side in warehouse.pipeline.sides
    )
    spans = reduce(DataFrame.unionAll, sides).groupBy("topic", "partition")
    found = spans.agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()
    return {(row["topic"], row["partition"]): (row["first"], row["last"]) for row in found}


def missing_parts(at: OffsetRange, topics: TopicsNow) -> list[tuple[int, int]]:
    """The parts at the begin and at the end of the range that the broker no longer has: first offset inclusive, end exclusive."""
    place = at.place
    first = min(max(topics.earliest.get(place, at.end_offset), at.from_offset), at.end_offset)
    end = max(topics.same_until(place), first) if place in topics.end else at.end_offset
    return [part for part in ((at.from_offset, first), (end, at.end_offset)) if part[0] < part[1]]


def refuse_losses(preview: Preview, accepted: Iterable[str]) -> None:
    """Raises NeedsOperator if rows would be removed that can never be read again, unless the operator gives them up."""
    if not set(preview.lost) <= set(accepted):
        lost = " ".join(preview.lost)
        raise NeedsOperator(
            f"the broker no longer has {lost}, and the raw tables would give it up with their rows: go back to a later batch, "
            f"or run rewind with --accept-lost-range '{lost}' to lose these records"
        )


def preview_text(warehouse: Warehouse, preview: Preview) -> str:
    """The preview as lines of text."""
    target, rows = preview.target, preview.rows
    first, last = target.to_batch + 1, target.newest
    void = f"batch {first}" if first == last else f"batches {first} to {last}"
    unpaired = f" ({target.newest} was never paired)" if target.newest > target.last_paired else ""
    numbers = {f"rows of {table} to remove": rows[table] for table in appended_tables(warehouse)}
    if rows["unsent"]:
        numbers[f"rows of {COMPOUNDS} to remove, never sent"] = rows["unsent"]
    numbers |= {f"rows of {OPEN}, now": rows[OPEN], f"rows of {OPEN}, then": target.open_after}
    numbers["compounds to be corrected that are published"] = rows["published"]
    numbers["compounds to be corrected that are not published yet"] = rows["waiting"]
    lines = [f"back to batch {target.to_batch}, {void} given up{unpaired}"]
    lines += [f"{what:<54}{number:>12,}" for what, number in numbers.items()]
    if rows["waiting"]:
        lines.append("(they go out first, as some of them may be out already; the corrections follow)")
    lines.append("read again:" if preview.again else "nothing is read again")
    for at, gone in preview.again.items():
        state = f"the broker no longer has {' '.join(gone)}" if gone else "all on the broker"
        lines.append(f"    {lost_range(at.topic, at.partition, at.from_offset, at.end_offset)}  {state}")
    return "\n".join(lines)
