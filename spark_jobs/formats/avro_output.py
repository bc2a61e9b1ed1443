"""Compounds in Avro: the schema of the value, made of those of the sides, and its bytes.

    key fields, kind, pair_id   string
    revision                    int
    ts; left.ts, right.ts       long of timestamp-millis; null, too, where the side never came
    left.reversed, …            boolean; null, too, where the side never came
    payload                     null, or the type that the payload has in the side's own schema; `<name>_json` (null or a string) beside it holds
                                the JSON text of a payload that does not fit this type
    payload of another side     null, or a string with the JSON text

Types of a side keep their names, behind the pipeline's and the payload's: both sides may have types of one name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from fastavro import parse_schema

from include.config.pipeline import Pipeline, Side
from include.config.sources import VALUE, Source
from spark_jobs.formats.avro_encoding import long_bytes, parse_json, string_bytes, value_encoder
from spark_jobs.formats.avro_schema import Node, read_schema
from spark_jobs.formats.output_schema import (
    AS_TEXT,
    OPTIONAL_FLAGS,
    OPTIONAL_TIMES,
    PAYLOADS,
    RECORD,
    TEXTS,
    TIMES,
    WHOLE_NUMBERS,
    Encode,
    OutputSchema,
    SideSchemas,
    kind_of,
    side_of,
    unusable,
)
from spark_jobs.formats.registry import RegisteredSchema
from spark_jobs.rules.layout import layout_of

_TIME = {"type": "long", "logicalType": "timestamp-millis"}
_TYPES: Mapping[str, Any] = {TEXTS: "string", WHOLE_NUMBERS: "int", TIMES: _TIME}
_OPTIONAL: Mapping[str, Any] = {OPTIONAL_TIMES: [_TIME], OPTIONAL_FLAGS: ["boolean"]}
_NULL, _THERE = b"\0", b"\2"
# What a type says that means something to a reader; names and inner types are written anew.
_KEPT = ("type", "doc", "symbols", "size", "logicalType", "precision", "scale", "default", "order")
Schema: TypeAlias = Any
Field: TypeAlias = Callable[[Mapping[str, pa.Array]], list[bytes]]


def avro_schema(pipeline: Pipeline, sides: SideSchemas, record: str = RECORD) -> str:
    """The schema of the pipeline's values, a record of this name. Raises NeedsOperator if a side's schema cannot be used."""
    fields: list[Schema] = []
    for name, source in pipeline.value_fields:
        if (kind := kind_of(source)) in _TYPES:
            fields.append({"name": name, "type": _TYPES[kind]})
            continue
        types = _OPTIONAL.get(kind)
        if source in sides:
            side = side_of(pipeline, source)
            payload = layout_of(pipeline, side).payload
            types = _payload_types(sides[source].schema, side, payload, f"{pipeline.name}.{name}")
        fields.append(_optional(name, types or ["string"]))
        if kind == PAYLOADS and types:
            fields.append(_optional(name + AS_TEXT, ["string"]))
    return json.dumps({"type": "record", "name": record, "namespace": pipeline.name, "fields": fields})


def _optional(name: str, types: list[Schema]) -> Schema:
    return {"name": name, "type": ["null", *types], "default": None}


def _payload_types(schema: RegisteredSchema, side: Side, payload: Source, namespace: str) -> list[Schema] | None:
    """The types that a payload may have beside null, complete in themselves; None if the schema declares no such field."""
    known: dict[str, Schema] = {}
    try:
        read_schema(schema.text, [text for _, text in schema.references])
        for _, text in schema.references:
            parse_schema(json.loads(text), known)
        found = _at(parse_schema(json.loads(schema.text), known), payload, known)
        own = _Standalone(known, namespace)
        return [own.copy(each) for each in found if each != "null"]
    except ValueError as problem:
        raise unusable(side, problem) from None


def _at(schema: Schema, source: Source, known: Mapping[str, Schema]) -> list[Schema]:
    """The types at a path in the value, without null; none if there is no such field."""
    found = _branches(schema, known) if source.part == VALUE else []
    for name in source.path:
        # Where branches differ, a path finds what the record has: such a payload has many types.
        fields = found[0].get("fields", ()) if len(found) == 1 and isinstance(found[0], dict) else ()
        found = next((_branches(each["type"], known) for each in fields if each["name"] == name), [])
    return found


def _branches(schema: Schema, known: Mapping[str, Schema]) -> list[Schema]:
    if isinstance(schema, list):
        return [branch for each in schema for branch in _branches(each, known)]
    if isinstance(schema, str) and schema in known:
        return [known[schema]]
    if isinstance(schema, dict) and not isinstance(schema["type"], str):
        return _branches(schema["type"], known)
    return [] if _type_of(schema) == "null" else [schema]


def _type_of(schema: Schema) -> Schema:
    return schema["type"] if isinstance(schema, dict) else schema


class _Standalone:
    """Copies types so that they need no others: each named type is written where it is met first, with a namespace before its name."""

    def __init__(self, known: Mapping[str, Schema], namespace: str) -> None:
        self._known, self._namespace = known, namespace
        self._written: set[str] = set()

    def copy(self, schema: Schema) -> Schema:
        if isinstance(schema, list):
            return [self.copy(each) for each in schema]
        if isinstance(schema, str):
            return self.copy(self._known[schema]) if schema in self._known else schema
        if "name" not in schema:
            return self._parts(schema)
        name = f"{self._namespace}.{schema['name']}"
        if name in self._written:
            return name
        self._written.add(name)
        copied = {**self._parts(schema), "name": name}
        if "fields" in schema:
            copied["fields"] = [
                {**{key: each[key] for key in (*_KEPT, "name", "aliases") if key in each}, "type": self.copy(each["type"])}
                for each in schema["fields"]
            ]
        return copied

    def _parts(self, schema: Schema) -> Schema:
        kept = {key: schema[key] for key in _KEPT if key in schema}
        if not isinstance(schema["type"], str) or schema["type"] in self._known:
            return self.copy(schema["type"])
        return kept | {key: self.copy(schema[key]) for key in ("items", "values") if key in schema}


def avro_encoder(schema: OutputSchema) -> Encode:
    """The function from columns to values of the schema, each with its frame."""
    nodes = dict(read_schema(schema.text).fields)
    fields = [_field(nodes, name, source) for name, source in schema.fields]

    def encode(columns: Mapping[str, pa.Array]) -> pa.Array:
        rows = zip(*(of(columns) for of in fields), strict=True)
        return pa.array([schema.frame + b"".join(row) for row in rows], pa.binary())

    return encode


def _field(nodes: Mapping[str, Node], name: str, source: str) -> Field:
    encode: Callable[[Any], bytes]
    kind = kind_of(source)
    if kind == PAYLOADS:
        encode = _typed(nodes[name]) if name + AS_TEXT in nodes else lambda text: _THERE + string_bytes(text)
        nothing = _NULL * (1 + (name + AS_TEXT in nodes))
    elif kind == OPTIONAL_TIMES:
        encode, nothing = lambda value: _THERE + long_bytes(value), _NULL
    elif kind == OPTIONAL_FLAGS:
        encode, nothing = lambda value: _THERE + bytes([value]), _NULL
    else:
        encode, nothing = string_bytes if kind == TEXTS else long_bytes, b""

    def of(columns: Mapping[str, pa.Array]) -> list[bytes]:
        return [nothing if value is None else encode(value) for value in columns[source].to_pylist()]

    return of


def _typed(node: Node) -> Callable[[str], bytes]:
    """Both fields of a payload with a type."""
    of_value = value_encoder(node)

    def encode(text: str) -> bytes:
        try:
            return of_value(parse_json(text)) + _NULL
        except (ValueError, RecursionError):
            return _NULL + _THERE + string_bytes(text)

    return encode
