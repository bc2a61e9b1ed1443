"""Independent readers: a plain consumer for topics, delta-rs for tables. Nothing of the jobs' own code."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable


def consume(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Every committed record of a topic, with its headers, up to the read_committed end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test-reader", "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, at_end = [], set()
    while len(at_end) < len(partitions):
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no answer, {len(found)} records so far"
        if message.error():
            at_end.add(message.partition())
            continue
        headers = {name: value.decode() for name, value in message.headers() or []}
        value = json.loads(message.value()) if message.value() is not None else None
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


def table_rows(warehouse: Any, table: str) -> list[dict[str, Any]]:
    """Every row of a Delta table."""
    return DeltaTable(warehouse.path(table)).to_pyarrow_table().to_pylist()
