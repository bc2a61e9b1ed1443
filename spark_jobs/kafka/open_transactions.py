"""Offsets that nobody can read yet, because a transaction that begins before them has not ended: where, since when, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.records import read_messages
from spark_jobs.kafka.settings import Settings, consumer_settings


class Held(NamedTuple):
    """A partition that can be read up to `offset` (exclusive): the first of the open transaction, with `waiting` offsets from there on.

    `since`: when its first record was written (epoch ms), None where nobody can tell.
    """

    topic: str
    partition: int
    offset: int
    waiting: int
    since: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} can be read up to offset {self.offset} only"

    def opened(self) -> str:
        """` since …`, with a space in front, or nothing."""
        return "" if self.since is None else f" since {datetime.fromtimestamp(self.since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def remedy(self) -> str:
        """The command that ends the transaction without its producer; its records there are lost."""
        return f"kafka-transactions.sh abort --topic {self.topic} --partition {self.partition} --start-offset {self.offset}"


class Unreadable(Exception):
    """An output partition cannot be read as far as it was published to (`until`, exclusive)."""

    def __init__(self, held: Held, until: int) -> None:
        super().__init__(str(held))
        self.held, self.until = held, until


def held_back(settings: Settings, now: TopicsNow) -> list[Held]:
    """The partitions that can be read less far than they were written. Raises KafkaException."""
    found = [
        Held(*place, now.end[place], written - now.end[place])
        for place, written in now.written.items()
        if written > now.end[place]
    ]
    return [at._replace(since=_first_written(settings, at)) for at in found]


def check_readable(now: TopicsNow, wanted: Mapping[Partition, int]) -> None:
    """Raises Unreadable if a partition cannot be read up to the offset (exclusive) that is wanted of it."""
    for (topic, number), until in wanted.items():
        if now.end[topic, number] < until:
            end = now.end[topic, number]
            raise Unreadable(Held(topic, number, end, until - end), until)


def told_unreadable(settings: Settings, problem: Unreadable) -> JobProblem:
    """The problem for people, with since when."""
    held = problem.held._replace(since=_first_written(settings, problem.held))
    return JobProblem(
        f"{held.topic}-{held.partition} can be read up to offset {held.offset} only, but was published to up to {problem.until}: another "
        f"producer's transaction is open there{held.opened()}; it ends by its timeout, or, if that producer is gone, by {held.remedy()}"
    )


def total_held(held: Collection[Held]) -> tuple[int, int | None]:
    """How many offsets wait, and since when (epoch ms), None where that is not known."""
    since = [at.since for at in held if at.since is not None]
    return sum(at.waiting for at in held), min(since, default=None)


def _first_written(settings: Settings, held: Held) -> int | None:
    """When the first record was written that is not decided; its offset is where everybody else has to stop."""
    unlike = {"isolation.level": "read_uncommitted", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(consumer_settings(settings, "event-pairing.landing") | unlike)
    try:
        consumer.assign([TopicPartition(held.topic, held.partition, held.offset)])
        message = next(read_messages(consumer, held.offset, held.offset + 1), None)
    except KafkaException:
        # Without the right to read it. What is known without is told all the same.
        return None
    finally:
        consumer.close()
    return None if message is None else message.timestamp()[1]
