"""The events to pair: reads them from the tables and brings them together by key, so that workers decide every key as a whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.rules.compounds import mark_superseded
from spark_jobs.rules.outcomes import outcome_batches
from spark_jobs.rules.rules import LEFT, REVERSED, RIGHT, SUPERSEDED, Rules, event_schema, source_names
from spark_jobs.rules.side_topics import SideTopics, pack
from spark_jobs.stages.revisions import few_revised, mark_events, newest_revisions
from spark_jobs.tables.key_order import in_key_order
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.places import placed, placed_by_side, topic_column
from spark_jobs.tables.read_files import InWorker, Share
from spark_jobs.tables.reading import Reading
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, raw_table
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

# Python and its socket take 60 ms of every task.
EVENTS_A_TASK = 500_000
# No field of a message can have these names.
KEY_HASH = "hash of the key"
# One number: batch_id, below 2^29, topic and partition, below 2^31, and a bit each for events in the other order than their pair, for open events, and for
# the side. Each column that Spark hands over to Python takes 0.1 s for 2 million events.
PACKED = "batch_id, partition, direction, open and side"
_BATCH, _PARTITION, _REVERSED, _OPEN = 34, 3, 2, 1
_SIDES = (LEFT, RIGHT)
_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 64_000_000
# Columns of events in raw tables and in open_events, behind key and side.
_COLUMNS = ("partition", "offset", "ts", "payload", "batch_id")


def batch_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    """The batch's accepted events and the open ones (`event_schema`); after a rewind also the `known_revisions` of compounds."""
    warehouse.start_spark()
    topics, is_left = planned.topics, F.col("side") == "left"
    side, place = F.when(is_left, LEFT).otherwise(RIGHT), placed_by_side(topics, is_left)
    waiting = warehouse.read(OPEN, _open_columns(planned.pipeline, topics), version=planned.versions[OPEN])
    events = accepted_events(warehouse, planned.pipeline, topics, batches=[planned.batch_id]).unionAll(
        _events(waiting, planned.pipeline, side, place, is_open=True)
    )
    if planned.pipeline.has_compounds:
        events = mark_events(events, newest_revisions(warehouse, [planned.batch_id], planned.versions[OPEN]))
    if (corrected := planned.plan.corrected) is None:
        return events
    return events.unionAll(known_revisions(warehouse, events, topics, corrected.first, corrected.last))


def few_events(warehouse: Warehouse, planned: LedgerRow) -> pa.Table | None:
    """The rows of `batch_events` without Spark; None if they are more than few, or behind a rewind."""
    if planned.plan.corrected is not None:
        return None
    pipeline, topics = planned.pipeline, planned.topics
    left, right, waiting = map(Reading.few, _sources(warehouse, planned))
    if left is None or right is None or waiting is None:
        return None
    schema, new = event_schema(pipeline), zip(_SIDES, (left, right), strict=True)
    tables = [(*each, False) for each in new] + [(*each, True) for each in _by_side(waiting)]
    events = pa.concat_tables(_few_events(rows, topics, side, is_open, schema) for side, rows, is_open in tables)
    if not pipeline.has_compounds:
        return events
    # They are of the raw tables that were few.
    return mark_superseded(events, [events, *(few_revised(warehouse, planned) or ())])


def events_to_shuffle(
    warehouse: Warehouse, planned: LedgerRow
) -> tuple[list[tuple[int, Share]], Callable[[tuple[int, Share]], Iterator[pa.RecordBatch]], int]:
    """The rows of `batch_events` for the job's own workers: shares, each with the number of its source, a function that reads one, and the bytes of
    their files.

    Not for a pipeline with `compounds`, nor behind a rewind.
    """
    topics, schema, sources = planned.topics, event_schema(planned.pipeline), _sources(warehouse, planned)
    # A worker gets no warehouse.
    readers = [source.read for source in sources]

    def read(part: tuple[int, Share]) -> Iterator[pa.RecordBatch]:
        number, share = part
        for rows in readers[number](share):
            for side, its in _by_side(pa.Table.from_batches([rows])) if number == len(_SIDES) else [(_SIDES[number], rows)]:
                yield from _few_events(its, topics, side, number == len(_SIDES), schema).to_batches()

    shares = [(number, share) for number, source in enumerate(sources) for share in source.shares]
    return shares, read, sum(source.size for source in sources)


def _sources(warehouse: Warehouse, planned: LedgerRow) -> list[Reading]:
    """The batch's accepted rows of the left and the right raw table, and the open events."""
    pipeline, topics = planned.pipeline, planned.topics
    columns = raw_columns(pipeline, topics)
    made = in_key_order(pipeline, columns)
    landed = (
        warehouse.reading(raw_table(side), columns, batches=[planned.batch_id], where=has_no_problem, made=made)
        for side in pipeline.sides
    )
    return [*landed, warehouse.reading(OPEN, _open_columns(pipeline, topics), version=planned.versions[OPEN])]


def bucket_of_key(rows: pa.RecordBatch, key: Sequence[str], buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row, the same for all rows of a key in this process and those forked from it."""
    fields = [rows[name].to_numpy(zero_copy_only=False).tolist() for name in key]
    # Python's own hash of texts is several times faster than any that Arrow and NumPy could compute.
    return np.fromiter(map(hash, zip(*fields, strict=True)), np.int64, rows.num_rows) % buckets


def _by_side(waiting: pa.Table) -> list[tuple[int, pa.Table]]:
    is_left = pc.equal(waiting["side"], "left")
    return [(LEFT, waiting.filter(is_left)), (RIGHT, waiting.filter(pc.invert(is_left)))]


def _few_events(rows: pa.Table, topics: SideTopics, side: int, is_open: bool, schema: pa.Schema) -> pa.Table:
    given = {"side": side, "is_open": is_open, SUPERSEDED: False}
    if len(topics[side]) > 1:
        at = rows.schema.names.index("partition")
        rows = rows.set_column(at, "partition", pack(topics[side], rows["topic"], rows["partition"]))
    columns = [pa.repeat(given[field.name], rows.num_rows) if field.name in given else rows[field.name] for field in schema]
    return pa.table(columns, names=schema.names).cast(schema)


def accepted_up_to(tables: Tables, pipeline: Pipeline, topics: SideTopics, times: Window, at_most: int) -> pa.Table | None:
    """The rows of `accepted_events` of all batches without Spark, of a pipeline with `key_order: as_is` and no `compounds`; None if a side has more than
    `at_most`.
    """
    columns, schema, found = raw_columns(pipeline, topics), event_schema(pipeline), []
    for number, side in zip((LEFT, RIGHT), pipeline.sides, strict=True):
        rows = tables.rows_up_to(raw_table(side), at_most, columns, times, has_no_problem)
        if rows is None:
            return None
        found.append(_few_events(rows, topics, number, False, schema))
    return pa.concat_tables(found)


def raw_columns(pipeline: Pipeline, topics: SideTopics) -> list[str]:
    """The columns of raw rows that events are made of; the topic only where a side has several."""
    return [*pipeline.key, *_COLUMNS, *source_names(pipeline), *topic_column(topics)]


def _open_columns(pipeline: Pipeline, topics: SideTopics) -> list[str]:
    return [*raw_columns(pipeline, topics), "side"] + [REVERSED] * pipeline.is_unordered


def has_no_problem(column: Callable[[str], Any]) -> ds.Expression:
    """The condition for raw rows that are events."""
    return column("problem").is_null()


def accepted_events(
    warehouse: Warehouse,
    pipeline: Pipeline,
    topics: SideTopics,
    batches: Iterable[int],
    times: Window | None = None,
    made: InWorker | None = None,
) -> DataFrame:
    """The events of both raw tables without a problem, as new ones (`event_schema`), of these batches; `times`: with a timestamp in there.

    `topics`: those by which they are numbered. `made`: workers choose among them.
    """
    sides = accepted_rows(warehouse, pipeline, raw_columns(pipeline, topics), batches, times, made)
    numbered = zip((LEFT, RIGHT), topics, sides, strict=True)
    events = (_events(rows, pipeline, F.lit(number), placed(mine), is_open=False) for number, mine, rows in numbered)
    return reduce(DataFrame.unionAll, events)


def accepted_rows(
    warehouse: Warehouse,
    pipeline: Pipeline,
    columns: list[str],
    batches: Iterable[int],
    times: Window | None,
    made: InWorker | None = None,
) -> list[DataFrame]:
    """As `accepted_events`: columns of the rows of each raw table, their key fields in the pair's order, or what workers have `made` of these."""
    return [
        warehouse.read(
            raw_table(side),
            columns,
            batches=batches,
            times=times,
            where=has_no_problem,
            made=in_key_order(pipeline, columns, made),
        )
        for side in pipeline.sides
    ]


def known_revisions(warehouse: Warehouse, events: DataFrame, topics: SideTopics, first: int, last: int) -> DataFrame:
    """One more row (`event_schema`) for each event that a compound of the batches first..last, both inclusive, is named after.

    The row has no `ts`, the pair_id as payload, and the last revision as offset. It has the event's key, so it reaches the worker that
    decides that key. Events are found by their place, not by the compound's key: after a log was cut, other records have the same places.
    """
    place, there = ["side", "partition", "offset"], F.col("left_offset").isNotNull()
    of_side = [*place[1:], *topic_column(topics)]
    sides = [f"{side}_{name}" for side in ("left", "right") for name in of_side]
    rows = warehouse.read(COMPOUNDS, ["pair_id", "revision", *sides], batches=range(first, last + 1))
    left, right = (placed(mine, f"{side}_") for mine, side in zip(topics, ("left", "right"), strict=True))
    named = rows.select(
        "pair_id",
        "revision",
        F.when(there, LEFT).otherwise(RIGHT).alias("side"),
        F.when(there, left).otherwise(right).alias("partition"),
        F.coalesce("left_offset", "right_offset").alias("offset"),
    )
    known = named.groupBy(*place, "pair_id").agg(F.max("revision").cast("bigint").alias("revision"))
    found = events.join(known, place)
    nothing = {
        "side": F.lit(LEFT),
        "partition": F.lit(0),
        "ts": F.lit(None).cast("bigint"),
        "batch_id": F.lit(0).cast("bigint"),
    }
    given = nothing | {"offset": F.col("revision"), "payload": F.col("pair_id"), "is_open": F.lit(False)}
    return found.select(*(given.get(name, F.col(name)).alias(name) for name in events.columns))


def _events(rows: DataFrame, pipeline: Pipeline, side: Column, place: Column, is_open: bool) -> DataFrame:
    others = [name for name in _COLUMNS if name != "partition"]
    more = [REVERSED] * pipeline.is_unordered + source_names(pipeline)
    marks = [F.lit(False).alias(SUPERSEDED)] * pipeline.has_compounds
    given = (side.alias("side"), place.alias("partition"))
    return rows.select(*pipeline.key, *given, *others, F.lit(is_open).alias("is_open"), *more, *marks)


def by_key(events: DataFrame, pipeline: Pipeline, expected: int) -> DataFrame:
    """About `expected` events, packed, with the hash of their key; all events of a hash are neighbours in one task."""
    tasks = max(2, expected // EVENTS_A_TASK)
    key, places = pipeline.key, {"batch_id": _BATCH, "partition": _PARTITION, "is_open": _OPEN, "side": 0}
    if pipeline.is_unordered:
        places[REVERSED] = _REVERSED
    numbers = reduce(Column.__add__, (F.col(name).cast("bigint") * 2**place for name, place in places.items()))
    # Sorting by one number is several times cheaper than by texts. Keys with the same hash by chance are decided together.
    packed = events.select(
        *key,
        F.xxhash64(*key).alias(KEY_HASH),
        numbers.alias(PACKED),
        *("offset", "ts", "payload", *source_names(pipeline)),
        *[SUPERSEDED] * pipeline.has_compounds,
    )
    return packed.repartition(tasks, KEY_HASH).sortWithinPartitions(KEY_HASH)


def _unpack(packed: pa.Table, schema: pa.Schema) -> pa.Table:
    numbers = packed[PACKED]
    columns = {name: packed[name] for name in packed.schema.names}
    columns["side"] = pc.bit_wise_and(numbers, 1)
    for name, place in (("is_open", _OPEN), (REVERSED, _REVERSED)):
        if name in schema.names:
            columns[name] = pc.not_equal(pc.bit_wise_and(numbers, 2**place), 0)
    columns["partition"] = pc.bit_wise_and(pc.shift_right(numbers, _PARTITION), 2**31 - 1)
    columns["batch_id"] = pc.shift_right(numbers, _BATCH)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def decide_keys(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[tuple[pa.RecordBatch, pa.Table | None]]:
    """Yields the outcomes (`outcome_schema`) of a task of `by_key`, each batch with the compounds of its keys that consumers know already:
    `pair_id` and `revision`, None if there are none.
    """
    schema = event_schema(rules.pipeline)
    for together in complete_keys(batches, (KEY_HASH,), _ROWS_AT_ONCE, _BYTES_AT_ONCE):
        events, revisions = _split_revisions(together)
        for outcomes in outcome_batches(_unpack(events, schema), rules):
            yield outcomes, revisions
        # Otherwise these names would keep the rows alive while the next ones are read.
        del together, events


def _split_revisions(together: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The events, and the rows of `known_revisions` among them: those without a timestamp."""
    if not together["ts"].null_count:
        return together, None
    is_event = pc.is_valid(together["ts"])
    known = together.filter(pc.invert(is_event))
    return together.filter(is_event), pa.table({"pair_id": known["payload"], "revision": known["offset"]})


def complete_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...], rows_at_once: int, bytes_at_once: int
) -> Iterator[pa.Table]:
    """Regroups batches sorted by key into tables of whole keys, with about so many rows or bytes, or one larger key."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        cut = _start_of_last_key(batch, key)
        size += batch.nbytes
        # The last key of a batch may continue in the next one; all keys before it are complete.
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
