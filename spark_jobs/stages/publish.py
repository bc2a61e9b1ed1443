"""Publishing: sends the compounds of every paired batch beyond the position to the output topic, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from include.config.pipeline import BEFORE_PUBLISH, JSON
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.formats.registry import registry_settings
from spark_jobs.job.run import Counts
from spark_jobs.kafka.fencing import fence_and_read_positions
from spark_jobs.kafka.lost_positions import UnfinishedPublication, recover_positions
from spark_jobs.kafka.messages import Schemas, messages_for, read_compounds, read_few_compounds
from spark_jobs.kafka.offsets import ends_written
from spark_jobs.kafka.output_topic import OutputTopic, output_topic, positions_kept_minutes
from spark_jobs.kafka.positions import PublishRun, check_same_topic, next_run
from spark_jobs.kafka.publisher import (
    PartitionReport,
    check_acknowledged,
    check_there,
    publish_partition,
    published_record,
)
from spark_jobs.kafka.settings import BrokerProblem, Settings, address, kafka_settings
from spark_jobs.quality.gate import held_back, refuse_held
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.workers import Stage
from spark_jobs.tables.integrity import check_tables
from spark_jobs.tables.ledger import PAIRED, PUBLISHED, PUBLISHING, Ledger, LedgerRow
from spark_jobs.tables.output_schemas import OutputSchemas
from spark_jobs.tables.records import OutputState, StepCounts
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.warehouse import Warehouse

# A PartitionReport, and the problem that ended the work of its task.
_REPORT = pa.schema(
    {"partition": pa.int32(), "sent": pa.int64()}
    | dict.fromkeys(("acknowledged", "refused"), pa.map_(pa.int64(), pa.int64()))
    | {"too_large": pa.list_(pa.string()), "problem": pa.string(), "retry": pa.bool_()}
)
_SPECULATION = "spark.speculation"
_SHOWN = 20
_PARTITIONS_AT_ONCE = 8
# The position has the acknowledged number of each batch, and room for a few hundred of them.
_BATCHES_A_RUN = 100


def publish_batches(
    warehouse: Warehouse, accepted_topic: str | None = None, released: int = 0, accepted_lost: bool = False
) -> Counts:
    """Publishes the paired batches that are not published yet; returns the counts.

    `accepted_topic`: the id of an output topic that was created again and that the operator accepts. `released`: with the gate
    before_publish, batches up to this one are published even if they failed their checks. `accepted_lost`: messages of partitions whose
    positions have expired may be sent again if they cannot be found. Raises NeedsOperator if the topic refused compounds for their size.
    """
    ledger = Ledger(warehouse)
    last = ledger.last_ids()
    if last[PAIRED] <= last[PUBLISHED]:
        return {}
    rows = ledger.rows(last[PUBLISHED], last[PAIRED])
    check_tables(warehouse, rows[-1])
    paired = [row for row in rows if row.step == PAIRED and row.batch_id > last[PUBLISHED]]
    held = held_back(paired, rows, released) if warehouse.pipeline.quality.gate == BEFORE_PUBLISH else None
    paired = [row for row in paired if held is None or row.batch_id < held.batch_id]
    before = next((row for row in rows if row.step == PUBLISHED), None)
    begun = [row for row in rows if row.step == PUBLISHING and row.batch_id > last[PUBLISHED]]
    todo, too_large = paired, list[str]()
    batch_id = paired[-1].batch_id if paired else last[PUBLISHED]
    counts = Counter({"batch_id": batch_id, "batches": len(paired), "compounds": 0, "sent": 0})
    while todo:
        published, reports = _publish(warehouse, ledger, todo, before, begun, accepted_topic, accepted_lost)
        before, todo = published[-1], todo[len(published) :]
        counts["compounds"] += sum(row.published.compounds for row in published)
        counts["sent"] += sum(report.sent for report in reports)
        counts["refused"] += sum(row.published.refused for row in published)
        too_large += (pair_id for report in reports for pair_id in report.too_large)
    # The others are published and recorded: the next run continues behind them.
    if counts["refused"]:
        raise NeedsOperator(
            f"{counts['refused']} compounds are larger than {warehouse.pipeline.output_topic} takes and were left out for good, all "
            f"others are published: {', '.join(sorted(too_large)[:_SHOWN])}; raise the topic's max.message.bytes before more come"
        )
    if held:
        refuse_held(warehouse.pipeline.name, held, rows)
    return {name: counts[name] for name in ("batch_id", "batches", "compounds", "sent")}


def _publish(
    warehouse: Warehouse,
    ledger: Ledger,
    paired: list[LedgerRow],
    before: LedgerRow | None,
    begun: list[LedgerRow],
    accepted_topic: str | None,
    accepted_lost: bool,
) -> tuple[list[LedgerRow], list[PartitionReport]]:
    """Publishes as many of the batches as one run takes, and records them; returns their `published` rows and the partitions' reports."""
    started = datetime.now(UTC)
    settings = kafka_settings()
    topic = output_topic(settings, warehouse.pipeline.output_topic)
    run = plan_run(warehouse, settings, topic, paired, before, begun, accepted_topic, accepted_lost)
    mine = [row for row in paired if row.batch_id <= run.target]
    # Once a part of a batch is sent, the position is behind all of it.
    check_there(mine, warehouse.count_rows(COMPOUNDS, range(run.ledger_position + 1, run.target + 1)))
    schemas = _schemas(warehouse, mine, begun)
    begin(ledger, settings, run, mine, begun)
    reports = _send(warehouse, settings, run, schemas)
    check_acknowledged(run.topic, mine, reports)
    ends, rows = ends_written(settings, run.topic), []
    for row in mine:
        done, state = published_record(row.batch_id, run, reports, ends)
        rows.append(row.next_step(PUBLISHED, started, done, output=state))
    ledger.append(*rows)
    return rows, reports


def plan_run(
    warehouse: Warehouse,
    settings: Settings,
    topic: OutputTopic,
    paired: list[LedgerRow],
    before: LedgerRow | None,
    begun: list[LedgerRow],
    accepted_topic: str | None,
    accepted_lost: bool,
) -> PublishRun:
    """Reads the positions of all partitions and plans what to send; raises NeedsOperator if nothing may be sent.

    `begun`: the `publishing` rows beyond the ledger's copy.
    """
    pipeline = warehouse.pipeline
    whole = PublishRun(
        pipeline=pipeline.name,
        topic=pipeline.output_topic,
        topic_id=topic.topic_id,
        accepts_new_topic=accepted_topic == topic.topic_id,
        table_id=warehouse.table_id(COMPOUNDS),
        partitions=topic.partitions,
        ledger_position=before.batch_id if before else 0,
        target=paired[-1].batch_id,
        largest=topic.largest,
    )
    # Kafka forgets positions together with the topic, so the ledger remembers which topic it was.
    if before and not whole.accepts_new_topic:
        check_same_topic(whole.topic, whole.topic_id, before.output_state.topic_id, before.batch_id)
    try:
        positions = fence_and_read_positions(settings, whole.group, whole.topic, whole.partitions)
    except KafkaException as error:
        problem = error.args[0]
        raise BrokerProblem(
            f"positions on {whole.topic} at {address(settings)} cannot be read: {problem.str()} ({problem.name()}); nothing was sent"
        ) from None
    mine = (row for row in begun if row.output_state.topic_id == whole.topic_id)
    known = UnfinishedPublication(row for row in mine if row.batch_id > whole.ledger_position)
    forgotten = [number for number, position in positions.items() if position is None and number < known.partitions]
    if forgotten:
        recovered = recover_positions(warehouse, whole, known, forgotten, accepted_lost)
        whole = whole._replace(recovered=tuple(recovered.items()))
    run = next_run(whole, positions)
    return run._replace(target=min(run.target, paired[:_BATCHES_A_RUN][-1].batch_id))


def _schemas(warehouse: Warehouse, paired: list[LedgerRow], begun: list[LedgerRow]) -> Schemas:
    """The schema of each batch that is not sent as JSON. A batch of which a part may be sent keeps what it was begun with.

    Only for others is the registry asked; raises RegistryProblem and NeedsOperator as `register_output`.
    """
    known = {row.batch_id for row in begun}
    new, kept = [row.batch_id for row in paired if row.batch_id not in known], OutputSchemas(warehouse)
    if new:
        schema = None
        if warehouse.pipeline.output_format != JSON:
            # Most pipelines publish JSON, and their jobs do without what this imports.
            from spark_jobs.formats.registration import register_output

            schema = register_output(warehouse.pipeline, registry_settings())
        kept.note(min(new), schema)
    return kept.of(row.batch_id for row in paired)


def begin(ledger: Ledger, settings: Settings, run: PublishRun, paired: list[LedgerRow], begun: list[LedgerRow]) -> None:
    """Records where the output partitions end, once for each batch, before its first message is sent."""
    mine = (row for row in begun if row.output_state.topic_id == run.topic_id)
    known = UnfinishedPublication(row for row in mine if row.output_state.partitions == run.partitions)
    new = [row for row in paired if row.batch_id not in known.batch_ids]
    kept_minutes = positions_kept_minutes(settings, ledger.warehouse.pipeline)
    if new:
        ends = ends_written(settings, run.topic)
        state = OutputState(run.topic_id, run.partitions, ends=ends, positions_kept_minutes=kept_minutes)
        rows = [row.next_step(PUBLISHING, datetime.now(UTC), StepCounts(), output=state) for row in new]
        ledger.append(*rows, among=f".{run.partitions}.{run.topic_id}")


def _send(warehouse: Warehouse, settings: Settings, run: PublishRun, schemas: Schemas) -> list[PartitionReport]:
    batches = range(run.ledger_position + 1, run.target + 1)
    few = read_few_compounds(warehouse, dict.fromkeys(batches, run.partitions), batches, schemas)
    return _send_in_tasks(warehouse, settings, run, batches, schemas) if few is None else _send_few(settings, run, few)


def _send_few(settings: Settings, run: PublishRun, messages: pa.Table) -> list[PartitionReport]:
    # As Spark orders them.
    order = [(name, "ascending", "at_start") for name in ("batch_id", "ts", "key", "value")]
    ordered = messages.take(pc.sort_indices(messages, sort_keys=order))

    def send(partition: int) -> PartitionReport:
        mine = ordered.filter(pc.equal(ordered["output_partition"], partition))
        return publish_partition(settings, run, partition, messages_for(partition, mine.to_batches()))

    # A transaction mostly waits for the broker.
    with ThreadPoolExecutor(max_workers=_PARTITIONS_AT_ONCE) as pool:
        # list() waits for all and raises the first error.
        return list(pool.map(send, range(run.partitions)))


def _send_in_tasks(
    warehouse: Warehouse, settings: Settings, run: PublishRun, batches: range, schemas: Schemas
) -> list[PartitionReport]:
    partitions = run.partitions
    messages = read_compounds(warehouse, dict.fromkeys(batches, partitions), batches, schemas=schemas)
    # One row without a message for every partition, so that one without compounds also has a task, which moves its position.
    empty = warehouse.spark.range(partitions).selectExpr("int(id) AS output_partition", "bigint(null) AS batch_id")
    rows = (
        messages.unionByName(empty, allowMissingColumns=True)
        .repartitionById(partitions, F.col("output_partition"))
        # Spark compares the first column alone as long as it differs, so a column with one value costs a second for a million rows.
        .sortWithinPartitions(*(["batch_id"] if len(batches) > 1 else []), "ts", "key", "value")
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
