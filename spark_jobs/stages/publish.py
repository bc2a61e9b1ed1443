"""Publishing: sends the compounds of every paired batch beyond the position to the output topic, exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark import TaskContext
from pyspark.sql import functions as F

from include.config.pipeline import BEFORE_PUBLISH
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.run import Counts
from spark_jobs.kafka.acknowledged import check_acknowledged, published_record
from spark_jobs.kafka.all_positions import look_at_positions
from spark_jobs.kafka.lost_positions import Begun, find_positions, tell_short_retention
from spark_jobs.kafka.message_rows import Stage, message_columns, messages_of, own_messages
from spark_jobs.kafka.offsets import OutputTopic, ends_written, output_topic
from spark_jobs.kafka.positions import Leg, check_same_topic, next_leg
from spark_jobs.kafka.publisher import SlotReport, publish_slot
from spark_jobs.kafka.settings import BrokerProblem, Settings, address, kafka_settings
from spark_jobs.quality.gate import held_back, refuse_held
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.integrity import check_tables
from spark_jobs.tables.ledger import PAIRED, PUBLISHED, PUBLISHING, Ledger, LedgerRow
from spark_jobs.tables.records import OutputState, StepCounts
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.warehouse import Warehouse

_REPORT = (
    "partition INT, sent BIGINT, read MAP<BIGINT, BIGINT>, acknowledged MAP<BIGINT, BIGINT>, refused MAP<BIGINT, BIGINT>, "
    "too_large ARRAY<STRING>, problem STRING, retry BOOLEAN"
)
_COUNTED = pa.map_(pa.int64(), pa.int64())
_REPORT_TYPES = (pa.int32(), pa.int64(), _COUNTED, _COUNTED, _COUNTED, pa.list_(pa.string()), pa.string(), pa.bool_())
_SHOWN = 20
# The position has the acknowledged number of each batch, and room for a few hundred of them.
_BATCHES_A_LEG = 100


class OperatorConsent(NamedTuple):
    """What the operator has accepted."""

    # The id of an output topic that was created again.
    topic: str | None = None
    # That messages may be sent twice because of lost positions.
    lost_positions: bool = False


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
    operator = OperatorConsent(accepted_topic, accepted_lost)
    todo, too_large = paired, list[str]()
    batch_id = paired[-1].batch_id if paired else last[PUBLISHED]
    counts = Counter({"batch_id": batch_id, "batches": len(paired), "compounds": 0, "sent": 0})
    while todo:
        published, reports = _publish(warehouse, ledger, todo, before, begun, operator)
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
    operator: OperatorConsent,
) -> tuple[list[LedgerRow], list[SlotReport]]:
    """Publishes as many of the batches as one transaction takes, and records them; returns their `published` rows and the slots' reports."""
    started = datetime.now(UTC)
    settings = kafka_settings()
    topic = output_topic(settings, warehouse.pipeline.output_topic)
    leg = plan_leg(warehouse, settings, topic, paired, before, begun, operator)
    mine = [row for row in paired if row.batch_id <= leg.target]
    begin(ledger, settings, leg, topic, mine, begun)
    reports = _send(warehouse, settings, leg)
    check_acknowledged(leg.topic, mine, reports)
    ends = ends_written(settings, leg.topic)
    rows = []
    for row in mine:
        done, state = published_record(row.batch_id, leg, reports, ends)
        rows.append(row.next_step(PUBLISHED, started, done, output=state))
    ledger.append(*rows)
    return rows, reports


def plan_leg(
    warehouse: Warehouse,
    settings: Settings,
    topic: OutputTopic,
    paired: list[LedgerRow],
    before: LedgerRow | None,
    begun: list[LedgerRow],
    operator: OperatorConsent,
) -> Leg:
    """Reads the positions of all partitions and plans what to send; raises NeedsOperator if nothing may be sent.

    `begun`: the `publishing` rows beyond the ledger's copy.
    """
    pipeline = warehouse.pipeline
    whole = Leg(
        pipeline=pipeline.name,
        topic=pipeline.output_topic,
        topic_id=topic.topic_id,
        accepted=operator.topic == topic.topic_id,
        table_id=warehouse.table_id(COMPOUNDS),
        slots=topic.partitions,
        copy=before.batch_id if before else 0,
        target=paired[-1].batch_id,
        largest=topic.largest,
    )
    # Kafka forgets positions together with the topic, so the ledger remembers which topic it was.
    if before:
        check_same_topic(whole, before.output_state.topic_id)
    try:
        positions = look_at_positions(settings, whole.group, whole.topic, whole.slots)
    except KafkaException as error:
        problem = error.args[0]
        raise BrokerProblem(
            f"positions on {whole.topic} at {address(settings)} cannot be read: {problem.str()} ({problem.name()}); nothing was sent"
        ) from None
    known = Begun(row for row in begun if row.batch_id > whole.copy and _is_on(row, topic))
    forgotten = [number for number, position in positions.items() if position is None and number < known.slots]
    if forgotten:
        found = find_positions(warehouse, settings, whole, known, forgotten, operator.lost_positions)
        whole = whole._replace(found=tuple(found.items()))
    leg = next_leg(whole, positions)
    return leg._replace(target=min(leg.target, paired[:_BATCHES_A_LEG][-1].batch_id))


def begin(
    ledger: Ledger, settings: Settings, leg: Leg, topic: OutputTopic, paired: list[LedgerRow], begun: list[LedgerRow]
) -> None:
    """Records where the output partitions end, once for each batch, before its first message is sent."""
    known = Begun(row for row in begun if row.output_state.slots == leg.slots and _is_on(row, topic))
    new = [row for row in paired if row.batch_id not in known.batch_ids]
    kept_minutes = tell_short_retention(settings, ledger.warehouse.pipeline)
    if new:
        state = OutputState(
            leg.topic_id, leg.slots, ends=ends_written(settings, leg.topic), positions_kept_minutes=kept_minutes
        )
        rows = [row.next_step(PUBLISHING, datetime.now(UTC), StepCounts(), output=state) for row in new]
        ledger.append(*rows, among=f".{leg.slots}.{leg.topic_id}")


def _is_on(row: LedgerRow, topic: OutputTopic) -> bool:
    return row.output_state.topic_id == topic.topic_id


def _send(warehouse: Warehouse, settings: Settings, leg: Leg) -> list[SlotReport]:
    pipeline, slots = warehouse.pipeline, leg.slots
    batches = range(leg.copy + 1, leg.target + 1)
    messages = messages_of(warehouse.read(COMPOUNDS, message_columns(pipeline), batches=batches), pipeline, slots)
    # One row without a message for every slot, so that a slot without compounds also has a task, which moves its position.
    empty = warehouse.spark.range(slots).selectExpr("int(id) AS slot").withColumn("batch_id", F.lit(None).cast("bigint"))
    rows = (
        messages.unionByName(empty, allowMissingColumns=True)
        .repartitionById(slots, F.col("slot"))
        .sortWithinPartitions("batch_id", "ts", "key", "value")
        .mapInArrow(_sender(settings, leg), _REPORT)
        .collect()
    )
    for row in rows:
        if row["problem"]:
            raise (JobProblem if row["retry"] else NeedsOperator)(row["problem"])
    if sorted(row["partition"] for row in rows) != list(range(slots)):
        raise RuntimeError(f"{slots} output partitions, but reports of {len(rows)}: the position of the others did not move")
    return [SlotReport(*(row[name] for name in SlotReport._fields)) for row in rows]


def _sender(settings: Settings, leg: Leg) -> Stage:
    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("publishing needs a Spark task: its partition id is the output partition")
        slot = task.partitionId()
        report, problem, retry = SlotReport(slot, 0, {}, {}, {}, []), None, True
        try:
            report = publish_slot(settings, leg, slot, own_messages(batches, slot))
        except (JobProblem, BrokenInvariant) as error:
            # The driver gets the problem as a row: an exception would reach it as a page of stack traces.
            problem, retry = str(error), not isinstance(error, NeedsOperator | BrokenInvariant)
        values = [list(value.items()) if isinstance(value, dict) else value for value in report]
        columns = [pa.array([value], kind) for value, kind in zip([*values, problem, retry], _REPORT_TYPES, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, [*SlotReport._fields, "problem", "retry"])

    return send
