"""Independent readers: a plain consumer for topics, delta-rs for tables. Nothing of the jobs' own code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.helpers.stores import table_of

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def consume(bootstrap: str, topic: str, decode: Callable[[bytes], Any] = json.loads) -> list[dict[str, Any]]:
    """Every committed record of a topic, with its headers, up to the read_committed end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test-reader", "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    wait_for_markers(bootstrap, [TopicPartition(topic, number) for number in partitions])
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, at_end = [], set()
    while len(at_end) < len(partitions):
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no answer, {len(found)} records so far"
        if message.error():
            at_end.add(message.partition())
            continue
        headers = {name: value.decode() for name, value in message.headers() or []}
        value = decode(message.value()) if message.value() is not None else None
        found.append(
            {
                "partition": message.partition(),
                "key": message.key().decode(),
                "value": value,
                "timestamp": message.timestamp()[1],
                **headers,
            }
        )
    consumer.close()
    return found


def wait_for_markers(bootstrap: str, partitions: list[TopicPartition]) -> None:
    """A commit is answered before the partitions have its markers: until then, for a moment, its records cannot be read."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 1
    # Behind a transaction that is open on purpose nothing can be waited for.
    while time.monotonic() < deadline:
        # A topic that was just created may not have its leaders yet.
        with suppress(KafkaException):
            if _ends(admin, partitions, COMMITTED) == _ends(admin, partitions, UNCOMMITTED):
                return
        time.sleep(0.02)


def _ends(admin: AdminClient, partitions: list[TopicPartition], isolation: IsolationLevel) -> list[int]:
    asked = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level=isolation)
    return [asked[partition].result(timeout=20).offset for partition in partitions]


def table_rows(warehouse: Any, table: str) -> list[dict[str, Any]]:
    """Every row of a Delta table."""
    return table_of(warehouse.root, warehouse.pipeline, table).to_pyarrow_table().to_pylist()
