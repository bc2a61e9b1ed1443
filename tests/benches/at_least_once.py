"""A publisher that promises less, to measure against. Spark's workers import it by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from spark_jobs.kafka.messages import Message
from spark_jobs.kafka.positions import PublishRun
from spark_jobs.kafka.publisher import PartitionReport
from spark_jobs.kafka.settings import Settings, producer_settings


def send_at_least_once(
    settings: Settings, run: PublishRun, partition: int, messages: Iterable[Message], speculative: bool
) -> PartitionReport:
    """In the place of `publish_partition`: every message, and no memory of it."""
    plain = {name: value for name, value in producer_settings(settings, "").items() if not name.startswith("transaction")}
    producer = Producer(plain | {"enable.idempotence": False})
    read: Counter[int] = Counter()
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Delivered) -> None:
        if error:
            failed.append(error)

    for message in messages:
        read[message.batch_id] += 1
        while True:
            try:
                producer.produce(
                    run.topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    partition=partition,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if read.total() % 1000 == 0:
            producer.poll(0)
    if producer.flush() or failed:
        raise RuntimeError(f"not delivered: {failed[:1]}")
    return PartitionReport(partition, read.total(), dict(read), {}, [])
