"""Publish: send the compounds of every paired batch beyond the position to the output topic, exactly once.

    publish_compounds --pipeline include/pipelines/calls.yaml [--warehouse URI]

Records and position go out in one Kafka transaction an output partition; see spark_jobs/broker/publisher.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql import functions as F

from include.pipeline_config import Pipeline
from spark_jobs.broker.messages import Message, compound_message
from spark_jobs.broker.murmur2 import partitions_of
from spark_jobs.broker.offsets import partition_count
from spark_jobs.broker.publisher import Slot, SlotReport, publish_slot
from spark_jobs.broker.settings import BrokerProblem, Settings, admin_settings, kafka_settings
from spark_jobs.fault_points import fault_point
from spark_jobs.job import Counts, job_parser, run_job
from spark_jobs.pairing.conservation import BrokenInvariant
from spark_jobs.problems import NeedsOperator
from spark_jobs.session import expect_rows
from spark_jobs.storage.ledger import PAIRED, PUBLISHED, Ledger, LedgerRow
from spark_jobs.storage.tables import COMPOUNDS, Warehouse

MESSAGE_COLUMNS = (
    "slot INT, batch_id BIGINT, key BINARY, value BINARY, headers ARRAY<STRUCT<name: STRING, value: BINARY>>, ts BIGINT"
)
_REPORT = "partition INT, sent BIGINT, there MAP<BIGINT, BIGINT>, problem STRING, retry BOOLEAN"

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def main(warehouse: Warehouse) -> Counts:
    """Sends what is paired but not published; gives the number of records sent."""
    ledger, started = Ledger(warehouse), datetime.now(UTC)
    last = ledger.last_ids()
    copy, target = last[PUBLISHED], last[PAIRED]
    if target <= copy:
        return {}
    paired = [row for row in ledger.rows(copy + 1, target) if row.step == PAIRED]
    expect_rows(warehouse.spark, sum(row.counts["compounds"] for row in paired))
    reports = _send(warehouse, copy, target)
    fault_point("after_publish")
    there: Counter[int] = sum((Counter(report.there) for report in reports), Counter())
    _check(paired, there)
    ledger.append(
        *(row.next_step(PUBLISHED, started, counts={"compounds": there[row.batch_id], "position": target}) for row in paired)
    )
    sent = sum(report.sent for report in reports)
    return {"batch_id": target, "batches": len(paired), "compounds": sum(there.values()), "sent": sent}


def _check(paired: list[LedgerRow], there: Mapping[int, int]) -> None:
    """Every compound that was paired must be on the topic before the ledger says so."""
    for row in paired:
        if there.get(row.batch_id, 0) != row.counts["compounds"]:
            raise BrokenInvariant(
                f"batch {row.batch_id}: {row.counts['compounds']} compounds were paired, but {there.get(row.batch_id, 0)} "
                "published: was compound_events changed by hand?"
            )


def _send(warehouse: Warehouse, copy: int, target: int) -> list[SlotReport]:
    pipeline, settings = warehouse.pipeline, kafka_settings()
    slots = partition_count(AdminClient(admin_settings(settings)), pipeline.output_topic, settings)
    table_id = warehouse.table_id(COMPOUNDS)
    beyond = (F.col("batch_id") > copy) & (F.col("batch_id") <= target)
    messages = warehouse.read(COMPOUNDS).where(beyond).mapInArrow(to_messages(pipeline, slots), MESSAGE_COLUMNS)
    # One row without a message for every slot, so that a slot without compounds has a task, too, and moves its position.
    everyone = warehouse.spark.range(slots).selectExpr("int(id) AS slot").withColumn("batch_id", F.lit(None).cast("bigint"))
    rows = (
        messages.unionByName(everyone, allowMissingColumns=True)
        .repartitionById(slots, F.col("slot"))
        .sortWithinPartitions("batch_id", "ts", "key", "value")
        .mapInArrow(_sender(settings, pipeline, table_id, copy, target), _REPORT)
        .collect()
    )
    for row in rows:
        if row["problem"]:
            raise (BrokerProblem if row["retry"] else NeedsOperator)(row["problem"])
    if sorted(row["partition"] for row in rows) != list(range(slots)):
        raise RuntimeError(f"{slots} output partitions, but reports of {len(rows)}: the position of the others did not move")
    return [SlotReport(row["partition"], row["sent"], row["there"]) for row in rows]


def to_messages(pipeline: Pipeline, slots: int) -> Stage:
    """A stage from rows of compound_events to messages (`MESSAGE_COLUMNS`); the slot is the output partition."""
    key, payloads = pipeline.key, (pipeline.left.payload, pipeline.right.payload)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            messages = [compound_message(row, key, payloads) for row in batch.to_pylist()]
            headers = [[{"name": name, "value": value} for name, value in message.headers] for message in messages]
            columns = [
                pa.array(partitions_of([message.key for message in messages], slots), pa.int32()),
                batch.column("batch_id"),
                pa.array([message.key for message in messages], pa.binary()),
                pa.array([message.value for message in messages], pa.binary()),
                pa.array(headers, pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
                batch.column("ts"),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["slot", "batch_id", "key", "value", "headers", "ts"])

    return convert


def _sender(settings: Settings, pipeline: Pipeline, table_id: str, copy: int, target: int) -> Stage:
    name, topic = pipeline.name, pipeline.output_topic

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("publishing needs a Spark task: its partition id is the output partition")
        slot = Slot(name, topic, task.partitionId(), table_id, copy, target)
        report, problem, retry = SlotReport(slot.partition, 0, {}), None, True
        try:
            report = publish_slot(settings, slot, _messages(batches))
        except (BrokerProblem, NeedsOperator) as error:
            # Told to the driver as a row: an exception would reach it as a page of stack traces.
            problem, retry = str(error), not isinstance(error, NeedsOperator)
        row = [report.partition, report.sent, list(report.there.items()), problem, retry]
        types = (pa.int32(), pa.int64(), pa.map_(pa.int64(), pa.int64()), pa.string(), pa.bool_())
        columns = [pa.array([value], kind) for value, kind in zip(row, types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, ["partition", "sent", "there", "problem", "retry"])

    return send


def _messages(batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        for row in batch.to_pylist():
            if row["batch_id"] is None:
                continue
            headers: list[tuple[str, str | bytes | None]] = [(header["name"], header["value"]) for header in row["headers"]]
            yield Message(row["batch_id"], row["key"], row["value"], headers)


if __name__ == "__main__":
    run_job("publish_compounds", job_parser("publish_compounds", __doc__).parse_args(), main)
