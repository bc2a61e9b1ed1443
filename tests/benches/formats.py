"""The traffic of the benches in other formats, in a registry's frames, on topics of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from include.config.pipeline import Pipeline
from spark_jobs.formats.proto_schemas import compile_source
from tests.benches.traffic import deliver, slots
from tests.helpers.schema_registry import LocalRegistry

# Names, types in Avro, types in Protobuf of the fields of both payloads.
_PAYLOADS = (
    (("device", "string", "string"), ("setup_ms", "int", "int32"), ("rating", "double", "double")),
    (("codec", "string", "string"), ("rtt_ms", "int", "int32"), ("loss", "double", "double")),
)
Encode = Callable[[dict[str, Any]], bytes]


def in_avro(pipeline: Pipeline, registry: LocalRegistry) -> tuple[Pipeline, list[Encode]]:
    """The pipeline with both sides in Avro, and what makes a framed value of an event of each side."""
    sides, encoders = [], []
    for side, fields in zip(pipeline.sides, _PAYLOADS, strict=True):
        payload = {"type": "record", "name": "Payload", "fields": [{"name": name, "type": kind} for name, kind, _ in fields]}
        schema = {"type": "record", "name": "Call", "fields": [
            *({"name": name, "type": "string"} for name in pipeline.key),
            {"name": pipeline.timestamp, "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": side.payload, "type": payload},
        ]}  # fmt: skip
        frame = _frame(registry.register(f"{side.topic}-value", "AVRO", json.dumps(schema)))
        encoders.append(_avro_encoder(frame, parse_schema(schema)))
        sides.append(replace(side, format="avro"))
    return replace(pipeline, left=sides[0], right=sides[1]), encoders


def in_protobuf(pipeline: Pipeline, registry: LocalRegistry) -> tuple[Pipeline, list[Encode]]:
    """As `in_avro`, in Protobuf."""
    sides, encoders = [], []
    for side, fields in zip(pipeline.sides, _PAYLOADS, strict=True):
        payload = "".join(f"{kind} {name} = {number};" for number, (name, _, kind) in enumerate(fields, 1))
        text = (
            f'syntax = "proto3"; message Call {{ message Payload {{ {payload} }} '
            f"string {pipeline.key[0]} = 1; string {pipeline.key[1]} = 2; int64 {pipeline.timestamp} = 3; Payload {side.payload} = 4; }}"
        )
        frame = _frame(registry.register(f"{side.topic}-value", "PROTOBUF", text)) + b"\x00"
        encoders.append(_protobuf_encoder(frame, text))
        sides.append(replace(side, format="protobuf"))
    return replace(pipeline, left=sides[0], right=sides[1]), encoders


def _frame(key: int) -> bytes:
    return b"\x00" + key.to_bytes(4, "big")


def _avro_encoder(frame: bytes, schema: Any) -> Encode:
    def encode(event: dict[str, Any]) -> bytes:
        to = BytesIO()
        to.write(frame)
        schemaless_writer(to, schema, event)
        return to.getvalue()

    return encode


def _protobuf_encoder(frame: bytes, text: str) -> Encode:
    from google.protobuf.message_factory import GetMessageClass

    made = GetMessageClass(compile_source(text, {}).message_named("Call"))
    return lambda event: frame + made(**event).SerializeToString()


def send_encoded(bootstrap: str, pipeline: Pipeline, events: int, now: int, encoders: list[Encode]) -> None:
    """As `traffic.send`: the same events in the same order."""

    def messages() -> Iterator[tuple[str, bytes, bytes]]:
        for slot in slots(events, now):
            for row in slot.to_pylist():
                side = pipeline.sides[row["side"]]
                event = {name: row[name] for name in pipeline.key}
                event |= {pipeline.timestamp: row["ts"], side.payload: json.loads(row["payload"])}
                yield side.topic, encoders[row["side"]](event), "-".join(row[name] for name in pipeline.key).encode()

    deliver(bootstrap, messages())
