"""What the processes of the floors do: the bare work, on what they hold in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from include.config.store import Store
from spark_jobs.kafka.records import _READING
from spark_jobs.kafka.settings import consumer_settings, kafka_settings, producer_settings
from spark_jobs.tables.parquet_files import write_file

PROCESSES = 2
_AT_ONCE = 10_000
_held: list[Any] = []


def read(topics: list[str], number: int) -> None:
    """Reads the partition of this number of each topic to its end."""
    for _ in _read(topics, number):
        pass


def _read(topics: list[str], number: int) -> Iterator[Message]:
    settings = consumer_settings(kafka_settings()) | {"enable.partition.eof": True, "auto.offset.reset": "error"}
    with Consumer(_READING | settings) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for topic in topics])
        at_end = 0
        while at_end < len(topics):
            messages = consumer.consume(_AT_ONCE, 0.1)
            at_end += sum(message.error() is not None for message in messages)
            yield from messages


def hold_rows(files: list[str], number: int) -> None:
    """Loads its share of the files, each as the batches of which it was written."""
    _held[:] = [
        [file.read_row_group(group).combine_chunks().to_batches()[0] for group in range(file.num_row_groups)]
        for file in map(pq.ParquetFile, files[number::PROCESSES])
    ]


def write(store: Store, number: int) -> None:
    """Writes what it holds, a file as a file."""
    for batches in _held:
        write_file(store, batches)


def hold_messages(topic: str, number: int) -> None:
    """Loads what the partition has, to produce it again."""
    _held[:] = [(each.key(), each.value(), each.headers()) for each in _read([topic], number) if not each.error()]


def produce(topic: str, number: int) -> None:
    """Sends what it holds to the partition in one transaction."""
    producer = Producer(producer_settings(kafka_settings(), f"{topic}-{number}"))
    producer.init_transactions()
    producer.begin_transaction()
    for key, value, headers in _held:
        while True:
            try:
                producer.produce(topic, value, key, number, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.commit_transaction()


class Processes:
    """Two processes that stay up and keep what they hold; each function gets its process's number last."""

    def __init__(self) -> None:
        self.pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(PROCESSES)]

    def __call__(self, work: Callable[..., None], *arguments: Any) -> None:
        # All have to be at work before one is waited for.
        for waiting in [pool.submit(work, *arguments, number) for number, pool in enumerate(self.pools)]:
            waiting.result()

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown()
