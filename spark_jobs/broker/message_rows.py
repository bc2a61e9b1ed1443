"""Compounds on their way to the output topic, as rows: from compound_events to messages with their slot, and to one sender's.

A slot is an output partition, chosen from the key as Kafka's default partitioner does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from include.pipeline_config import Pipeline
from spark_jobs.broker.messages import Message, compound_message
from spark_jobs.broker.murmur2 import partitions_of
from spark_jobs.pairing.conservation import BrokenInvariant

MESSAGE_COLUMNS = (
    "slot INT, batch_id BIGINT, key BINARY, value BINARY, headers ARRAY<STRUCT<name: STRING, value: BINARY>>, ts BIGINT"
)

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def to_messages(pipeline: Pipeline, slots: int) -> Stage:
    """A stage from rows of compound_events to messages (`MESSAGE_COLUMNS`); the slot is the output partition."""
    key, payloads = pipeline.key, (pipeline.left.payload, pipeline.right.payload)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            messages = [compound_message(row, key, payloads) for row in batch.to_pylist()]
            headers = [[{"name": name, "value": value} for name, value in message.headers] for message in messages]
            columns = [
                pa.array(partitions_of([message.key for message in messages], slots), pa.int32()),
                batch.column("batch_id"),
                pa.array([message.key for message in messages], pa.binary()),
                pa.array([message.value for message in messages], pa.binary()),
                pa.array(headers, pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
                batch.column("ts"),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["slot", "batch_id", "key", "value", "headers", "ts"])

    return convert


def own_messages(batches: Iterable[pa.RecordBatch], slot: int) -> Iterator[Message]:
    """The messages in rows of `MESSAGE_COLUMNS`; raises BrokenInvariant if one is for another slot."""
    for batch in batches:
        for row in batch.to_pylist():
            if row["slot"] != slot:
                raise BrokenInvariant(
                    f"a message for partition {row['slot']} came to the sender of {slot}: nothing of it is sent"
                )
            if row["batch_id"] is None:
                continue
            headers: list[tuple[str, str | bytes | None]] = [(header["name"], header["value"]) for header in row["headers"]]
            yield Message(row["batch_id"], row["key"], row["value"], headers)
