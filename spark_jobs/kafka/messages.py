r"""Compounds as messages of the output topic: key, value, headers, output partition and size.

Of one key field the key is its text. Of more, `escaped` joins the texts by `-`, with a backslash before every `-` and every backslash in a
field; `json` is a compact JSON array; `avro` and `protobuf` are a record of the fields. All are injective: no two keys of a pipeline have the
same bytes, and each can be read back. The output partition follows from the key as in Kafka's default partitioner, so compounds lie where a
Java producer would put them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import murmur2
from pyspark.sql import Column
from pyspark.sql import functions as F

from include.config.pipeline import ESCAPED, Pipeline
from spark_jobs.formats.json_text import strings
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.kafka.encoded_values import encode_keys, encode_values
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.batch_settings import BatchSettings
from spark_jobs.tables.output_schemas import known_key_schema
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.reading import Reading
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.tables import Condition
from spark_jobs.tables.warehouse import Warehouse

Schemas = Mapping[int, OutputSchema]
ALL_JSON: Schemas = {}
MESSAGE_COLUMNS = pa.schema(
    {"output_partition": pa.int32(), "batch_id": pa.int64(), "key": pa.binary(), "value": pa.binary()}
    | {"pair_id": pa.string(), "revision": pa.int32(), "kind": pa.string(), "op": pa.string(), "ts": pa.int64()}
)
_HEADERS = ("pair_id", "revision", "kind", "op")
# What a broker's limit counts besides the content, each rounded up: the frame of a batch, of a record in it, and of a header.
BATCH_FRAME, _RECORD_FRAME, _HEADER_FRAME = 128, 128, 16
# More than headers and frames of any compound take: the longest header, pair-id, is a topic's name and two numbers.
_ALL_FRAMES = 2048


class Message(NamedTuple):
    """One record for an output topic: a compound or a dead letter."""

    batch_id: int
    key: bytes | None  # None only of a dead letter
    value: bytes | None  # None is a retraction, or a dead letter that never had one
    headers: list[tuple[str, str | bytes | None]]
    source: str | None = None  # of a dead letter: the place of its record


def reading_of_compounds(
    warehouse: Warehouse,
    partitions: Mapping[int, int],
    batches: Iterable[int] | None = None,
    where: Condition | None = None,
    settings: BatchSettings | None = None,
    schemas: Schemas = ALL_JSON,
) -> Reading:
    """The compounds of these batches (None: of all) for which `where` holds, as rows of `MESSAGE_COLUMNS`.

    `partitions`, `settings`, `schemas`: see `message_maker`.
    """
    pipeline, key_schema = warehouse.pipeline, known_key_schema(warehouse, was_sent=bool(partitions))
    known = settings or BatchSettings.of_all(pipeline)
    values = (each.value_sources[source] for each in known.pipelines for _, source in each.value_fields)
    columns = list(dict.fromkeys([*pipeline.key, "ts", *values, "batch_id", *_HEADERS]))
    made = InWorker(message_maker(pipeline, partitions, known, schemas, key_schema), MESSAGE_COLUMNS)
    return warehouse.reading(COMPOUNDS, columns, batches=batches, where=where, made=made)


def message_maker(
    pipeline: Pipeline,
    partitions: Mapping[int, int],
    settings: BatchSettings | None = None,
    schemas: Schemas = ALL_JSON,
    key_schema: OutputSchema | None = None,
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from rows of compound_events to rows of `MESSAGE_COLUMNS`.

    `partitions`: batch_id -> number of output partitions; compounds of other batches have no output partition (null). `settings`: those of
    the batches, which say what is in a value; None: the pipeline's for all. `schemas`: batch_id -> schema of the values; those of other
    batches are JSON. `key_schema`: see `output_keys`.
    """
    known = settings or BatchSettings.of_all(pipeline)

    def convert(rows: pa.RecordBatch) -> pa.RecordBatch:
        keys = output_keys(pipeline, [rows.column(name) for name in pipeline.key], key_schema).cast(pa.binary())
        counts = [partitions.get(batch_id) for batch_id in _objects(rows.column("batch_id"))]
        columns = {
            "output_partition": pa.array(map(output_partition, _objects(keys), counts), pa.int32()),
            "batch_id": rows.column("batch_id"),
            "key": keys,
            "value": encode_values(rows, pipeline, _values_of_batches(rows, known), schemas),
            **{name: rows.column(name) for name in (*_HEADERS, "ts")},
        }
        return pa.RecordBatch.from_pydict(columns)

    return convert


def messages_for(partition: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
    """The messages in rows of `MESSAGE_COLUMNS`; leaves out rows without a batch_id.

    Raises BrokenInvariant if a row is for another output partition.
    """
    for batch in batches:
        rows = rows_for(partition, batch)
        pair_ids = _objects(rows.column("pair_id").cast(pa.binary()))
        shared = (_shared_headers(name, rows.column(name)) for name in ("revision", "kind", "op"))
        headers = map(list, zip(zip(repeat("pair-id"), pair_ids, strict=False), *shared, strict=True))
        columns = (_objects(rows.column(name)) for name in ("batch_id", "key", "value"))
        # Without a loop in Python, which would take twice as long.
        yield from map(partial(tuple.__new__, Message), zip(*columns, headers, repeat(None), strict=False))


def _shared_headers(name: str, column: pa.Array) -> list[tuple[str, bytes]]:
    """The header of each row, the same object where the values are the same, as they mostly are."""
    coded = column.cast(pa.string()).cast(pa.binary()).dictionary_encode()
    headers = np.fromiter(((name, value) for value in _objects(coded.dictionary)), object, len(coded.dictionary))
    return cast(list[tuple[str, bytes]], headers[coded.indices.to_numpy()].tolist())


def rows_for(partition: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a batch_id. Raises BrokenInvariant if a row is for another output partition."""
    strange = np.flatnonzero(batch.column("output_partition").to_numpy() != partition)
    if len(strange):
        other = batch.column("output_partition")[int(strange[0])]
        raise BrokenInvariant(f"a message for partition {other} came to the sender of {partition}: nothing of it is sent")
    return batch.filter(pc.is_valid(batch.column("batch_id")))


def _values_of_batches(rows: pa.RecordBatch, settings: BatchSettings) -> pa.Array:
    """The values of compounds, each by the settings of its batch; null for a retraction."""
    used = settings.indices(rows.column("batch_id").to_numpy())
    values = None
    for index in np.unique(used):
        made = _values(rows, settings.pipelines[index]).cast(pa.binary())
        values = made if values is None else pc.if_else(pa.array(used == index), made, values)
    return pa.array([], pa.binary()) if values is None else values


def _values(rows: pa.RecordBatch, pipeline: Pipeline) -> pa.Array:
    """The JSON texts of compounds; null for a retraction."""
    parts: list[pa.Array | str] = []
    for name, source in pipeline.value_fields:
        column = rows.column(pipeline.value_sources[source])
        parts += [f"{',' if parts else '{'}{json.dumps(name)}:", _json_texts(column, is_json=source.endswith(".payload"))]
    values = pc.binary_join_element_wise(*parts, "}", "")
    return pc.if_else(pc.equal(rows.column("op"), "retract"), pa.scalar(None, pa.string()), values)


def _json_texts(column: pa.Array, is_json: bool) -> pa.Array:
    """The JSON texts of a column's values. `is_json`: they are JSON texts already, as payloads, and stay as they are, with every digit."""
    if is_json or not pa.types.is_string(column.type):
        return pc.coalesce(column.cast(pa.string()), "null")
    return strings(column)


def _objects(column: pa.Array) -> list[Any]:
    """The values as Python objects; several times faster than to_pylist()."""
    return column.to_numpy(zero_copy_only=False).tolist()


def size(message: Message) -> int:
    """Bytes of the message as the only one of its batch, uncompressed, rounded up.

    >>> size(Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")]))
    289
    """
    headers = sum(len(name.encode()) + len(value or b"") + _HEADER_FRAME for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers + BATCH_FRAME + _RECORD_FRAME


def fits(message: Message, limit: int) -> bool:
    """Whether the message has at most so many bytes, by `size`.

    >>> message = Message(1, b"x-y", b"{}", [("pair-id", b"a-0-1")])
    >>> fits(message, 289), fits(message, 288)
    (True, False)
    """
    if message.source is not None:
        # The headers of a dead letter may be of any length.
        return size(message) <= limit
    # Called for every message, so it computes the exact size only near the limit.
    return len(message.key or b"") + len(message.value or b"") + _ALL_FRAMES <= limit or size(message) <= limit


def name_of(message: Message) -> str:
    """What operators call it: a dead letter by the place of its record, a compound by its pair_id."""
    if message.source is not None:
        return message.source
    return next(value.decode() for name, value in message.headers if name == "pair-id" and isinstance(value, bytes))


def header(name: str) -> Column:
    """The text of a header of a record that was read."""
    value = F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return value.cast("string")


def output_partition(key: bytes | None, partitions: int | None) -> int | None:
    """The key's partition among so many: (murmur2 & 0x7fffffff) % partitions, as in Kafka's default partitioner. None of None, and of an
    erased key.

    >>> [output_partition(key, 4) for key in (b"a-b", b"x-y", b"21")]
    [1, 1, 0]
    """
    return None if partitions is None or key is None else int(murmur2(key, partitions))


def output_keys(pipeline: Pipeline, fields: list[pa.Array], schema: OutputSchema | None = None) -> pa.Array:
    r"""The keys (texts, or binary by the schema), given one array for each key field.

    `schema`: of keys that have one; without it they are null, as no key was sent yet.

    >>> from include.config.pipeline import PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> fields = [pa.array(["ann", "a-b", "a"]), pa.array(["bob", "c", "b-c"])]
    >>> output_keys(load_pipeline(PIPELINES / "calls.yaml"), fields).to_pylist() == ["ann-bob", r"a\-b-c", r"a-b\-c"]
    True
    """
    if pipeline.key_has_schema:
        return encode_keys(fields, schema) if schema else pa.nulls(len(fields[0]), pa.binary())
    if pipeline.output_key != ESCAPED:
        return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*map(strings, fields), ","), "]", "")
    if len(fields) == 1:
        return fields[0]
    return pc.binary_join_element_wise(*map(_escaped, fields), "-")


def output_key(pipeline: Pipeline, key: tuple[str, ...], schema: OutputSchema | None = None) -> bytes | None:
    """The key of one message, as it is on the topic; None if no key was sent yet. `schema`: as in `output_keys`."""
    found: bytes | None = output_keys(pipeline, [pa.array([field]) for field in key], schema).cast(pa.binary())[0].as_py()
    return found


def _escaped(texts: pa.Array) -> pa.Array:
    # Most fields contain neither, and a search of the whole buffer is fast. Bytes outside these rows only cost a replacement.
    data = texts.buffers()[2]
    content = data.to_pybytes() if data else b""
    # The backslash first, or those before a separator would be doubled as well.
    for special in ("\\", "-"):
        if special.encode() in content:
            texts = pc.replace_substring(texts, special, f"\\{special}")
    return texts
