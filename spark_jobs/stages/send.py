"""Sends the messages of one topic: few of them from this process, more by tasks of Spark, one for each output partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.messages import messages_for
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
# Of an output partition. A batch's retractions (op "retract") come before its upserts, because a compacted topic keeps the last message of a key:
# the pair that takes an orphan's place rather than the retraction of the orphan.
_ORDER = ("batch_id", "op", "ts", "key", "value")


def send(warehouse: Warehouse, settings: Settings, run: PublishRun, route: Route) -> list[PartitionReport]:
    """Sends what the run has for its topic; what became of it, by partition. Raises JobProblem, BrokenInvariant."""
    batches = range(run.ledger_position + 1, run.target + 1)
    few = read_few_messages(warehouse, route, dict.fromkeys(batches, run.partitions), batches)
    return _send_in_tasks(warehouse, settings, run, route, batches) if few is None else _send_few(settings, run, few)


def _send_few(settings: Settings, run: PublishRun, messages: pa.Table) -> list[PartitionReport]:
    ordered = messages.take(pc.sort_indices(messages, sort_keys=[(name, "ascending", "at_start") for name in _ORDER]))

    def send(partition: int) -> PartitionReport:
        mine = ordered.filter(pc.equal(ordered["output_partition"], partition))
        return publish_partition(settings, run, partition, messages_for(partition, mine.to_batches()))

    # A transaction mostly waits for the broker.
    with ThreadPoolExecutor(max_workers=_PARTITIONS_AT_ONCE) as pool:
        # list() waits for all and raises the first error.
        return list(pool.map(send, range(run.partitions)))


def _send_in_tasks(
    warehouse: Warehouse, settings: Settings, run: PublishRun, route: Route, batches: range
) -> list[PartitionReport]:
    partitions = run.partitions
    messages = read_messages(warehouse, route, dict.fromkeys(batches, partitions), batches)
    # One row without a message for every partition, so that one without compounds also has a task, which moves its position.
    empty = warehouse.spark.range(partitions).selectExpr("int(id) AS output_partition", "bigint(null) AS batch_id")
    # Spark compares the first column alone as long as it differs, so a column with one value costs a second for a million rows.
    same = {"batch_id"} if len(batches) == 1 else set()
    order = [name for name in _ORDER if name not in same | (set() if route.corrections else {"op"})]
    rows = (
        messages.unionByName(empty, allowMissingColumns=True)
        .repartitionById(partitions, F.col("output_partition"))
        .sortWithinPartitions(*order)
        .mapInArrow(
            _sender(settings, run, warehouse.spark.conf.get(_SPECULATION, "false") == "true"), from_arrow_schema(_REPORT)
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


def _sender(settings: Settings, run: PublishRun, speculative: bool) -> Stage:
    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("publishing needs a Spark task: its partition id is the output partition")
        partition = task.partitionId()
        report, problem, retry = PartitionReport(partition, 0, {}, {}, []), None, True
        try:
            report = publish_partition(settings, run, partition, messages_for(partition, batches), speculative)
        except (JobProblem, BrokenInvariant) as error:
            # The driver gets the problem as a row: an exception would reach it as a page of stack traces.
            problem, retry = str(error), not isinstance(error, NeedsOperator | BrokenInvariant)
        answer = report._asdict() | {"problem": problem, "retry": retry}
        yield pa.RecordBatch.from_pylist([answer], schema=_REPORT)

    return send
