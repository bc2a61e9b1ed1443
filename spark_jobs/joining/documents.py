"""The records of one topic as landing would decode them: what their values and keys are, and the JSON documents in them."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from include.config.pipeline import AVRO, JSON, JSON_SCHEMA, PROTOBUF, Format, Pipeline, Side
from include.config.time_text import count
from spark_jobs.formats.decoding import event_parser
from spark_jobs.formats.frames import Frames, HeaderName, split_frames
from spark_jobs.formats.registry import VARIABLE, Registry
from spark_jobs.joining.schema_files import SchemaFile
from spark_jobs.kafka.newest import NewestRecords
from spark_jobs.rules.parsed_columns import Columns
from spark_jobs.rules.times import LARGEST_TS

_OF_KIND: dict[str, Format] = {"AVRO": AVRO, "PROTOBUF": PROTOBUF, "JSON": JSON_SCHEMA}
_SHOWN = 5


class NoProposal(LookupError):
    """The topics cannot be joined, or nobody can tell how; the text is one line that says what was looked at."""


class Documents(NamedTuple):
    """A topic's records that could be decoded: `bodies` and `keys` are JSON values (a key that is a text is one; None without a key).

    `headers`: name -> text of the first header of that name. `stamps`: record timestamps, epoch ms. `total`: records looked at, with those
    that could not be decoded. `is_whole`: the topic has no others. `notes`: what was said while they were read. `file`: the schema file by which
    values were decoded.
    """

    topic: str
    format: Format
    key_format: Format
    bodies: list[Any]
    keys: list[Any]
    headers: list[dict[str, str]]
    stamps: np.ndarray
    total: int
    is_whole: bool
    notes: list[str]
    file: SchemaFile | None = None

    def where(self, is_chosen: np.ndarray) -> Documents:
        """Those that are chosen, by a mask."""
        rows = np.flatnonzero(is_chosen).tolist()
        parts = ([each[row] for row in rows] for each in (self.bodies, self.keys, self.headers))
        bodies, keys, headers = parts
        return self._replace(bodies=bodies, keys=keys, headers=headers, stamps=self.stamps[is_chosen])


def read_documents(newest: NewestRecords, registry: Registry | None, file: SchemaFile | None = None) -> Documents:
    """Decodes a sample. `registry`: None if its settings are not there. `file`: the schema of the values, if it does not show in them.

    Raises NoProposal if the topic is empty or its values are in no format that shows by itself; RegistryProblem and NeedsOperator as
    landing does.
    """
    records, topic = newest.records.combine_chunks(), newest.topic
    if not records.num_rows:
        raise NoProposal(f"{topic} has no records: send some to it, then ask again")
    values, keys, headers = (_one(records, name) for name in ("value", "key", "headers"))
    form, notes = (file.format, list[str]()) if file else _format_of_values(topic, values, headers, registry)
    if newest.is_cut:
        notes.append("records are so large that not all partitions were looked at")
    key_form = _format_of_keys(keys, headers, registry)
    texts, key_texts = _decoded(topic, records, form, key_form, registry, file)
    bodies = [None if text is None else _loads(text) for text in texts]
    rows = [row for row, body in enumerate(bodies) if isinstance(body, dict)]
    if not rows:
        raise NoProposal(f"none of the newest {count(records.num_rows, 'record')} of {topic} could be decoded as {form}")
    if len(rows) < records.num_rows:
        notes.append(f"{records.num_rows - len(rows)} of {count(records.num_rows, 'record')} could not be decoded as {form}")
    of_headers, stamps = headers.to_pylist(), _one(records, "record_timestamp").to_numpy(zero_copy_only=False)
    return Documents(
        topic,
        form,
        key_form,
        [bodies[row] for row in rows],
        [_key(key_texts[row]) for row in rows],
        [_first_texts(of_headers[row]) for row in rows],
        stamps[rows],
        records.num_rows,
        newest.is_whole,
        notes,
        file,
    )


def _one(records: pa.Table, name: str) -> pa.Array:
    column = records.column(name)
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _format_of_values(
    topic: str, values: pa.Array, headers: pa.Array, registry: Registry | None
) -> tuple[Format, list[str]]:
    there = [value for value in values.to_pylist() if value]
    objects = sum(isinstance(_loads(value), dict) for value in there)
    if 2 * objects >= len(there):
        return JSON, []
    frames, kinds = _kinds(values, headers, "__value_schema_id", registry)
    framed = int((frames.codes >= 0).sum())
    if kinds:
        kind, most = kinds.most_common(1)[0]
        if kind not in _OF_KIND:
            raise NoProposal(f"schemas of {topic} are of the kind {kind}, which this pipeline does not read")
        others = [f"{each} ({number})" for each, number in kinds.items() if each != kind]
        return _OF_KIND[kind], [
            f"most schemas are of the kind {kind} ({most}), others {', '.join(others)}"
        ] if others else []
    # Plain Avro may begin like a frame, but seldom in most records.
    ids = ", ".join(map(str, frames.keys[:_SHOWN])) + (", …" if len(frames.keys) > _SHOWN else "")
    if 2 * framed >= len(there) and registry is None:
        raise NoProposal(
            f"values of {topic} are in a schema registry's frame (schema {ids}): set {VARIABLE}, like land_events"
        )
    unknown = f"; they begin like a schema registry's frame, but the registry does not know schema {ids}"
    raise NoProposal(
        f"values of {topic} are neither JSON objects nor in a schema registry's frame: plain Avro or Protobuf needs its schema, "
        f"which does not show in records; give it with --left-schema-file or --right-schema-file"
        f"{unknown if 2 * framed >= len(there) else ''}"
    )


def _format_of_keys(keys: pa.Array, headers: pa.Array, registry: Registry | None) -> Format:
    _, kinds = _kinds(keys, headers, "__key_schema_id", registry)
    return _OF_KIND.get(kinds.most_common(1)[0][0], JSON) if kinds else JSON


def _kinds(
    values: pa.Array, headers: pa.Array, header: HeaderName, registry: Registry | None
) -> tuple[Frames, Counter[str]]:
    """The frames, and the kinds of the schemas that they name, with the number of their records, if most records name known ones."""
    frames, kinds = split_frames(values, headers, header), Counter[str]()
    if registry is not None and 2 * int((frames.codes >= 0).sum()) >= len(values) - values.null_count > 0:
        for key, rows in frames.groups():
            if registered := registry.schema(key):
                kinds[registered.kind] += len(rows)
    return frames, kinds


def _decoded(
    topic: str, records: pa.Table, form: Format, key_form: Format, registry: Registry | None, file: SchemaFile | None
) -> tuple[list[str | None], list[str | None]]:
    """The JSON text of each value, and of each key its text."""
    side = Side(
        topic=topic,
        payload="body",
        payload_from="$value",
        key=(("record_key", "$key"),),
        timestamp="$timestamp",
        format=form,
        schema=file and file.text,
        message=file and file.message,
        key_format=key_form,
    )
    pipeline = Pipeline(
        name="looked_at", left=side, right=side, output_topic="", key=("record_key",), tolerance_ms=0, gap_ms=1, grace_ms=0
    )
    columns = Columns(*(_one(records, name) for name in ("value", "record_timestamp", "key", "headers")))
    parsed = event_parser(pipeline, side, LARGEST_TS, registry)(columns)
    return parsed.payload.to_pylist(), parsed.key[0].to_pylist()


def _loads(text: str | bytes) -> Any:
    """None of what is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _key(text: str | None) -> Any:
    """The object that a key is, or else its text."""
    document = _loads(text) if text is not None and text[:1] == "{" else None
    return document if isinstance(document, dict) else text


def _first_texts(headers: list[dict[str, Any]] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in headers or ():
        try:
            found.setdefault(header["key"], (header["value"] or b"").decode())
        except UnicodeDecodeError:
            continue
    return found
