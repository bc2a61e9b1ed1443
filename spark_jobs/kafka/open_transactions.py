"""Offsets that no consumer can read yet, because a transaction that begins before them is open: where, since when, and what ends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.offsets import Partition, TopicsNow, ask_broker
from spark_jobs.kafka.positions import committed_positions
from spark_jobs.kafka.records import read_messages
from spark_jobs.kafka.settings import BrokerProblem, Settings, consumer_settings

# Where Kafka keeps the offsets of groups.
_GROUP_OFFSETS = "__consumer_offsets"


class HeldPartition(NamedTuple):
    """A partition with an open transaction, which holds back its own records and all behind them."""

    topic: str
    partition: int
    offset: int  # the transaction's first; consumers read up to here, exclusive
    waiting: int  # offsets from there on
    since: int | None = None  # when its first record was written (epoch ms); None if not known

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} can be read up to offset {self.offset} only"

    def opened(self) -> str:
        """` since …`, with a space in front; empty if not known."""
        return "" if self.since is None else f" since {datetime.fromtimestamp(self.since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def remedy(self) -> str:
        """The command that aborts the transaction without its producer; its records there are lost."""
        return f"kafka-transactions.sh abort --topic {self.topic} --partition {self.partition} --start-offset {self.offset}"


class Unreadable(Exception):
    """An output partition cannot be read as far as it was published to (`until`, exclusive)."""

    def __init__(self, held: HeldPartition, until: int) -> None:
        super().__init__(str(held))
        self.held, self.until = held, until


def held_partitions(settings: Settings, now: TopicsNow, topics: Collection[str]) -> list[HeldPartition]:
    """The partitions of the cluster's topics that can be read less far than they were written. Raises KafkaException."""
    held = [
        HeldPartition(*place, now.end[place], written - now.end[place])
        for place, written in now.written.items()
        if place[0] in topics and written > now.end[place]
    ]
    return [at._replace(since=_first_written(settings, at)) for at in held]


def total_held(held: Collection[HeldPartition]) -> tuple[int, int | None]:
    """How many offsets wait, and since when (epoch ms), None if not known."""
    since = [at.since for at in held if at.since is not None]
    return sum(at.waiting for at in held), min(since, default=None)


def check_readable(now: TopicsNow, wanted: Mapping[Partition, int]) -> None:
    """Raises Unreadable if a partition cannot be read up to its wanted offset (exclusive)."""
    for place, until in wanted.items():
        end = now.end[place]
        if end < until:
            raise Unreadable(HeldPartition(*place, end, until - end), until)


def unreadable_problem(settings: Settings, error: Unreadable) -> JobProblem:
    """The problem for the operator, with the time since which the transaction is open."""
    held = error.held._replace(since=_first_written(settings, error.held))
    return JobProblem(
        f"{held.topic}-{held.partition} can be read up to offset {held.offset} only, but was published to up to {error.until}: another "
        f"producer's transaction is open there{held.opened()}; it ends by its timeout, or, if that producer is gone, by {held.remedy()}"
    )


def _first_written(settings: Settings, held: HeldPartition) -> int | None:
    """The timestamp of the open transaction's first record; None if the user may not read it."""
    uncommitted = {"isolation.level": "read_uncommitted", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    with suppress(KafkaException), Consumer(consumer_settings(settings) | uncommitted) as consumer:
        consumer.assign([TopicPartition(held.topic, held.partition, held.offset)])
        for message in read_messages(consumer, held.offset, held.offset + 1):
            return message.timestamp()[1]
    return None


def undecided_positions(settings: Settings, group: str, topic: str, partitions: int) -> list[int]:
    """The partitions whose position only read_uncommitted can read: an open transaction has moved it."""

    def can_be_read(partition: int, isolation: str) -> bool:
        with Consumer(consumer_settings(settings, group) | {"isolation.level": isolation}) as consumer:
            try:
                committed_positions(consumer, topic, range(partition, partition + 1), within_s=3.0)
            except KafkaException:
                return False
        return True

    def is_undecided(partition: int) -> bool:
        return can_be_read(partition, "read_uncommitted") and not can_be_read(partition, "read_committed")

    with ThreadPoolExecutor(max_workers=8) as threads:
        answers = threads.map(is_undecided, range(partitions))
        return [number for number, undecided in enumerate(answers) if undecided]


def undecided_problem(settings: Settings, group: str, topic: str, undecided: list[int]) -> BrokerProblem:
    """The problem of positions that `undecided_positions` found after every publisher before was fenced."""
    where, at = ", ".join(f"{topic}-{number}" for number in undecided), _held_group(settings, group)
    since = f" (from offset {at.offset} of {at.topic}-{at.partition} on{at.opened()})" if at else ""
    remedy = at.remedy() if at else "kafka-transactions.sh find-hanging and abort"
    return BrokerProblem(
        f"the position on {where} of group {group} is undecided: no transaction of this publisher is open, but the broker still waits for "
        f"the end of one{since}; nothing was sent; if the next tries fail the same way: {remedy}"
    )


def _held_group(settings: Settings, group: str) -> HeldPartition | None:
    """The open transaction where Kafka keeps the group's offsets; None if there is none or the user may not see that topic."""
    try:
        now = ask_broker(settings, [_GROUP_OFFSETS])
        number = partition_of_group(group, len(now.end))
        return next((held for held in held_partitions(settings, now, [_GROUP_OFFSETS]) if held.partition == number), None)
    except (KafkaException, JobProblem):
        return None


def partition_of_group(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group: Java's hash of its name.

    >>> partition_of_group("calls.publisher", 50), partition_of_group("polygenelubricants", 50)
    (1, 0)
    """
    code = 0
    for unit in memoryview(group.encode("utf-16-le")).cast("H"):
        code = (31 * code + unit) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
