"""Compounds on their way to the output topic, as rows: from compound_events to messages with their slot, and to one sender's.

A slot is an output partition, chosen from the key as Kafka's default partitioner does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.messages import Message
from spark_jobs.kafka.murmur2 import partitions_of
from spark_jobs.kafka.output_keys import json_strings, output_keys
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.workers import Stage

MESSAGE_COLUMNS = (
    "slot INT, batch_id BIGINT, key BINARY, value BINARY, pair_id STRING, revision INT, kind STRING, op STRING, ts BIGINT"
)
_HEADERS = ("pair_id", "revision", "kind", "op")


def message_columns(pipeline: Pipeline) -> list[str]:
    """The columns of compound_events of which messages are made."""
    return [*pipeline.key, "ts", *(side.payload for side in pipeline.sides), "batch_id", *_HEADERS]


def messages_of(compounds: DataFrame, pipeline: Pipeline, slots: int) -> DataFrame:
    """Rows of compound_events (`message_columns` at least) as messages (`MESSAGE_COLUMNS`)."""
    # Spark does not see which columns the stage wants, and would hand over all of them.
    return compounds.select(message_columns(pipeline)).mapInArrow(to_messages(pipeline, slots), MESSAGE_COLUMNS)


def to_messages(pipeline: Pipeline, slots: int) -> Stage:
    """A stage from rows of compound_events to messages (`MESSAGE_COLUMNS`); the slot is the output partition."""

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = output_keys(pipeline, [batch.column(name) for name in pipeline.key]).cast(pa.binary())
            columns = {
                "slot": pa.array(partitions_of(_objects(keys), slots), pa.int32()),
                "batch_id": batch.column("batch_id"),
                "key": keys,
                "value": _values(batch, pipeline).cast(pa.binary()),
                **{name: batch.column(name) for name in (*_HEADERS, "ts")},
            }
            yield pa.RecordBatch.from_pydict(columns)

    return convert


def _values(rows: pa.RecordBatch, pipeline: Pipeline) -> pa.Array:
    """The JSON texts of compounds; null for a retraction."""
    fields = [(name, json_strings(rows.column(name))) for name in pipeline.key]
    fields.append(("ts", rows.column("ts").cast(pa.string())))
    # Payloads are JSON texts already and go out as they came in, every digit kept.
    fields += [(side.payload, pc.coalesce(rows.column(side.payload), "null")) for side in pipeline.sides]
    parts: list[pa.Array | str] = []
    for name, text in fields:
        parts += [f"{',' if parts else '{'}{json.dumps(name)}:", text]
    values = pc.binary_join_element_wise(*parts, "}", "")
    return pc.if_else(pc.equal(rows.column("op"), "retract"), pa.scalar(None, pa.string()), values)


def own_messages(batches: Iterable[pa.RecordBatch], slot: int) -> Iterator[Message]:
    """The messages in rows of `MESSAGE_COLUMNS`, those without a batch_id left out.

    Raises BrokenInvariant if one is for another slot.
    """
    for batch in batches:
        strange = np.flatnonzero(batch.column("slot").to_numpy() != slot)
        if len(strange):
            other = batch.column("slot")[int(strange[0])]
            raise BrokenInvariant(f"a message for partition {other} came to the sender of {slot}: nothing of it is sent")
        rows = batch.filter(pc.is_valid(batch.column("batch_id")))
        columns = [_objects(rows.column(name)) for name in ("batch_id", "key", "value")]
        columns += [_objects(rows.column(name).cast(pa.string()).cast(pa.binary())) for name in _HEADERS]
        for batch_id, key, value, pair_id, revision, kind, op in zip(*columns, strict=True):
            yield Message(batch_id, key, value, [("pair-id", pair_id), ("revision", revision), ("kind", kind), ("op", op)])


def _objects(column: pa.Array) -> list[Any]:
    """The values as Python has them; several times faster than to_pylist()."""
    return column.to_numpy(zero_copy_only=False).tolist()


def header(name: str) -> Column:
    """The text of a header of a record."""
    value = F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return value.cast("string")
