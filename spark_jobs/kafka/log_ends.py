"""Whether a partition's log is still the one that was read: it may have lost its end, and may have been written on since.

Every leader of a partition has an epoch, and a log that lost its end goes on under another one. A broker tells where the records of an epoch
end; librdkafka asks it where a position is assigned together with its epoch. No right is needed that reading does not need.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from include.config.pipeline import Pipeline
from spark_jobs.kafka.acls import lacking, on_topic
from spark_jobs.kafka.offsets import Partition, TopicsNow, ask_broker
from spark_jobs.kafka.retries import is_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, address, consumer_settings, kafka_settings
from spark_jobs.kafka.topic_ids import check_ids
from spark_jobs.tables.ledger import OffsetRange
from spark_jobs.tables.records import TopicIds

# One batch of records is all that is fetched behind a position that is right.
_ASKING = {
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,
    # By itself the client waits for a second before it asks a partition again of which it has something.
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": 1,
    "queued.min.messages": 1,
}
# librdkafka says it in words only.
_ENDS_AT = re.compile(r"truncation detected .*broker end offset is (\d+)")
_UNKNOWN = "truncation detected"


def ask_inputs(pipeline: Pipeline, ids: TopicIds | None, known: Collection[OffsetRange]) -> TopicsNow:
    """What the broker has of the input topics. `ids`: those of the plan before, None if there is none; `known`: what the broker had then.

    Raises BrokerProblem, and NeedsOperator for a topic that is missing or another one.
    """
    settings = kafka_settings()
    now = ask_broker(settings, [side.topic for side in pipeline.sides])
    check_ids(pipeline, ids, now)
    return now._replace(cut=cut_since(settings, [at for at in known if (at.topic, at.partition) in now.end]))


def cut_since(settings: Settings, known: Iterable[OffsetRange]) -> dict[Partition, int]:
    """Partitions whose log is another one before `end_offset` than it was, with the first offset at which it is.

    Partitions that are gone, or whose epoch is not known, are left out. Raises BrokerProblem, and NeedsOperator for want of a right.
    """
    seen = {(at.topic, at.partition): (at.end_offset, at.epoch) for at in known if at.epoch >= 0 and at.end_offset}
    if not seen:
        return {}
    consumer = Consumer(consumer_settings(settings, "event-pairing.landing") | _ASKING)
    try:
        consumer.assign([TopicPartition(*place, end, leader_epoch=epoch) for place, (end, epoch) in seen.items()])
        return _answers(consumer, set(seen), settings)
    finally:
        consumer.close()


def _answers(consumer: Consumer, waiting: set[Partition], settings: Settings) -> dict[Partition, int]:
    cut: dict[Partition, int] = {}
    silent_since = time.monotonic()
    while waiting:
        heard = consumer.consume(len(waiting), 0.1)
        for message in heard:
            place = (message.topic() or "", message.partition() or 0)
            if place in waiting and _is_answer(message, settings):
                waiting.discard(place)
                # What else it has, under traffic without end, would crowd out the answers of the others.
                consumer.incremental_unassign([TopicPartition(*place)])
                silent_since = time.monotonic()
                if (offset := _cut_at(message.error())) is not None:
                    cut[place] = offset
        if waiting and time.monotonic() - silent_since > ANSWER_WITHIN_S:
            told = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(waiting))
            raise BrokerProblem(
                f"no answer from Kafka at {address(settings)} within {ANSWER_WITHIN_S:.0f} s about the end of {told}"
            )
    return cut


def _is_answer(message: Message, settings: Settings) -> bool:
    """Whether the broker has answered with it: records, the end, or no such position."""
    error = message.error()
    if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
        return True
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise lacking(settings, on_topic("Read", message.topic() or ""))
    # The client looks for its group's coordinator, but nothing is ever asked of the group.
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED or is_transient(error):
        return False
    raise BrokerProblem(
        f"Kafka at {address(settings)} cannot tell the end of {message.topic()}-{message.partition()}: {error.str()}"
    )


def _cut_at(error: KafkaError | None) -> int | None:
    """Where the log was cut; None if it was not, or only its beginning is gone.

    >>> _cut_at(None)
    """
    text = error.str() if error is not None else ""
    if found := _ENDS_AT.search(text):
        return int(found[1])
    # Nothing is known to be the same then.
    return 0 if _UNKNOWN in text else None
