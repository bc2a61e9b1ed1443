"""A producer on an epoch that nobody had before, so that what earlier ones of its transactional id still have under way is refused.

librdkafka does not have KIP-890: a request to end a transaction that comes late, or twice, ends whatever transaction is open on its
producer's epoch by then. It repeats such requests by itself, so not even an answer proves that none is under way. Only
`init_transactions` of a new producer raises the epoch, so each transaction has a producer of its own.
"""

from __future__ import annotations

from confluent_kafka import Producer

from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, producer_settings


def fenced_producer(settings: Settings, group: str, topic: str, partition: int) -> Producer:
    """A producer for one transaction. When this returns, every earlier transaction of the slot has ended, and no other can move its position.

    Raises KafkaException.
    """
    producer = Producer(producer_settings(settings, transactional_id(group, partition)))
    # Connects the client. Where it is still about to, it looks for the coordinator only twice a second; asked once, every fifth one is.
    for _ in range(2):
        producer.list_topics(topic, timeout=ANSWER_WITHIN_S)
    retry_transient(lambda: producer.init_transactions(ANSWER_WITHIN_S))
    return producer


def transactional_id(group: str, partition: int) -> str:
    """Stable, so that whoever comes later fences whoever came before."""
    return f"{group}-{partition}"
