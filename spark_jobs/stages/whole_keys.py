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

from spark_jobs.rules.outcomes import outcome_batches, outcome_schema
from spark_jobs.rules.rules import Rules, event_schema

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

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for outcomes, _ in decided_keys(batches, rules):
            yield outcomes

    return together.mapInArrow(run, from_arrow_schema(outcome_schema(rules.key)))


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


def decided_keys(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[tuple[pa.RecordBatch, pa.Table | None]]:
    """What `by_key` gives a task, as outcomes (`outcome_schema`) and, beside each batch of them, what of its keys consumers know already:
    `pair_id` and `revision`, None where there is nothing.
    """
    schema = event_schema(rules.key)
    for together in complete_keys(batches, (KEY_HASH,), _ROWS_AT_ONCE, _BYTES_AT_ONCE):
        events, revisions = _without_revisions(together)
        for outcomes in outcome_batches(_unpacked(events, schema), rules):
            yield outcomes, revisions
        # The next ones are read while these names would still keep these.
        del together, events


def _without_revisions(together: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The events, and the rows of `known_revisions` among them: those without a timestamp."""
    if not together["ts"].null_count:
        return together, None
    is_event = pc.is_valid(together["ts"])
    known = together.filter(pc.invert(is_event))
    return together.filter(is_event), pa.table({"pair_id": known["payload"], "revision": known["offset"]})


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
