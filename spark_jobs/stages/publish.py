"""Publishing: sends the compounds and dead letters of every paired batch beyond the position to the pipeline's topics, exactly once.

Each topic has transactions, positions and a row in the ledger of its own. All positions are read before anything is sent, and the topics are
sent to in one order, so that a run that follows a crash finds none of them further than the output topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import KafkaException

from include.config.pipeline import BEFORE_PUBLISH, JSON
from spark_jobs.formats.registry import registry_settings
from spark_jobs.job.run import Counts
from spark_jobs.kafka.dead_letters import check_policy
from spark_jobs.kafka.fencing import fence_and_read_positions
from spark_jobs.kafka.lost_positions import UnfinishedPublication, recover_positions
from spark_jobs.kafka.messages import Schemas
from spark_jobs.kafka.offsets import ends_written
from spark_jobs.kafka.output_topic import OutputTopic, output_topic, positions_kept_minutes
from spark_jobs.kafka.positions import PublishRun, check_same_topic, next_run
from spark_jobs.kafka.publisher import check_acknowledged, check_there, published_record
from spark_jobs.kafka.routing import ExpectedMessages, Route, corrections_in, expected_messages
from spark_jobs.kafka.settings import BrokerProblem, Settings, address, kafka_settings
from spark_jobs.quality.gate import held_back, refuse_held
from spark_jobs.stages.publish_rejected import due_dead_letters, publish_rejected
from spark_jobs.stages.send import compounds_of, send
from spark_jobs.stages.sent import SentToTopic, counts_of, refuse_too_large
from spark_jobs.tables.batch_settings import BatchSettings, output_of
from spark_jobs.tables.delta_log import mark_format
from spark_jobs.tables.integrity import check_tables
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    ALL_PUBLICATIONS,
    PAIRED,
    PUBLISHED,
    PUBLISHED_ORPHANS,
    PUBLISHED_REJECTED,
    PUBLISHING,
    LedgerRow,
)
from spark_jobs.tables.output_schemas import OutputSchemas, keep_key_schema
from spark_jobs.tables.records import OutputState, StepCounts
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER
from spark_jobs.tables.warehouse import Warehouse

# The position has the acknowledged number of each batch, and room for a few hundred of them.
_BATCHES_A_RUN = 100


class LastPublished(NamedTuple):
    """The last published batch, 0 before the first, and what the ledger has of it: topic -> row."""

    batch_id: int = 0
    rows: Mapping[str, LedgerRow] = MappingProxyType({})

    @staticmethod
    def of(rows: Iterable[LedgerRow]) -> LastPublished:
        """From rows of the last published batch."""
        mine = {row.published_to: row for row in rows if row.step in ALL_PUBLICATIONS}
        return LastPublished(max((row.batch_id for row in mine.values()), default=0), mine)


class Acceptances(NamedTuple):
    """What the operator accepts: `topics`, the ids of topics that were created again; `lost`, that messages of partitions whose positions have expired
    are sent again if they cannot be found.
    """

    topics: tuple[str, ...] = ()
    lost: bool = False


def publish_batches(
    warehouse: Warehouse, accepted_topic: str | None = None, released: int = 0, accepted_lost: bool = False
) -> Counts:
    """Publishes the paired batches that are not published yet; returns the counts.

    `accepted_topic`: the id of an output topic that was created again and that the operator accepts; of several, with commas between.
    `released`: with the gate before_publish, batches up to this one are published even if they failed their checks. `accepted_lost`:
    messages of partitions whose positions have expired may be sent again if they cannot be found. Raises NeedsOperator if a topic refused
    messages for their size.
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
    before = LastPublished.of(row for row in rows if row.batch_id == last[PUBLISHED])
    begun = [row for row in rows if row.step == PUBLISHING and row.batch_id > last[PUBLISHED]]
    accepted = Acceptances(tuple(filter(None, (accepted_topic or "").split(","))), accepted_lost)
    todo, done = paired, list[SentToTopic]()
    batch_id = paired[-1].batch_id if paired else last[PUBLISHED]
    while todo:
        sent = _publish(warehouse, ledger, _alike(todo), before, begun, accepted)
        todo = todo[len(sent[0].rows) :]
        before = LastPublished.of(each.rows[-1] for each in sent)
        done += sent
    # What was not refused is published and recorded: the next run continues behind it.
    refuse_too_large(done)
    if held:
        refuse_held(warehouse.pipeline.name, held, rows)
    return {"batch_id": batch_id, "batches": len(paired)} | counts_of(done)


def _alike(paired: list[LedgerRow]) -> list[LedgerRow]:
    """The first of the batches, as many as go to the same topics with the same fields."""
    wanted = output_of(paired[0].pipeline)
    return list(takewhile(lambda row: output_of(row.pipeline) == wanted, paired))


def _publish(
    warehouse: Warehouse,
    ledger: Ledger,
    paired: list[LedgerRow],
    before: LastPublished,
    begun: list[LedgerRow],
    accepted: Acceptances,
) -> list[SentToTopic]:
    """Publishes as many of the batches, which are alike, as one run takes, and records them; what was sent to each topic."""
    started = datetime.now(UTC)
    settings = kafka_settings(warehouse.pipeline.output_connection)
    topics = [output_topic(settings, topic) for topic in paired[0].pipeline.output_topics]
    for topic in topics:
        check_policy(topic.name, topic.name == paired[0].pipeline.output_rejected_topic and topic.compacted)
    runs = [plan_run(warehouse, settings, topic, paired, before, begun, accepted) for topic in topics]
    # One that has to be finished with fewer partitions ends earlier than the others.
    target = min(run.target for run in runs)
    runs = [run._replace(target=target, furthest=paired[-1].batch_id) for run in runs]
    mine = [row for row in paired if row.batch_id <= target]
    # Once a part of a batch is sent, the position is behind all of it.
    check_there(mine, warehouse.count_rows(COMPOUNDS, range(before.batch_id + 1, target + 1)))
    corrections = corrections_in(mine)
    # What is corrected was published by earlier batches, whose settings may have been others.
    known = ledger.batch_settings() if corrections else BatchSettings.of((row.batch_id, row.config) for row in mine)
    rejected = [run for run in runs if run.step == PUBLISHED_REJECTED]
    of_compounds = [run for run in runs if run.step != PUBLISHED_REJECTED]
    routes = [Route(run.topic, known, corrections=corrections) for run in of_compounds]
    expected = [expected_messages(warehouse, route, mine) for route in routes]
    # Nor may a compound go to no topic, or to two.
    check_there(mine, {row.batch_id: sum(each[row.batch_id].compounds for each in expected) for row in mine})
    keep_key_schema(warehouse, was_sent=bool(before.batch_id or begun))
    letters = due_dead_letters(warehouse, mine, ledger.rewinds()) if rejected else None
    schemas = _schemas(warehouse, mine, begun)
    if letters:
        # Older versions do not know the step.
        mark_format(warehouse.store(LEDGER))
    for run in runs:
        begin(ledger, settings, run, mine, begun)
    ways = zip(of_compounds, routes, expected, strict=True)
    sent = [_publish_to(warehouse, settings, run, to._replace(schemas=schemas), due, mine, started) for run, to, due in ways]
    sent += [publish_rejected(warehouse, settings, run, letters, mine, started) for run in rejected if letters]
    # In one commit, which the rows of the output topic, the last ones, give its name.
    ledger.append(*(row for each in reversed(sent) for row in each.rows))
    return sent


def _publish_to(
    warehouse: Warehouse,
    settings: Settings,
    run: PublishRun,
    route: Route,
    expected: Mapping[int, ExpectedMessages],
    paired: list[LedgerRow],
    started: datetime,
) -> SentToTopic:
    """Sends to one topic what is `expected` of each batch; the rows are not in the ledger yet."""
    reports = send(warehouse, settings, run, compounds_of(warehouse, run, route))
    check_acknowledged(run.topic, expected, reports)
    ends, rows = ends_written(settings, run.topic), []
    for row in paired:
        done, state = published_record(row.batch_id, run, expected[row.batch_id], reports, ends)
        rows.append(row.next_step(run.step, started, done, output=state))
    return SentToTopic(run.topic, run.step, reports, rows)


def plan_run(
    warehouse: Warehouse,
    settings: Settings,
    topic: OutputTopic,
    paired: list[LedgerRow],
    before: LastPublished,
    begun: list[LedgerRow],
    accepted: Acceptances,
) -> PublishRun:
    """Reads the positions of all partitions and plans what to send; raises NeedsOperator if nothing may be sent.

    `begun`: the `publishing` rows beyond the ledger's copy.
    """
    pipeline, last = paired[0].pipeline, before.rows.get(topic.name)
    is_rejected = topic.name == pipeline.output_rejected_topic
    step = PUBLISHED if topic.name == pipeline.output_topic else PUBLISHED_REJECTED if is_rejected else PUBLISHED_ORPHANS
    whole = PublishRun(
        pipeline=pipeline.name,
        topic=topic.name,
        topic_id=topic.topic_id,
        accepts_new_topic=topic.topic_id in accepted.topics,
        table_id=warehouse.table_id(COMPOUNDS),
        partitions=topic.partitions,
        ledger_position=before.batch_id,
        target=paired[-1].batch_id,
        largest=topic.largest,
        step=step,
        joins=step != PUBLISHED and last is None,
    )
    # Kafka forgets positions together with the topic, so the ledger remembers which topic it was.
    if last and not whole.accepts_new_topic:
        check_same_topic(whole.topic, whole.topic_id, last.output_state.topic_id, last.batch_id)
    try:
        positions = fence_and_read_positions(settings, whole)
    except KafkaException as error:
        problem = error.args[0]
        raise BrokerProblem(
            f"positions on {whole.topic} at {address(settings)} cannot be read: {problem.str()} ({problem.name()}); nothing was sent"
        ) from None
    mine = (row for row in begun if row.output_state.topic_id == whole.topic_id)
    known = UnfinishedPublication(row for row in mine if row.batch_id > whole.ledger_position)
    forgotten = [number for number, position in positions.items() if position is None and number < known.partitions]
    if forgotten:
        recovered = recover_positions(warehouse, whole, known, forgotten, accepted.lost)
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

            # The fields are those of the batches' plans, as in JSON. Of the format the file decides: to change it is the remedy for a refused schema.
            fields = paired[0].pipeline.output_fields
            schema = register_output(replace(warehouse.pipeline, output_fields=fields), registry_settings())
        kept.note(min(new), schema)
    return kept.of(row.batch_id for row in paired)


def begin(ledger: Ledger, settings: Settings, run: PublishRun, paired: list[LedgerRow], begun: list[LedgerRow]) -> None:
    """Records where the output partitions end, once for each batch, before its first message is sent."""
    mine = (row for row in begun if row.output_state.topic_id == run.topic_id)
    known = UnfinishedPublication(row for row in mine if row.output_state.partitions == run.partitions)
    new = [row for row in paired if row.batch_id not in known.batch_ids]
    # It is the same for all topics.
    kept_minutes = positions_kept_minutes(settings, ledger.warehouse.pipeline) if run.is_main else None
    if new:
        ends = ends_written(settings, run.topic)
        state = OutputState(run.topic_id, run.partitions, ends=ends, positions_kept_minutes=kept_minutes)
        rows = [row.next_step(PUBLISHING, datetime.now(UTC), StepCounts(), output=state) for row in new]
        ledger.append(*rows, among=f".{run.partitions}.{run.topic_id}")
