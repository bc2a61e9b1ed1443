"""Fences earlier publishers: each transaction has a new producer, whose epoch makes the broker refuse their late requests.

librdkafka does not implement KIP-890: a late or repeated request to end a transaction ends whatever transaction is open on its producer's
epoch by then. librdkafka repeats such requests by itself, so even an answer does not prove that none is under way. Only `init_transactions` of
a new producer raises the epoch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from spark_jobs.kafka.acls import may_see_group, missing_right, on_group, refused_right
from spark_jobs.kafka.open_transactions import undecided_positions, undecided_problem
from spark_jobs.kafka.positions import Position, PublishRun, committed_positions
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, consumer_settings, producer_settings


def fenced_producer(settings: Settings, slots: str, topic: str, partition: int) -> Producer:
    """A producer for one transaction. When it returns, every earlier transaction of the output partition has ended.

    No earlier producer can move the position any more. `slots`: as in `PublishRun`. Raises KafkaException.
    """
    producer = Producer(producer_settings(settings, transactional_id(slots, partition)))
    # A client that is still connecting looks for its coordinator only twice a second. After one call one client in five still is.
    for _ in range(2):
        producer.list_topics(topic, timeout=ANSWER_WITHIN_S)
    retry_transient(lambda: producer.init_transactions(ANSWER_WITHIN_S))
    return producer


def transactional_id(slots: str, partition: int) -> str:
    """The same in every run, so that each publisher fences the ones before it."""
    return f"{slots}-{partition}"


def fence_and_read_positions(settings: Settings, run: PublishRun) -> dict[int, Position | None]:
    """The position of every partition after all earlier publishers were fenced; None where nothing is committed.

    Raises KafkaException, BrokerProblem where a position is undecided, and NeedsOperator for a missing right.
    """
    group, topic, partitions = run.group, run.topic, run.partitions
    try:
        # Fencing comes first, because it ends the transactions of dead publishers. A read before that waits for their timeouts.
        with ThreadPoolExecutor(max_workers=8) as threads:
            list(threads.map(lambda partition: fenced_producer(settings, run.slots, topic, partition), range(partitions)))
        with Consumer(consumer_settings(settings, group)) as consumer:
            return committed_positions(consumer, topic, range(partitions))
    except KafkaException as error:
        problem = error.args[0]
        if right := refused_right(problem, topic, group, "Read"):
            raise missing_right(settings, right) from None
        if problem.code() == KafkaError._TIMED_OUT:
            if not may_see_group(settings, group):
                raise missing_right(settings, on_group(group)) from None
            if undecided := undecided_positions(settings, group, topic, partitions):
                raise undecided_problem(settings, group, topic, undecided) from None
        raise
