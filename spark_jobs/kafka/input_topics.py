"""The input topics: whether they are still the ones that were read, and the consumer group that shows how far they are landed.

A topic that is deleted and created again has another id. A log that lost its end, by an unclean leader election, goes on under another leader
epoch: a broker knows where the records of each epoch end, and librdkafka asks it when a position is assigned together with its epoch. That
needs no right besides reading.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import NeedsOperator, warn
from spark_jobs.kafka.acls import grant_command, missing_right, on_group, on_topic
from spark_jobs.kafka.clusters import ask_topics, by_cluster
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.retries import Patience, is_transient
from spark_jobs.kafka.settings import (
    ANSWER_WITHIN_S,
    BrokerProblem,
    Settings,
    address,
    admin_settings,
    consumer_settings,
)
from spark_jobs.tables.ledger import OffsetRange
from spark_jobs.tables.records import TopicIds

# The client fetches no more than one batch of records behind a position that is right.
_ASKING = {"auto.offset.reset": "error", "max.partition.fetch.bytes": 1, "queued.min.messages": 1}
# By default the client waits for a second before it asks a partition with fetched records again.
_AT_ONCE = {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5}
# librdkafka reports it only as text.
_ENDS_AT = re.compile(r"truncation detected .*broker end offset is (\d+)")


def ask_inputs(pipeline: Pipeline, ids: TopicIds | None, known: Collection[OffsetRange]) -> TopicsNow:
    """What the broker has of the input topics. `ids`, `known`: of the plan before; None and empty before the first.

    Raises BrokerProblem, and NeedsOperator for a topic that is missing or another one.
    """
    topics = [side.topic for side in pipeline.sides]
    now = ask_topics(pipeline, topics)
    check_ids(pipeline, ids, now)
    there, cut = [at for at in known if at.place in now.end], dict[Partition, int]()
    for settings, mine in by_cluster(pipeline, topics):
        cut |= cut_since(settings, [at for at in there if at.topic in mine])
    return now._replace(cut=cut)


def check_ids(pipeline: Pipeline, known: TopicIds | None, now: TopicsNow) -> TopicIds:
    """Returns the ids of both topics; raises NeedsOperator if one differs from `known`. Offsets mean nothing on another topic."""
    ids = TopicIds(*(now.ids[side.topic] for side in pipeline.sides))
    for side, old, new in zip(pipeline.sides, known or ids, ids, strict=True):
        if old != new:
            raise NeedsOperator(
                f"input topic {side.topic} was deleted and created again (id {old}, now {new}): its offsets name other records now, and "
                "records of the old topic that were never landed are lost; a pipeline continues only on the topic it began with, so start "
                "a new one under another name"
            )
    return ids


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
    for settings, topics in by_cluster(pipeline, [side.topic for side in pipeline.sides]):
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
