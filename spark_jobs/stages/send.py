"""Sends the messages of one topic: few of them from this process, more by tasks of Spark, one for each output partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

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
from spark_jobs.kafka.routing import Route, read_few_messages, read_messages
from spark_jobs.kafka.settings import Settings
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.workers import Stage
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
    """What is to be sent to one topic. Both reading functions get batch_id -> number of partitions, and the batches; `few` reads without Spark,
    and returns None if they are more than few. `order`: the columns by which the messages of a batch are sent.
    """

    batches: Sequence[int]
    few: Callable[[Mapping[int, int], Sequence[int]], pa.Table | None]
    many: Callable[[Mapping[int, int], Sequence[int]], DataFrame]
    order: tuple[str, ...]
    messages: Messages


def compounds_of(warehouse: Warehouse, run: PublishRun, route: Route) -> Outbox:
    """The run's compounds for its topic."""
    few, many = partial(read_few_messages, warehouse, route), partial(read_messages, warehouse, route)
    # A batch's retractions (op "retract") come before its upserts, because a compacted topic keeps the last message of a key: the pair that takes an
    # orphan's place rather than the retraction of the orphan. A column with one value costs Spark a second for a million rows.
    order = (*(["op"] if route.corrections else []), "ts", "key", "value")
    return Outbox(range(run.ledger_position + 1, run.target + 1), few, many, order, messages_for)


def dead_letters_of(warehouse: Warehouse, batches: Sequence[int]) -> Outbox:
    """The dead letters of these batches."""
    few, many = partial(read_few_dead_letters, warehouse), partial(read_dead_letters, warehouse)
    messages = partial(dead_letters_for, warehouse.pipeline.name)
    return Outbox(batches, few, many, ("topic", "partition", "offset"), messages)


def send(warehouse: Warehouse, settings: Settings, run: PublishRun, outbox: Outbox) -> list[PartitionReport]:
    """Sends what the run has for its topic; what became of it, by partition. Raises JobProblem, BrokenInvariant."""
    few = outbox.few(dict.fromkeys(outbox.batches, run.partitions), outbox.batches)
    return _send_in_tasks(warehouse, settings, run, outbox) if few is None else _send_few(settings, run, outbox, few)


def _send_few(settings: Settings, run: PublishRun, outbox: Outbox, messages: pa.Table) -> list[PartitionReport]:
    # As Spark orders them.
    order = [(name, "ascending", "at_start") for name in ("batch_id", *outbox.order)]
    ordered = messages.take(pc.sort_indices(messages, sort_keys=order))

    def send(partition: int) -> PartitionReport:
        mine = ordered.filter(pc.equal(ordered["output_partition"], partition))
        return publish_partition(settings, run, partition, outbox.messages(partition, mine.to_batches()))

    # A transaction mostly waits for the broker.
    with ThreadPoolExecutor(max_workers=_PARTITIONS_AT_ONCE) as pool:
        # list() waits for all and raises the first error.
        return list(pool.map(send, range(run.partitions)))


def _send_in_tasks(warehouse: Warehouse, settings: Settings, run: PublishRun, outbox: Outbox) -> list[PartitionReport]:
    partitions, batches = run.partitions, outbox.batches
    messages = outbox.many(dict.fromkeys(batches, partitions), batches)
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
    for row in rows:
        if row["problem"]:
            raise (JobProblem if row["retry"] else NeedsOperator)(row["problem"])
    if sorted(row["partition"] for row in rows) != list(range(partitions)):
        raise RuntimeError(
            f"{partitions} output partitions, but reports of {len(rows)}: the position of the others did not move"
        )
    return [PartitionReport(*(row[name] for name in PartitionReport._fields)) for row in rows]


def _sender(settings: Settings, run: PublishRun, messages: Messages, speculative: bool) -> Stage:
    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("publishing needs a Spark task: its partition id is the output partition")
        partition = task.partitionId()
        report, problem, retry = PartitionReport(partition, 0, {}, {}, []), None, True
        try:
            report = publish_partition(settings, run, partition, messages(partition, batches), speculative)
        except (JobProblem, BrokenInvariant) as error:
            # The driver gets the problem as a row: an exception would reach it as a page of stack traces.
            problem, retry = str(error), not isinstance(error, NeedsOperator | BrokenInvariant)
        answer = report._asdict() | {"problem": problem, "retry": retry}
        yield pa.RecordBatch.from_pylist([answer], schema=_REPORT)

    return send
