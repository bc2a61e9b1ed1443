"""The input topics: whether they are still the ones that were read, and the consumer group that shows how far they are landed.

A topic that is deleted and created again has another id. A log that lost its end, by an unclean leader election, goes on under another leader
epoch: a broker knows where the records of each epoch end, and librdkafka asks it when a position is assigned together with its epoch. That
needs no right besides reading.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from include.config.pipeline import Pipeline
from include.config.tokens import connection_of
from include.config.topic_pattern import matching
from spark_jobs.faults.problems import NeedsOperator, warn
from spark_jobs.kafka.acls import grant_command, missing_right, on_group, on_topic
from spark_jobs.kafka.clusters import ask_topics, by_cluster
from spark_jobs.kafka.offsets import Partition, TopicsNow, all_topics
from spark_jobs.kafka.retries import Patience, is_transient
from spark_jobs.kafka.settings import (
    ANSWER_WITHIN_S,
    BrokerProblem,
    Settings,
    address,
    admin_settings,
    consumer_settings,
    kafka_settings,
)
from spark_jobs.rules.side_topics import MOST_PARTITIONS, MOST_TOPICS, SideTopics, topics_of
from spark_jobs.tables.ledger_rows import OffsetRange

# The client fetches no more than one batch of records behind a position that is right.
_ASKING = {"auto.offset.reset": "error", "max.partition.fetch.bytes": 1, "queued.min.messages": 1}
# By default the client waits for a second before it asks a partition with fetched records again.
_AT_ONCE = {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5}
# librdkafka reports it only as text.
_ENDS_AT = re.compile(r"truncation detected .*broker end offset is (\d+)")


def find_topics(pipeline: Pipeline, known: Iterable[str] = ()) -> SideTopics:
    """The topics of both sides: named ones, those on the brokers that a pattern matches, and `known` ones, which earlier batches have read.

    Raises BrokerProblem, and NeedsOperator where a pattern matches nothing, both sides have a topic, or one side has too many.
    """
    found = set(known)
    for name, side in zip(("left", "right"), pipeline.sides, strict=True):
        if side.topic_pattern is None:
            continue
        settings = kafka_settings(side.connection)
        found |= {*matching(side.topic_pattern, all_topics(settings))}
        # One that was read and vanished is named by whoever asks for it.
        if not any(map(side.has, found)):
            raise NeedsOperator(
                f"no topic at {address(settings)} matches {name}.topic_pattern {side.topic_pattern!r}, or the user of "
                f"{connection_of(settings)} may not see it: create one, correct the pattern in the pipeline's file, or allow the user to read "
                "the topics"
            )
    topics = topics_of(pipeline, found)
    if both := sorted({*topics.left} & {*topics.right}):
        raise NeedsOperator(
            f"both sides would read {', '.join(both)}, and their events could not be told apart: correct topic_pattern in the pipeline's file"
        )
    for name, mine in zip(topics._fields, topics, strict=True):
        if len(mine) > MOST_TOPICS:
            raise NeedsOperator(
                f"the {name} side has {len(mine)} topics, and {MOST_TOPICS} are the most: narrow its topic_pattern"
            )
    return topics


def ask_inputs(pipeline: Pipeline, topics: SideTopics, ids: Mapping[str, str], known: Collection[OffsetRange]) -> TopicsNow:
    """What the brokers have of these topics. `ids`, `known`: of the plan before; empty before the first.

    Raises BrokerProblem, and NeedsOperator for a topic that is missing, another one, or has too many partitions.
    """
    names = [*topics.left, *topics.right]
    now = ask_topics(pipeline, names)
    check_ids(ids, now)
    _check_numbers(topics, now)
    there, cut = [at for at in known if at.place in now.end], dict[Partition, int]()
    for settings, mine in by_cluster(pipeline, names):
        cut |= cut_since(settings, [at for at in there if at.topic in mine])
    return now._replace(cut=cut)


def check_ids(known: Mapping[str, str], now: TopicsNow) -> None:
    """Raises NeedsOperator if a topic's id differs from `known`. Offsets mean nothing on another topic."""
    for topic, old in known.items():
        if old != (new := now.ids[topic]):
            raise NeedsOperator(
                f"input topic {topic} was deleted and created again (id {old}, now {new}): its offsets name other records now, and "
                "records of the old topic that were never landed are lost; a pipeline continues only on the topic it began with, so start "
                "a new one under another name"
            )


def _check_numbers(topics: SideTopics, now: TopicsNow) -> None:
    several = {topic for mine in topics if len(mine) > 1 for topic in mine}
    for topic, number in now.end:
        if number >= MOST_PARTITIONS and topic in several:
            raise NeedsOperator(
                f"topic {topic} has more than {MOST_PARTITIONS} partitions, the most where a side has several topics: give it a pipeline of "
                "its own"
            )


def cut_since(settings: Settings, known: Iterable[OffsetRange]) -> dict[Partition, int]:
    """Partition -> first offset from which its log is another one, for logs that changed before their `end_offset` in `known`.

    Leaves out partitions without a known epoch. Raises BrokerProblem, and NeedsOperator for a missing right.
    """
    seen = {at.place: (at.end_offset, at.epoch) for at in known if at.epoch >= 0 and at.end_offset}
    if not seen:
        return {}
    cuts, waiting, patience = dict[Partition, int](), set(seen), Patience(ANSWER_WITHIN_S)
    throttled = {"throttle_cb": patience.throttled}
    with Consumer(consumer_settings(settings) | _ASKING | _AT_ONCE | throttled) as consumer:
        consumer.assign([TopicPartition(*place, end, leader_epoch=epoch) for place, (end, epoch) in seen.items()])
        while waiting:
            for message in consumer.consume(len(waiting), 0.1):
                place = (message.topic() or "", message.partition() or 0)
                if place in waiting and _is_answer(message, settings):
                    waiting.discard(place)
                    # Under steady traffic its further records would crowd out the answers of the other partitions.
                    consumer.incremental_unassign([TopicPartition(*place)])
                    patience.renew()
                    if (offset := _cut_at(message.error())) is not None:
                        cuts[place] = offset
            if waiting and patience.is_over():
                places = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(waiting))
                raise BrokerProblem(
                    f"no answer from Kafka at {address(settings)} within {ANSWER_WITHIN_S:.0f} s about the end of {places}"
                )
    return cuts


def _is_answer(message: Message, settings: Settings) -> bool:
    """Whether it is the broker's answer: a record, the end of the partition, or no such position."""
    error = message.error()
    if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        return True
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise missing_right(settings, on_topic("Read", message.topic() or ""))
    # The client looks for its group's coordinator, but these jobs ask nothing of the group.
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED or is_transient(error):
        return False
    raise BrokerProblem(
        f"Kafka at {address(settings)} cannot tell the end of {message.topic()}-{message.partition()}: {error.str()}"
    )


def _cut_at(error: KafkaError | None) -> int | None:
    """Where the log was cut; None if it was not, or only its beginning was removed.

    >>> _cut_at(None)
    """
    text = error.str() if error is not None else ""
    if found := _ENDS_AT.search(text):
        return int(found[1])
    # Without the offset nothing of the log is known to be the same.
    return 0 if "truncation detected" in text else None


def show_landed(pipeline: Pipeline, group: str, landed: Collection[OffsetRange]) -> None:
    """Commits the ends of the landed ranges for the group, for lag tools and `schedule: on_data`. A failure only warns.

    The next batch begins where the ledger says, never where the group is.
    """
    for settings, topics in by_cluster(pipeline, dict.fromkeys(at.topic for at in landed)):
        _commit(settings, group, [at for at in landed if at.topic in topics])


def _commit(settings: Settings, group: str, landed: Iterable[OffsetRange]) -> None:
    places = [TopicPartition(known.topic, known.partition, known.until_offset) for known in landed]
    try:
        admin = AdminClient(admin_settings(settings))
        request = ConsumerGroupTopicPartitions(group, places)
        (answer,) = admin.alter_consumer_group_offsets([request], request_timeout=ANSWER_WITHIN_S).values()
        refused = [place.error for place in answer.result().topic_partitions if place.error is not None]
    except KafkaException as error:
        refused = [error.args[0]]
    if refused:
        lacks_right = refused[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        remedy = f": {grant_command(settings, on_group(group))}" if lacks_right else ""
        warn(
            f"consumer group {group} does not show what was landed ({refused[0].str()}); the batch is landed all the same{remedy}"
        )
