"""Sends the messages of one topic: few of them from this process, more by workers, one output partition at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.dead_letters import dead_letters_for, read_dead_letters, read_few_dead_letters
from spark_jobs.kafka.messages import Message, messages_for
from spark_jobs.kafka.positions import PublishRun
from spark_jobs.kafka.publisher import PartitionReport, publish_partition
from spark_jobs.kafka.routing import Route, read_messages, reading_of_messages
from spark_jobs.kafka.settings import Settings
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.local_shuffle import COMPRESSED_OF_A_BUCKET, ROWS_OF_A_BUCKET, Buckets, TooLarge, shuffled
from spark_jobs.spark.local_workers import has_workers, run_parts
from spark_jobs.spark.workers import Stage, are_for_own_workers, release_memory
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.reading import Reading
from spark_jobs.tables.warehouse import Warehouse

# A PartitionReport, and the problem that ended the work of its task.
_REPORT = pa.schema(
    {"partition": pa.int32(), "sent": pa.int64()}
    | dict.fromkeys(("acknowledged", "refused"), pa.map_(pa.int64(), pa.int64()))
    | {"too_large": pa.list_(pa.string()), "problem": pa.string(), "retry": pa.bool_()}
)
_SPECULATION = "spark.speculation"
_PARTITIONS_AT_ONCE = 8


# The messages in rows that are read for an output partition.
Messages = Callable[[int, Iterable[pa.RecordBatch]], Iterator[Message]]


class Outbox(NamedTuple):
    """What is to be sent to one topic. `few` reads without Spark, and returns None if they are more than few; `own` is for the job's own workers, None
    if only Spark can read them in their order. `order`: the columns by which the messages of a batch are sent.
    """

    batches: Sequence[int]
    few: Callable[[], pa.Table | None]
    own: Reading | None
    many: Callable[[], DataFrame]
    order: tuple[str, ...]
    messages: Messages


def compounds_of(warehouse: Warehouse, run: PublishRun, route: Route) -> Outbox:
    """The run's compounds for its topic."""
    batches = range(run.ledger_position + 1, run.target + 1)
    of_all = warehouse, route, dict.fromkeys(batches, run.partitions), batches
    reading = reading_of_messages(*of_all)
    # A batch's retractions (op "retract") come before its upserts, because a compacted topic keeps the last message of a key: the pair that takes an
    # orphan's place rather than the retraction of the orphan. A column with one value costs Spark a second for a million rows.
    order = (*(["op"] if route.corrections else []), "ts", "key", "value")
    few, many = (reading.few, reading.in_spark) if reading else (lambda: None, partial(read_messages, *of_all))
    return Outbox(batches, few, None if route.corrections else reading, many, order, messages_for)


def dead_letters_of(warehouse: Warehouse, run: PublishRun, batches: Sequence[int]) -> Outbox:
    """The dead letters of these batches."""
    of_all = warehouse, dict.fromkeys(batches, run.partitions), batches
    few, many = partial(read_few_dead_letters, *of_all), partial(read_dead_letters, *of_all)
    messages = partial(dead_letters_for, warehouse.pipeline.name)
    return Outbox(batches, few, None, many, ("topic", "partition", "offset"), messages)


def send(warehouse: Warehouse, settings: Settings, run: PublishRun, outbox: Outbox) -> list[PartitionReport]:
    """Sends what the run has for its topic; what became of it, by partition. Raises JobProblem, BrokenInvariant."""
    if (few := outbox.few()) is not None:
        return _send_few(settings, run, outbox, few)
    if outbox.own and has_workers() and are_for_own_workers(outbox.own.rows):
        reports = _send_by_own_workers(settings, run, outbox, outbox.own)
        if reports is not None:
            return reports
    return _send_in_tasks(warehouse, settings, run, outbox)


def _send_few(settings: Settings, run: PublishRun, outbox: Outbox, messages: pa.Table) -> list[PartitionReport]:
    ordered = _ordered(messages, outbox.order)

    def send(partition: int) -> PartitionReport:
        mine = ordered.filter(pc.equal(ordered["output_partition"], partition))
        return publish_partition(settings, run, partition, outbox.messages(partition, mine.to_batches()))

    # A transaction mostly waits for the broker.
    with ThreadPoolExecutor(max_workers=_PARTITIONS_AT_ONCE) as pool:
        # list() waits for all and raises the first error.
        return list(pool.map(send, range(run.partitions)))


def _ordered(messages: pa.Table, order: Iterable[str]) -> pa.Table:
    # As Spark orders them.
    keys = [(name, "ascending", "at_start") for name in ("batch_id", *order)]
    return messages.take(pc.sort_indices(messages, sort_keys=keys))


def _send_by_own_workers(
    settings: Settings, run: PublishRun, outbox: Outbox, reading: Reading
) -> list[PartitionReport] | None:
    """A worker orders and sends a partition, one bucket of messages after the other. None if one has so many bytes that no worker could hold it."""
    slots = _Slots.of(outbox.batches, reading.files, run.partitions)
    # A worker gets no warehouse.
    order, messages = outbox.order, outbox.messages

    def send(given: tuple[int, Buckets]) -> Iterator[pa.RecordBatch]:
        release_memory()
        partition, buckets = given
        mine = (_ordered(each, order) for each in buckets.read(slots.of_partition(partition)))
        yield _report(settings, run, partition, messages(partition, chain.from_iterable(map(pa.Table.to_batches, mine))))

    try:
        with shuffled(reading.shares, reading.read, slots.bucket_of, reading.columns) as buckets:
            parts = ((number, buckets.only(slots.of_partition(number))) for number in range(run.partitions))
            rows = pa.Table.from_batches(run_parts(parts, send), _REPORT).to_pylist(maps_as_pydicts="strict")
    except TooLarge as reason:
        print(f"Spark publishes these batches: {reason}")
        return None
    return _reports(rows, run.partitions)


class _Slots(NamedTuple):
    """Buckets of messages: one for each output partition, batch and portion of the time from `first` to `last`, in the order in which a partition is
    sent.
    """

    batches: Sequence[int]  # ascending, without a gap
    first: int  # epoch ms
    last: int  # epoch ms
    portions: int

    @classmethod
    def of(cls, batches: Sequence[int], files: Iterable[DataFile], partitions: int) -> _Slots:
        """For the rows of the files: so many portions that one has about 65,536 messages of the largest batch."""
        rows, size, edges = Counter[int | None](), Counter[int | None](), list[int]()
        for file in files:
            rows[file.first_batch] += file.rows
            size[file.first_batch] += file.size
            edges += [edge for edge in (file.first_ts, file.last_ts) if edge is not None]
        each = max(
            max(rows.values(), default=0) // ROWS_OF_A_BUCKET, max(size.values(), default=0) // COMPRESSED_OF_A_BUCKET
        )
        return cls(batches, min(edges, default=0), max(edges, default=0), 1 + each // partitions)

    def of_partition(self, partition: int) -> range:
        """The buckets of a partition."""
        count = len(self.batches) * self.portions
        return range(partition * count, (partition + 1) * count)

    def bucket_of(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The bucket of each message."""
        ts, batch = rows["ts"].to_numpy(), rows["batch_id"].to_numpy() - self.batches[0]
        # A file that does not say its times may have any.
        portion = np.clip((ts - self.first) / (self.last - self.first + 1) * self.portions, 0, self.portions - 1).astype(
            np.int64
        )
        return (rows["output_partition"].to_numpy().astype(np.int64) * len(self.batches) + batch) * self.portions + portion


def _send_in_tasks(warehouse: Warehouse, settings: Settings, run: PublishRun, outbox: Outbox) -> list[PartitionReport]:
    partitions, batches = run.partitions, outbox.batches
    messages = outbox.many()
    # One row without a message for every partition, so that one without compounds also has a task, which moves its position.
    empty = warehouse.spark.range(partitions).selectExpr("int(id) AS output_partition", "bigint(null) AS batch_id")
    rows = (
        messages.unionByName(empty, allowMissingColumns=True)
        .repartitionById(partitions, F.col("output_partition"))
        # Spark compares the first column alone as long as it differs, so a column with one value costs a second for a million rows.
        .sortWithinPartitions(*(["batch_id"] if len(batches) > 1 else []), *outbox.order)
        .mapInArrow(
            _sender(settings, run, outbox.messages, warehouse.spark.conf.get(_SPECULATION, "false") == "true"),
            from_arrow_schema(_REPORT),
        )
        .collect()
    )
    return _reports([row.asDict() for row in rows], partitions)


def _reports(rows: Iterable[Mapping[str, Any]], partitions: int) -> list[PartitionReport]:
    """The reports in rows of `_REPORT`. Raises the first problem."""
    found = []
    for row in rows:
        if row["problem"]:
            raise (JobProblem if row["retry"] else NeedsOperator)(row["problem"])
        found.append(PartitionReport(*(row[name] for name in PartitionReport._fields)))
    if sorted(report.partition for report in found) != list(range(partitions)):
        raise RuntimeError(
            f"{partitions} output partitions, but reports of {len(found)}: the position of the others did not move"
        )
    return found


def _report(
    settings: Settings, run: PublishRun, partition: int, messages: Iterable[Message], speculative: bool = False
) -> pa.RecordBatch:
    """Sends the messages of a partition; returns the report (`_REPORT`)."""
    report, problem, retry = PartitionReport(partition, 0, {}, {}, []), None, True
    try:
        report = publish_partition(settings, run, partition, messages, speculative)
    except (JobProblem, BrokenInvariant) as error:
        # The driver gets the problem as a row: an exception would reach it as a page of stack traces.
        problem, retry = str(error), not isinstance(error, NeedsOperator | BrokenInvariant)
    return pa.RecordBatch.from_pylist([report._asdict() | {"problem": problem, "retry": retry}], schema=_REPORT)


def _sender(settings: Settings, run: PublishRun, messages: Messages, speculative: bool) -> Stage:
    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("publishing needs a Spark task: its partition id is the output partition")
        partition = task.partitionId()
        yield _report(settings, run, partition, messages(partition, batches), speculative)

    return send
