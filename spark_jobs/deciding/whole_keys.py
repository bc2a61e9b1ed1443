"""Events brought together by key for the workers, which decide every key as a whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.pairing.outcomes import outcome_batches, outcome_schema
from spark_jobs.pairing.rules import Rules, event_schema
from spark_jobs.stages import Stage

# Python and its socket take 60 ms of every task.
EVENTS_A_TASK = 500_000
# No field of a message can have these names.
KEY_HASH = "hash of the key"
# batch_id, below 2^30, and partition, below 2^31, behind each other, then a bit if the event is an open one, and one for the side. Each column
# that is handed over to Python takes 0.1 s for 2 million events.
PACKED = "batch_id, partition, open and side"
_BATCH, _PARTITION = 33, 2
_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 64_000_000


def decide(events: DataFrame, rules: Rules, expected: int) -> DataFrame:
    """The outcomes (`outcome_schema`) of events (`event_schema`), each key whole; about `expected` of them."""
    together = by_key(events, rules.key, expected)
    return together.mapInArrow(decider(rules), from_arrow_schema(outcome_schema(rules.key)))


def by_key(events: DataFrame, key: tuple[str, ...], expected: int) -> DataFrame:
    """The events, packed, and the hash of their key, the keys of a hash behind each other in one task; about `expected` events."""
    tasks = max(2, expected // EVENTS_A_TASK)
    parts = {"batch_id": 2**_BATCH, "partition": 2**_PARTITION, "is_open": 2, "side": 1}
    numbers = reduce(Column.__add__, (F.col(name).cast("bigint") * times for name, times in parts.items()))
    # Sorting by one number is several times cheaper than by texts. Keys that share it by chance are decided together.
    packed = events.select(*key, F.xxhash64(*key).alias(KEY_HASH), numbers.alias(PACKED), "offset", "ts", "payload")
    return packed.repartition(tasks, KEY_HASH).sortWithinPartitions(KEY_HASH)


def _unpacked(packed: pa.Table, schema: pa.Schema) -> pa.Table:
    numbers = packed[PACKED]
    columns = {name: packed[name] for name in packed.schema.names}
    columns["side"] = pc.bit_wise_and(numbers, 1)
    columns["is_open"] = pc.equal(pc.bit_wise_and(numbers, 2), 2)
    columns["partition"] = pc.bit_wise_and(pc.shift_right(numbers, _PARTITION), 2**31 - 1)
    columns["batch_id"] = pc.shift_right(numbers, _BATCH)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def decider(rules: Rules) -> Stage:
    """A stage from what `by_key` gives a task to outcomes (`outcome_schema`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = event_schema(rules.key)
        for events in complete_keys(batches, (KEY_HASH,), _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            yield from outcome_batches(_unpacked(events, schema), rules)
            # The next ones are read while this name would still keep these.
            del events

    return run


def complete_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...], rows_at_once: int, bytes_at_once: int
) -> Iterator[pa.Table]:
    """Regroups batches sorted by key into tables that hold every key whole: about so many rows or bytes, or one larger key."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        cut = _start_of_last_key(batch, key)
        size += batch.nbytes
        # The last key of a batch may go on in the next one; all before it is complete.
        if (rows + cut >= rows_at_once or size >= bytes_at_once) and (
            cut or (waiting and not _same_key(waiting[-1], batch, key))
        ):
            yield pa.Table.from_batches([*waiting, batch.slice(0, cut)])
            batch = batch.slice(cut)
            waiting, rows, size = [], 0, batch.nbytes
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _start_of_last_key(batch: pa.RecordBatch, key: tuple[str, ...]) -> int:
    fields = [batch.column(name) for name in key]
    return bisect_left(range(batch.num_rows), True, key=lambda row: all(field[row] == field[-1] for field in fields))


def _same_key(one: pa.RecordBatch, other: pa.RecordBatch, key: tuple[str, ...]) -> bool:
    return all(one.column(name)[-1] == other.column(name)[0] for name in key)
