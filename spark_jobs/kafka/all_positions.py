"""The positions of all output partitions, looked at before anything is sent; and what to do about one that the broker does not give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException

from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.acls import lacked, lacking, may_see_group, on_group
from spark_jobs.kafka.fencing import fenced_producer
from spark_jobs.kafka.offsets import ask_broker
from spark_jobs.kafka.open_transactions import Held, held_back
from spark_jobs.kafka.positions import Position, committed_positions
from spark_jobs.kafka.settings import BrokerProblem, Settings, consumer_settings

_POSITIONS = "__consumer_offsets"


def look_at_positions(settings: Settings, group: str, topic: str, partitions: int) -> dict[int, Position | None]:
    """The position of every partition, after every predecessor was fenced. Raises KafkaException, BrokerProblem where a position is
    undecided, and NeedsOperator for want of a right.
    """
    try:
        # First of all: it ends dead predecessors' transactions. Asking before would wait for their timeouts.
        with ThreadPoolExecutor(max_workers=8) as beside:
            list(beside.map(lambda partition: fenced_producer(settings, group, topic, partition), range(partitions)))
        consumer = Consumer(consumer_settings(settings, group))
        try:
            return committed_positions(consumer, topic, range(partitions))
        finally:
            consumer.close()
    except KafkaException as error:
        problem = error.args[0]
        if right := lacked(problem, topic, group, "Read"):
            raise lacking(settings, right) from None
        if problem.code() == KafkaError._TIMED_OUT:
            if not may_see_group(settings, group):
                raise lacking(settings, on_group(group)) from None
            if found := _undecided(settings, group, topic, partitions):
                raise _told(settings, group, topic, found) from None
        raise


def _undecided(settings: Settings, group: str, topic: str, partitions: int) -> list[int]:
    """The partitions whose position is given at once only to who does not mind that it is of a transaction that has not ended."""

    def is_given(partition: int, isolation: str) -> bool:
        consumer = Consumer(consumer_settings(settings, group) | {"isolation.level": isolation})
        try:
            committed_positions(consumer, topic, range(partition, partition + 1), within_s=3.0)
        except KafkaException:
            return False
        finally:
            consumer.close()
        return True

    def is_undecided(partition: int) -> bool:
        return is_given(partition, "read_uncommitted") and not is_given(partition, "read_committed")

    with ThreadPoolExecutor(max_workers=8) as beside:
        return [number for number, found in enumerate(beside.map(is_undecided, range(partitions))) if found]


def _told(settings: Settings, group: str, topic: str, undecided: list[int]) -> BrokerProblem:
    where, at = ", ".join(f"{topic}-{number}" for number in undecided), _begins(settings, group)
    since = f" (from offset {at.offset} of {at.topic}-{at.partition} on{at.opened()})" if at else ""
    remedy = at.remedy() if at else "kafka-transactions.sh find-hanging and abort"
    return BrokerProblem(
        f"the position on {where} of group {group} is undecided: no transaction of this publisher is open, but the broker takes the end of "
        f"one as still to come{since}; nothing was sent; if the next tries say the same: {remedy}"
    )


def _begins(settings: Settings, group: str) -> Held | None:
    """The first open transaction where Kafka keeps the group's offsets; None if the user may not see that topic."""
    try:
        now = ask_broker(settings, [_POSITIONS])
        number = partition_of_group(group, len(now.end))
        return next((held for held in held_back(settings, now) if held.partition == number), None)
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
