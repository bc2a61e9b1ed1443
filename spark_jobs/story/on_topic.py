"""Where compounds are on the output topic: read back by their pair_ids, from the moment at which they can first have been sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_jobs.kafka.acls import missing_right, on_topic
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.records import decoded_headers, read_messages
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, consumer_settings

# Record times are the sender's or the broker's, the ledger's are those of the jobs.
_CLOCKS_DIFFER_MS = 60_000

Id = tuple[str, int]


class Stretch(NamedTuple):
    """A partition from one moment to another (epoch ms, None: to its end)."""

    partition: int
    after: int
    before: int | None


def find(settings: Settings, topic: str, now: TopicsNow, wanted: Mapping[Stretch, Iterable[Id]]) -> dict[Id, list[int]]:
    """(pair_id, revision) -> the offsets at which they are, of committed records. Raises KafkaException, and NeedsOperator for want of a right."""
    found: dict[Id, list[int]] = {}
    consumer = Consumer(
        consumer_settings(settings, "event-pairing.explaining")
        # At the end of a partition, where nothing more comes, nobody has to wait for more.
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    )
    try:
        for stretch, ids in wanted.items():
            _read(
                consumer,
                topic,
                stretch,
                now.end[topic, stretch.partition],
                {(pair, str(number)): (pair, number) for pair, number in ids},
                found,
            )
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise missing_right(settings, on_topic("Read", topic)) from None
        raise
    finally:
        consumer.close()
    return found


def _read(
    consumer: Consumer, topic: str, stretch: Stretch, end: int, ids: Mapping[tuple[str, str], Id], found: dict[Id, list[int]]
) -> None:
    first = _offset_at(consumer, topic, stretch.partition, stretch.after - _CLOCKS_DIFFER_MS, end)
    until = end
    if stretch.before is not None:
        until = _offset_at(consumer, topic, stretch.partition, stretch.before + _CLOCKS_DIFFER_MS, end)
    if first >= until:
        return
    consumer.assign([TopicPartition(topic, stretch.partition, first)])
    for message in read_messages(consumer, first, until):
        # A message with a header that cannot be told is a stranger's.
        (told,), _ = decoded_headers([message])
        headers = dict(told or [])
        pair_id, revision = _header(headers, "pair-id"), _header(headers, "revision")
        # Headers are anybody's: held against ours as text, for a number of thousands of digits is none to Python.
        if mine := ids.get((pair_id, revision)):
            found.setdefault(mine, []).append(message.offset() or 0)


def _header(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _offset_at(consumer: Consumer, topic: str, partition: int, moment: int, end: int) -> int:
    """The first offset with a record of that moment or later; the end if there is none."""
    (place,) = consumer.offsets_for_times([TopicPartition(topic, partition, max(moment, 0))], timeout=ANSWER_WITHIN_S)
    if place.error is not None:
        raise KafkaException(place.error)
    return place.offset if place.offset >= 0 else end
