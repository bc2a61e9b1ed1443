"""Rejected records as messages of the rejected topic: dead letters.

Key and value are the bytes of the record. Its headers come first, ours follow. The output partition is that of the key in Kafka's default
partitioner; a record without a key has one by its place, so every retry sends it to the same. rejected_events has no headers: they are those
of the raw row, which maintenance keeps until the batch is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.messages import Message, output_partition, rows_for
from spark_jobs.kafka.records import Spans, read_records
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.rules.parsed_columns import HEADERS
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.schemas import REJECTED, raw_table
from spark_jobs.tables.tables import Condition
from spark_jobs.tables.warehouse import Warehouse

# No header of a producer should begin like this. As Kafka Connect's `__connect.errors.`.
_PREFIX = "__rejected."
# The reasons of events that may have been open before their batch. Late events are new ones.
_OF_OPEN = [str(Reason.DUPLICATE), str(Reason.SUPERSEDED)]
_PLACE = ("topic", "partition", "offset")
# The columns of rejected_events whose texts are headers, by name.
_HEADERS = {
    "reason": "reason",
    **{name: name for name in _PLACE},
    "timestamp": "record_timestamp",
    "batch": "batch_id",
}
_READ = ("reason", *_PLACE, "record_timestamp", "key", "value", "batch_id")
_ROWS = pa.schema(
    dict.fromkeys(("reason", "topic"), pa.string())
    | {"partition": pa.int32(), "offset": pa.int64(), "record_timestamp": pa.int64()}
    | dict.fromkeys(("key", "value"), pa.binary())
    | {"batch_id": pa.int64(), "output_partition": pa.int32()}
)
# `landed`: null where there is no raw row.
COLUMNS = pa.schema([*_ROWS, ("headers", HEADERS), ("landed", pa.bool_())])
# So many batches the search goes back in the ledger, one after the other: most events are rejected soon.
_BEFORE = (0, 20, 2**40)


class _RejectedRows(NamedTuple):
    """Which raw rows are those of rejected events: of these batches, with this condition (None: any)."""

    batches: range
    where: Condition | None


def read_few_dead_letters(warehouse: Warehouse, partitions: Mapping[int, int], batches: Sequence[int]) -> pa.Table | None:
    """The dead letters of these batches as rows of `COLUMNS`, without Spark; None if they or the raw rows of their batches are more than few.

    `partitions`: batch_id -> number of partitions of the topic.
    """
    if not batches:
        return COLUMNS.empty_table()
    rows = warehouse.reading(REJECTED, _READ, batches=batches, made=InWorker(_placer(partitions), _ROWS)).few()
    if rows is None:
        return None
    known, headers = _landed(warehouse, batches), dict[tuple[Any, ...], Any]()
    for side in warehouse.pipeline.sides:
        raw = warehouse.reading(raw_table(side), [*_PLACE, "headers"], batches=known.batches, where=known.where).few()
        if raw is None:
            return None
        headers |= zip(_places(raw), raw["headers"].to_pylist(), strict=True)
    places = _places(rows)
    found = rows.append_column("headers", pa.array(map(headers.get, places), HEADERS))
    return found.append_column("landed", pa.array([place in headers or None for place in places], pa.bool_()))


def read_dead_letters(warehouse: Warehouse, partitions: Mapping[int, int], batches: Sequence[int]) -> DataFrame:
    """As `read_few_dead_letters`, by Spark, of at least one batch."""
    rows = warehouse.read(REJECTED, _READ, batches=batches, made=InWorker(_placer(partitions), _ROWS))
    known = _landed(warehouse, batches)
    sides = (
        warehouse.read(raw_table(side), [*_PLACE, "headers"], batches=known.batches, where=known.where)
        for side in warehouse.pipeline.sides
    )
    raw = reduce(DataFrame.unionAll, sides).withColumn("landed", F.lit(True))
    return rows.join(raw, [*_PLACE], "left").select(*COLUMNS.names)


def _places(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in _PLACE), strict=True))


def _placer(partitions: Mapping[int, int]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from rows of rejected_events to rows of `_ROWS`."""

    def place(rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: rows[name] for name in _READ}
        keys, counts = rows["key"].to_pylist(), map(partitions.get, rows["batch_id"].to_pylist())
        sources = map(_source, *(rows[name].to_pylist() for name in _PLACE))
        numbers = [
            output_partition(source.encode() if key is None else key, count)
            for key, source, count in zip(keys, sources, counts, strict=True)
        ]
        return pa.RecordBatch.from_pydict(columns | {"output_partition": pa.array(numbers, pa.int32())}, schema=_ROWS)

    return place


def _source(topic: str, partition: int, offset: int) -> str:
    return f"{topic}-{partition}-{offset}"


def _landed(warehouse: Warehouse, batches: Sequence[int]) -> _RejectedRows:
    few = warehouse.reading(REJECTED, [*_PLACE, "reason"], batches=batches).few()
    if few is None:
        rows = warehouse.read(REJECTED, _PLACE, batches=batches, where=lambda column: column("reason").isin(_OF_OPEN))
        opened = rows.groupBy("topic", "partition").agg(F.min("offset").alias("offset")).toArrow()
    else:
        opened = few.filter(pc.is_in(few["reason"], pa.array(_OF_OPEN)))
    # The smallest offset comes last.
    oldest = {(topic, partition): offset for topic, partition, offset in sorted(_places(opened), reverse=True)}
    landed = range(_first_landing(Ledger(warehouse), oldest, min(batches)), max(batches) + 1)
    if few is None:
        return _RejectedRows(landed, None)
    offsets = few["offset"].unique()
    return _RejectedRows(landed, lambda column: column("offset").isin(offsets))


def _first_landing(ledger: Ledger, oldest: Mapping[tuple[str, int], int], batch_id: int) -> int:
    """The last batch up to `batch_id` that began at these offsets or before. `oldest`: by input partition."""
    missing = dict(oldest)
    for before in _BEFORE if missing else ():
        rows = ledger.rows(max(batch_id - before, 1), batch_id)
        for row in reversed([row for row in rows if row.step == LANDED]):
            for at in row.offsets:
                if at.from_offset <= missing.get(at.place, -1):
                    del missing[at.place]
            if not missing:
                return row.batch_id
    return 1 if missing else batch_id


def dead_letters_for(pipeline: str, partition: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """The messages in rows of `COLUMNS`; leaves out rows without a batch_id.

    Raises BrokenInvariant if a row is for another output partition, or has no raw row.
    """
    for batch in batches:
        for row in rows_for(partition, batch).to_pylist():
            source = _source(*(row[name] for name in _PLACE))
            if not row["landed"]:
                raise BrokenInvariant(
                    f"batch {row['batch_id']} rejected {source}, which is in no raw table, so its headers are not known: nothing of this "
                    "partition is sent; was the table changed by hand?"
                )
            own = [(f"{_PREFIX}{name}", str(row[column]).encode()) for name, column in _HEADERS.items()]
            kept = [(header["key"], header["value"]) for header in row["headers"] or ()]
            headers = [*kept, *own, (f"{_PREFIX}pipeline", pipeline.encode())]
            yield Message(row["batch_id"], row["key"], row["value"], headers, source)


def read_dead_letters_sent(warehouse: Warehouse, spans: Spans) -> DataFrame:
    """This pipeline's dead letters in the spans: partition, `batch_id`, `reason`, and the place of their records as `topic`, `number`, `at`."""
    records = read_records(warehouse.spark, warehouse.pipeline, spans, False, ["partition", "headers"])
    mine = records.where(_own_header("pipeline") == warehouse.pipeline.name)
    return mine.select(
        "partition",
        _own_header("batch").try_cast("bigint").alias("batch_id"),
        *(_own_header(name).alias(name) for name in ("reason", "topic")),
        _own_header("partition").try_cast("int").alias("number"),
        _own_header("offset").try_cast("bigint").alias("at"),
    )


def _own_header(name: str) -> Column:
    """The text of one of our headers. A record that was rejected before has older ones ahead of it."""
    known = F.filter("headers", lambda header: header["key"] == f"{_PREFIX}{name}")
    return F.get(known, F.size(known) - 1)["value"].cast("string")


def check_policy(topic: str, compacted: bool | None) -> None:
    """Raises NeedsOperator if the rejected topic is compacted. `compacted`: None if it is not known."""
    if compacted:
        raise NeedsOperator(
            f"the rejected topic {topic} is compacted: it would refuse records without a key, and keep only the last of each other key; set "
            "its cleanup.policy to delete"
        )
