"""How far each output partition of a topic is published: what is committed in Kafka, whether to trust it, and what is left to send.

A position is the committed offset (a batch_id) of group `<pipeline>.publisher` on an output partition. Its metadata is
`<table id> <partitions> <topic id> <batch>:<records> …`: the table that was published, how many partitions its keys were spread over, the
topic, and the acknowledged records of each batch that the ledger did not yet call published. Where messages were left out because they were
larger than the topic takes, `<limit` follows the records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S
from spark_jobs.tables.ledger_rows import PUBLISHED

_METADATA = re.compile(r"(\S+) (\d{1,19}) (\S+)((?: \d{1,19}:\d{1,19}(?:<\d{1,19})?)*)", re.ASCII)
_NONE: Mapping[int, int] = MappingProxyType({})


class Position(NamedTuple):
    """The last batch published to one output partition."""

    batch_id: int
    table_id: str
    partitions: int = 0  # that keys were spread over
    topic_id: str = ""
    acknowledged: Mapping[int, int] = _NONE  # batch_id -> records that the broker acknowledged
    limits: Mapping[int, int] = _NONE  # batch_id -> bytes; larger messages of the batch were left out

    def metadata(self) -> str:
        """The text beside the offset; a broker takes up to 4096 bytes of it.

        >>> Position(7, "a1", 4, "Xy", {6: 20, 7: 5}, {7: 1000}).metadata()
        'a1 4 Xy 6:20 7:5<1000'
        """
        limits = {batch_id: f"<{limit}" for batch_id, limit in self.limits.items()}
        counts = [
            f"{number}:{self.acknowledged.get(number, 0)}{limits.get(number, '')}"
            for number in sorted({*self.acknowledged, *limits})
        ]
        return " ".join([self.table_id, str(self.partitions), self.topic_id, *counts])


def read_position(batch_id: int, metadata: str | None) -> Position:
    """The inverse of `metadata`; a text in another form becomes the position of a table that does not exist.

    >>> read_position(7, "a1 4 Xy 6:20 7:5<1000") == Position(7, "a1", 4, "Xy", {6: 20, 7: 5}, {7: 1000})
    True
    >>> read_position(7, "a1").table_id
    "'a1'"
    """
    found = _METADATA.fullmatch(metadata or "")
    if not found:
        # In quotes, for the text may be the id of our table.
        return Position(batch_id, repr(metadata))
    table_id, partitions, topic_id, counts = found.groups()
    batches = [re.split("[:<]", word) for word in counts.split()]
    acknowledged = {int(batch[0]): int(batch[1]) for batch in batches}
    limits = {int(batch[0]): int(batch[2]) for batch in batches if len(batch) > 2}
    return Position(batch_id, table_id, int(partitions), topic_id, acknowledged, limits)


class PublishRun(NamedTuple):
    """The batches that are published in one go: those after `ledger_position`, up to and including `target`."""

    pipeline: str
    topic: str
    topic_id: str
    accepts_new_topic: bool  # the operator knows that the topic was created again
    table_id: str
    partitions: int  # that keys are spread over
    ledger_position: int  # the last batch that the ledger calls published
    target: int
    largest: int  # bytes of the largest message that is sent, inclusive
    # By partition: positions that expired and were read back from the topic.
    recovered: tuple[tuple[int, Position], ...] = ()
    step: str = PUBLISHED  # that the ledger gets: of the output topic, or of one beside it
    # The batch before was not published to the topic, so positions behind it are of an earlier time with the topic.
    joins: bool = False
    # The last paired batch, where `target` was lowered: another topic has to be finished first, and this one may be ahead of it.
    furthest: int = 0

    @property
    def group(self) -> str:
        return publisher_group(self.pipeline)

    @property
    def is_main(self) -> bool:
        """Whether it is the output topic."""
        return self.step == PUBLISHED

    @property
    def slots(self) -> str:
        """What the transactional ids of the topic begin with."""
        return self.group if self.is_main else f"{self.group}-{self.topic}"


def publisher_group(pipeline: str) -> str:
    return f"{pipeline}.publisher"


def next_run(whole: PublishRun, positions: Mapping[int, Position | None]) -> PublishRun:
    """All of `whole`, or the part that must be finished first with the number of partitions it began with.

    `positions`: of all partitions, None where nothing is committed. Raises NeedsOperator where nothing may be sent.
    """
    trusted = [trusted_position(whole, number, position) for number, position in positions.items()]
    unfinished = [position for position in trusted if position is not None and position.batch_id > whole.ledger_position]
    began_with = {position.partitions for position in unfinished}
    if began_with <= {whole.partitions}:
        return whole
    partitions, furthest = max(began_with), max(position.batch_id for position in unfinished)
    if len(began_with) > 1 or not 0 < partitions < whole.partitions:
        raise NeedsOperator(
            f"batch {furthest} was half published to {whole.topic} with {partitions} partitions, now it has {whole.partitions}: run "
            "reconcile to list the missing messages, then decide about them"
        )
    # Keys move when a topic grows, but the old partitions still exist, so the batch is finished as it began.
    return whole._replace(partitions=partitions, target=furthest)


def trusted_position(run: PublishRun, partition: int, position: Position | None) -> Position | None:
    """The position, None if there is none on this topic; raises NeedsOperator if it contradicts table, topic or ledger."""
    where = f"{run.topic}-{partition} of group {run.group}"
    if position is None:
        # Never published, or expired. If nothing was sent since, the ledger's position is right.
        return dict(run.recovered).get(partition)
    if position.table_id != run.table_id:
        raise NeedsOperator(
            f"the position on {where} belongs to another compound_events table (id {position.table_id}, now {run.table_id}): "
            "the table was recreated; restore it, or start a new pipeline under another name"
        )
    if position.topic_id != run.topic_id:
        if not run.accepts_new_topic:
            check_same_topic(run.topic, run.topic_id, position.topic_id, run.ledger_position)
        return None
    if run.joins and position.batch_id < run.ledger_position:
        return None
    last = max(run.target, run.furthest)
    if not run.ledger_position <= position.batch_id <= last:
        raise NeedsOperator(
            f"the position on {where} is batch {position.batch_id}, but the ledger knows of {run.ledger_position} published and "
            f"{last} paired batches: one of them was reset; find out which before anything is sent"
        )
    return position


def check_same_topic(topic: str, topic_id: str, known_id: str, published: int) -> None:
    """Raises NeedsOperator if the output topic was deleted and created again. `published`: the last batch that the ledger calls published."""
    if known_id != topic_id:
        raise NeedsOperator(
            f"topic {topic} was deleted and created again (id {known_id}, now {topic_id}): the batches up to "
            f"{published} are not on it; to continue behind them, run publish_compounds once with --accept-recreated-topic {topic_id}"
        )


def committed_positions(
    consumer: Consumer, topic: str, partitions: range, within_s: float | None = None
) -> dict[int, Position | None]:
    """The committed position of each partition, None where there is none. Raises KafkaException."""
    places = [TopicPartition(topic, number) for number in partitions]
    answer = retry_transient(lambda: consumer.committed(places, timeout=within_s or ANSWER_WITHIN_S))
    for place in answer:
        if place.error is not None:
            raise KafkaException(place.error)
    return {place.partition: read_position(place.offset, place.metadata) if place.offset >= 0 else None for place in answer}
