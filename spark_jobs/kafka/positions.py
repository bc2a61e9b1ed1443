"""How far each output partition is: what is committed in Kafka, whether to believe it, and what it leaves to be sent.

A position is the committed offset (a batch_id) of group `<pipeline>.publisher` on an output partition. Its metadata says of
what: `<table id> <slots> <topic id> <batch>:<records> …`, where `slots` is the number of partitions that keys were routed
to, and the rest counts the acknowledged records of the batches that the ledger did not yet call published. Where messages
were left out because they were larger than the topic takes, `<limit` follows.
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

_METADATA = re.compile(r"(\S+) (\d{1,19}) (\S+)((?: \d{1,19}:\d{1,19}(?:<\d{1,19})?)*)", re.ASCII)
_NONE: Mapping[int, int] = MappingProxyType({})


class Position(NamedTuple):
    """The last batch published to one output partition.

    `acknowledged`: batch_id -> records that the broker acknowledged. `limits`: batch_id -> bytes, of batches of which larger messages were
    left out.
    """

    batch_id: int
    table_id: str
    slots: int = 0
    topic_id: str = ""
    acknowledged: Mapping[int, int] = _NONE
    limits: Mapping[int, int] = _NONE

    def metadata(self) -> str:
        """The text beside the offset; a broker takes up to 4096 bytes of it.

        >>> Position(7, "a1", 4, "Xy", {6: 20, 7: 5}, {7: 1000}).metadata()
        'a1 4 Xy 6:20 7:5<1000'
        """
        limits = {batch_id: f"<{limit}" for batch_id, limit in self.limits.items()}
        counted = [
            f"{number}:{self.acknowledged.get(number, 0)}{limits.get(number, '')}"
            for number in sorted({*self.acknowledged, *limits})
        ]
        return " ".join([self.table_id, str(self.slots), self.topic_id, *counted])


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
    table_id, slots, topic_id, counted = found.groups()
    batches = [re.split("[:<]", word) for word in counted.split()]
    acknowledged = {int(batch[0]): int(batch[1]) for batch in batches}
    limits = {int(batch[0]): int(batch[2]) for batch in batches if len(batch) > 2}
    return Position(batch_id, table_id, int(slots), topic_id, acknowledged, limits)


class Leg(NamedTuple):
    """One way of all output partitions from batch `copy` (exclusive) to `target` (inclusive), keys routed to `slots` partitions.

    `copy`: the position as the ledger remembers it. `accepted`: the operator knows that the topic was created again. `largest`:
    bytes that a message may have, inclusive. `found`: by partition, the positions that Kafka has forgotten and that were read off the topic.
    """

    pipeline: str
    topic: str
    topic_id: str
    accepted: bool
    table_id: str
    slots: int
    copy: int
    target: int
    largest: int
    found: tuple[tuple[int, Position], ...] = ()

    @property
    def group(self) -> str:
        """The consumer group that holds the positions."""
        return publisher_group(self.pipeline)


def publisher_group(pipeline: str) -> str:
    """The name of the consumer group that holds a pipeline's positions."""
    return f"{pipeline}.publisher"


def next_leg(whole: Leg, positions: Mapping[int, Position | None]) -> Leg:
    """What can be sent in one go of `whole`: all of it, or what must be finished first with the number of slots it began with.

    `positions`: of all partitions, None where nothing is committed. Raises NeedsOperator where nothing may be sent.
    """
    believed = [believe(whole, number, position) for number, position in positions.items()]
    half = [position for position in believed if position is not None and position.batch_id > whole.copy]
    began_with = {position.slots for position in half}
    if began_with <= {whole.slots}:
        return whole
    slots, furthest = max(began_with), max(position.batch_id for position in half)
    if len(began_with) > 1 or not 0 < slots < whole.slots:
        raise NeedsOperator(
            f"batch {furthest} was half published to {whole.topic} with {slots} partitions, now it has "
            f"{whole.slots}: nobody can tell what is missing on it; reconcile lists that, then decide about it"
        )
    # Keys move when a topic grows, but the old partitions are still there, so the batch ends as it would have ended.
    return whole._replace(slots=slots, target=furthest)


def believe(leg: Leg, partition: int, position: Position | None) -> Position | None:
    """The position, None if there is none yet on this topic; raises NeedsOperator if it contradicts table, topic or ledger."""
    where = f"{leg.topic}-{partition} of group {leg.group}"
    if position is None:
        # Never published, or the group's offsets have expired. If nothing was sent since, the ledger's copy says how far it was.
        return dict(leg.found).get(partition)
    if position.table_id != leg.table_id:
        raise NeedsOperator(
            f"the position on {where} belongs to another compound_events table (id {position.table_id}, now {leg.table_id}): "
            "the table was recreated; restore it, or start a new pipeline under another name"
        )
    if position.topic_id != leg.topic_id:
        check_same_topic(leg, position.topic_id)
        return None
    if not leg.copy <= position.batch_id <= leg.target:
        raise NeedsOperator(
            f"the position on {where} is batch {position.batch_id}, but the ledger knows of {leg.copy} published and "
            f"{leg.target} paired batches: one of them was reset; find out which before anything is sent"
        )
    return position


def check_same_topic(leg: Leg, known_id: str) -> None:
    """Raises NeedsOperator if the topic was deleted and created again and the operator has not accepted that."""
    if known_id != leg.topic_id and not leg.accepted:
        raise NeedsOperator(
            f"topic {leg.topic} was deleted and created again (id {known_id}, now {leg.topic_id}): the batches up to {leg.copy} "
            f"are not on it; to go on behind them, run publish_compounds once with --accept-recreated-topic {leg.topic_id}"
        )


def committed_positions(
    consumer: Consumer, topic: str, partitions: range, within_s: float | None = None
) -> dict[int, Position | None]:
    """What is committed for these partitions, None where nothing is. Raises KafkaException."""
    places = [TopicPartition(topic, number) for number in partitions]
    answer = retry_transient(lambda: consumer.committed(places, timeout=within_s or ANSWER_WITHIN_S))
    for place in answer:
        if place.error is not None:
            raise KafkaException(place.error)
    return {place.partition: read_position(place.offset, place.metadata) if place.offset >= 0 else None for place in answer}
