"""Compounds in Protobuf: the `.proto` text of the value, which imports those of the sides, and its bytes.

    key fields, kind, pair_id   string
    revision                    int32
    ts; left.ts, right.ts       int64 (epoch ms); absent where the side never came
    left.reversed, …            bool; absent where the side never came
    payload                     the message that the payload is in the side's own file; the string `<name>_json` beside it holds the JSON text of a
                                payload that does not fit this message
    payload of another side, or one that is no message of the side's own file: a string with the JSON text

A field keeps its number for as long as the topic has it, and no other field ever gets it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from include.config.pipeline import Pipeline, Side
from include.config.sources import VALUE
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
    SideSchema,
    SideSchemas,
    kind_of,
    side_of,
    unusable,
)
from spark_jobs.formats.proto_columns import field_of, object_of
from spark_jobs.formats.proto_messages import MessagePrinter
from spark_jobs.formats.proto_schemas import ProtoSchema, compile_source
from spark_jobs.formats.registry import RegisteredSchema
from spark_jobs.rules.layout import Layout, Path, layout_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_TYPES = {
    TEXTS: "string",
    WHOLE_NUMBERS: "int32",
    TIMES: "int64",
    OPTIONAL_TIMES: "optional int64",
    OPTIONAL_FLAGS: "optional bool",
    PAYLOADS: "optional string",
}
# Of the numbers of fields, Protobuf keeps these for itself.
_KEPT_FROM, _KEPT_UNTIL = 19_000, 20_000


class ProtoText(NamedTuple):
    """A schema. `imports`: the name of each file that it imports, and the source of the payload whose side's schema that is."""

    text: str
    imports: tuple[tuple[str, str], ...]


def proto_schema(pipeline: Pipeline, sides: SideSchemas, newest: RegisteredSchema | None, record: str = RECORD) -> ProtoText:
    """The schema of the pipeline's values, a message of this name. `newest`: that of the topic until now.

    Raises NeedsOperator if a side's schema cannot be used.
    """
    imports: dict[str, str] = {}
    fields: list[tuple[str, str]] = []
    for name, source in pipeline.value_fields:
        message = _payload_message(sides[source], pipeline, side_of(pipeline, source)) if source in sides else None
        fields.append((name, f".{message}" if message else _TYPES[kind_of(source)]))
        if message:
            fields.append((name + AS_TEXT, _TYPES[PAYLOADS]))
            # A file that is imported twice would declare its messages twice.
            file = next((file for file, other in imports.items() if sides[other].schema == sides[source].schema), None)
            imports.setdefault(file or f"{pipeline.name}_{name}.proto", source)
    numbers, reserved = _numbers([name for name, _ in fields], _known_message(pipeline, newest))
    lines = ['syntax = "proto3";', f"package {pipeline.name};", *(f'import "{file}";' for file in imports)]
    lines += [f"message {record} {{"]
    lines += [f"  reserved {', '.join(map(str, sorted(reserved)))};"] if reserved else []
    lines += [f"  {kind} {name} = {numbers[name]};" for name, kind in fields]
    return ProtoText("\n".join([*lines, "}", ""]), tuple(imports.items()))


def _known_message(pipeline: Pipeline, newest: RegisteredSchema | None) -> Descriptor | None:
    """The message of the topic's newest schema; None if there is none, or another one."""
    if newest is None or newest.kind != "PROTOBUF":
        return None
    try:
        return compile_source(newest.text, dict(newest.references)).message_named(f"{pipeline.name}.{RECORD}")
    except ValueError:
        # Whoever registered that: the registry says whether ours is compatible with it.
        return None


def _numbers(names: list[str], known: Descriptor | None) -> tuple[dict[str, int], set[int]]:
    """The number of each field, and those that no field may have any more."""
    numbers = {field.name: field.number for field in known.fields} if known else {}
    reserved = {number for name, number in numbers.items() if name not in names}
    if known:
        from google.protobuf.descriptor_pb2 import DescriptorProto

        own = DescriptorProto()
        known.CopyToProto(own)
        reserved |= {number for each in own.reserved_range for number in range(each.start, each.end)}
    free = max((*numbers.values(), *reserved), default=0) + 1
    found: dict[str, int] = {}
    for name in names:
        if name not in numbers:
            free = _KEPT_UNTIL if _KEPT_FROM <= free < _KEPT_UNTIL else free
            numbers[name], free = free, free + 1
        found[name] = numbers[name]
    return found, reserved


def _payload_message(own: SideSchema, pipeline: Pipeline, side: Side) -> str | None:
    """The full name of the message that the payload is; None if it is none of the side's own file."""
    layout = layout_of(pipeline, side)
    if layout.payload.part != VALUE:
        return None
    try:
        file = compile_source(own.schema.text, dict(own.schema.references))
        message = file.message_named(side.message) if side.message else _message_with(file, layout)
    except ValueError as problem:
        raise unusable(side, problem) from None
    found = message and _at(message, layout.payload.path)
    return found.full_name if message and found and found.file.name == message.file.name else None


def _message_with(file: ProtoSchema, layout: Layout) -> Descriptor | None:
    """The first message of the file that has the side's key fields and payload: only records say which of its messages they are."""
    paths = [source.path for source in (*layout.sources, layout.payload) if source.part == VALUE and source.path]

    def has(message: Descriptor, path: Path) -> bool:
        inner = _at(message, path[:-1])
        return inner is not None and field_of(inner, path[-1]) is not None

    return next((message for message in file.messages() if all(has(message, path) for path in paths)), None)


def _at(message: Descriptor, path: Path) -> Descriptor | None:
    """The message at a path in another one; None if there is none."""
    found: Descriptor | None = message
    for name in path:
        field = found and field_of(found, name)
        found = object_of(field) if field else None
    return found


def proto_encoder(schema: OutputSchema) -> Encode:
    """The function from columns to values of the schema, each with its frame."""
    from google.protobuf.message_factory import GetMessageClass

    message = compile_source(schema.text, dict(schema.references)).message_at([0])
    made = GetMessageClass(message)
    fields = [_field(message, name, source) for name, source in schema.fields]

    def encode(columns: Mapping[str, pa.Array]) -> pa.Array:
        given = [columns[source].to_pylist() for _, source in schema.fields]
        return pa.array(map(value, *given), pa.binary())

    def value(*row: Any) -> bytes:
        found = made()
        for fill, content in zip(fields, row, strict=True):
            if content is not None:
                fill(found, content)
        # Maps in any other order would be other bytes each time.
        body: bytes = found.SerializeToString(deterministic=True)
        return schema.frame + body

    return encode


def _field(message: Descriptor, name: str, source: str) -> Callable[[Any, Any], None]:
    """A function that puts a content (no null) into a message."""
    inner = message.fields_by_name[name].message_type
    if kind_of(source) != PAYLOADS or inner is None:
        return lambda found, content: setattr(found, name, content)
    read = _payload_reader(inner)

    def fill(found: Any, text: str) -> None:
        body = read(text)
        if body is None:
            setattr(found, name + AS_TEXT, text)
        else:
            # An empty message is there, too.
            getattr(found, name).SetInParent()
            getattr(found, name).MergeFromString(body)

    return fill


def _number(token: str) -> int | float:
    # An integer of Python has no negative zero.
    return -0.0 if token == "-0" else int(token)


def _payload_reader(message: Descriptor) -> Callable[[str], bytes | None]:
    """A function from JSON texts to messages of the type; None for a text that such a message would not be printed as."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message_factory import GetMessageClass

    made, pool, printed = GetMessageClass(message), message.file.pool, MessagePrinter(message, {}).text

    def read(text: str) -> bytes | None:
        try:
            content = json.loads(text, parse_int=_number)
            if not isinstance(content, dict):
                return None
            body: bytes = ParseDict(content, made(), descriptor_pool=pool).SerializeToString(deterministic=True)
        except (ParseError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        return body if printed(body) == text else None

    return read
