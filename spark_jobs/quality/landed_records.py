"""Every record on the input topics is landed, and every landed record has exactly one outcome.

The report counts the records of the batches with offset gaps; reconcile compares all records, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.records import Span, Spans, read_records
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.checks import Finding, flagged
from spark_jobs.quality.facts import facts_of, fingerprint
from spark_jobs.quality.ledger_checks import RawRows
from spark_jobs.quality.numbers import SIDES
from spark_jobs.rules.reasons import ERASED, FILTERED
from spark_jobs.tables.ledger_rows import LedgerRow, OffsetRange
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.tables import Condition
from spark_jobs.tables.warehouse import Warehouse

PLACE = ("topic", "partition", "offset")
OUTCOMES = (COMPOUNDS, REJECTED, OPEN)
# batch_id -> what it read.
Ranges = dict[int, tuple[OffsetRange, ...]]


def with_gaps(batches: Iterable[Batch], topics: TopicsNow) -> Ranges:
    """The ranges of the batches with offset gaps of which the broker still has everything: whether a gap is one is then asked of the topics."""

    def is_there(at: OffsetRange) -> bool:
        # At its end, too: a log may have been cut since.
        place = at.place
        return topics.earliest.get(place, at.until_offset) <= at.from_offset and at.until_offset <= topics.end.get(place, 0)

    gaps = ((batch.batch_id, batch.landed.offsets) for batch in batches if batch.landing.offset_gaps)
    found = {batch_id: tuple(at for at in offsets if at.planned) for batch_id, offsets in gaps}
    return {batch_id: ranges for batch_id, ranges in found.items() if all(map(is_there, ranges))}


def joined_spans(ranges: Iterable[OffsetRange]) -> dict[Partition, Span]:
    """Of each partition from the first offset of its ranges to the last."""
    spans: dict[Partition, Span] = {}
    for at in ranges:
        known = spans.get(at.place, Span(at.from_offset, at.until_offset))
        spans[at.topic, at.partition] = Span(min(known.first, at.from_offset), max(known.until, at.until_offset))
    return spans


def record_facts(warehouse: Warehouse, batches: Ranges) -> DataFrame:
    """Facts `record_left` and `record_right`: the records that the broker has in the ranges."""
    whose = [F.when(_lie_in(ranges), F.lit(batch_id).cast("bigint")) for batch_id, ranges in batches.items()]
    spans = joined_spans(at for ranges in batches.values() for at in ranges)
    found = read_records(warehouse.spark, warehouse.pipeline, spans, False, PLACE)
    records = found.withColumn("batch_id", F.coalesce(*whose)).where(F.col("batch_id").isNotNull())
    is_left = F.col("topic").isin([topic for topic, _ in spans if warehouse.pipeline.left.has(topic)])
    side = F.when(is_left, "record_left").otherwise("record_right")
    return facts_of(records, side, F.lit(""))


def _lie_in(ranges: Iterable[OffsetRange]) -> Column:
    """Whether the record of a place lies in one of them; false of none."""
    topic, partition, offset = map(F.col, PLACE)
    found = [
        (topic == at.topic) & (partition == at.partition) & offset.between(at.from_offset, at.until_offset - 1)
        for at in ranges
    ]
    return reduce(or_, found, F.lit(False))


def _raw(warehouse: Warehouse, columns: Sequence[str], after: int, until: int) -> DataFrame:
    """The raw rows of both sides, of the batches after..until (exclusive, inclusive)."""
    batches = range(after + 1, until + 1)
    tables = [warehouse.read(raw_table(side), columns, batches=batches) for side in warehouse.pipeline.sides]
    return reduce(DataFrame.unionAll, tables)


def raw_rows(warehouse: Warehouse, after: int, until: int) -> Iterator[RawRows]:
    """How many raw rows each batch and partition has, of the batches after..until (exclusive, inclusive)."""
    rows = _raw(warehouse, [*PLACE, "batch_id"], after, until).groupBy("batch_id", "topic", "partition")
    counted = rows.agg(F.count("*").alias("rows"), F.min("offset").alias("first"), F.max("offset").alias("last"))
    table = counted.toArrow()
    return map(RawRows, *(table.column(name).to_pylist() for name in RawRows._fields))


def outcomes(
    warehouse: Warehouse, corrections: Sequence[int], void: Sequence[int], after: int, until: int, open_version: int
) -> DataFrame:
    """The coordinates of every record in each table that says what became of it (`source`); open events as they were behind `until`.

    Of the batches after..until (exclusive, inclusive). `corrections`: the replays and rewinds; `void`: the batches that were given up, whose rows
    compound_events keeps, as the outbox.
    """
    # A replay gives records another outcome without taking back the first; that one is what counts here. A rewind decides none.
    batches = range(after + 1, until + 1)
    names = ["batch_id", *(f"{side}_{name}" for side in SIDES for name in PLACE)]
    compounds = warehouse.read(COMPOUNDS, names, batches=batches, where=_not_of([*corrections, *void]))
    rejected = warehouse.read(REJECTED, ["batch_id", *PLACE], batches=batches, where=_not_of(corrections))
    claims = [(REJECTED, rejected.select(*PLACE)), (OPEN, warehouse.read(OPEN, PLACE, version=open_version))]
    for side in SIDES:
        places = [F.col(f"{side}_{name}").alias(name) for name in PLACE]
        claims.append((COMPOUNDS, compounds.where(F.col(f"{side}_offset").isNotNull()).select(*places)))
    return reduce(DataFrame.unionAll, [rows.withColumn("source", F.lit(table)) for table, rows in claims])


def _not_of(batches: Sequence[int]) -> Condition | None:
    return (lambda column: ~column("batch_id").isin(list(batches))) if batches else None


def by_place(warehouse: Warehouse, spans: Spans, claims: DataFrame, after: int, until: int) -> DataFrame:
    """A row for each record that is in raw rows of the batches after..until (exclusive, inclusive), in the spans of topics, or in `claims` (`outcomes`)."""
    raw = _raw(warehouse, [*PLACE, "key", "value", "problem"], after, until)
    records = read_records(warehouse.spark, warehouse.pipeline, spans, False, [*PLACE, "key", "value"])
    text = fingerprint("key", "value").alias("bytes")
    # Of an emptied row nothing is left to compare. A record without a value is never filtered.
    emptied = (F.col("problem") == ERASED) | ((F.col("problem") == FILTERED) & F.col("value").isNull())
    bytes_landed = F.when(~F.coalesce(emptied, F.lit(False)), fingerprint("key", "value")).alias("bytes")
    landed = raw.select(*PLACE, F.lit("raw").alias("source"), bytes_landed, "problem", emptied.alias("emptied"))
    there = records.select(*PLACE, F.lit("record").alias("source"), text)

    def count(*sources: str) -> Column:
        return F.count(F.when(F.col("source").isin(*sources), True))

    def said_by(source: str) -> Column:
        return F.max(F.when(F.col("source") == source, F.col("bytes")))

    return (
        landed.unionByName(there, allowMissingColumns=True)
        .unionByName(claims, allowMissingColumns=True)
        .groupBy(*PLACE)
        .agg(
            count("raw").alias("raw"),
            count("record").alias("records"),
            *(count(table).alias(table) for table in OUTCOMES),
            count(*OUTCOMES).alias("outcomes"),
            F.max("problem").alias("problem"),
            F.coalesce(F.max("emptied"), F.lit(False)).alias("emptied"),
            (said_by("raw") != said_by("record")).alias("differs"),
        )
    )


def was_removed(removal: LedgerRow | None) -> Column:
    """Whether the record of a place was landed by a batch whose rows were removed for their age. `removal`: the row that says up to where."""
    return _lie_in(at._replace(from_offset=0) for at in (removal.offsets if removal else ()))


def check_places(places: DataFrame) -> DataFrame:
    """What is wrong with which record. `places`: of `by_place`, with `removed` (its raw row was, for its age) and `unchecked` (its outcome may be).

    Records that the topic no longer has are not wrong.
    """
    landed, claimed = F.col("raw") > 0, F.col("outcomes") > 0
    filtered, removed = F.coalesce(F.col("problem") == FILTERED, F.lit(False)), F.col("removed")
    # What an emptied row was, its outcome says.
    rejected = F.col("problem").isNotNull() & ~filtered & (F.col("problem") != ERASED)
    tables = F.concat_ws(", ", *(F.when(F.col(name) > 0, F.format_string(f"%d x {name}", name)) for name in OUTCOMES))
    where = F.concat_ws("-", *PLACE)
    return flagged(
        places,
        F.when(F.col("outcomes") > 1, F.concat(where, F.lit(" in "), tables)).otherwise(where),
        {
            Finding.NOT_LANDED: ~landed & (F.col("records") > 0) & ~removed,
            Finding.LANDED_TWICE: F.col("raw") > 1,
            Finding.LANDED_OTHERWISE: F.col("differs"),
            Finding.NEVER_LANDED: ~landed & claimed & ~removed,
            Finding.NOT_REJECTED: landed & rejected & ~claimed,
            Finding.NO_OUTCOME: (landed | removed) & ~rejected & ~filtered & ~claimed & ~F.col("unchecked"),
            Finding.TWO_OUTCOMES: F.col("outcomes") + filtered.cast("int") > 1,
        },
    )
