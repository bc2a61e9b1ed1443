"""Output keys that are records. Their schemas and bytes are written out here: with any others, a pair would have two keys on the topic."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from include.config.pipeline import Pipeline
from include.sample import truth as sample_truth
from spark_jobs.formats.output_key import key_schema
from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.kafka.messages import output_key, output_keys
from tests.helpers.timeline import CALLS

AVRO, PROTOBUF = (replace(CALLS, output_key=form) for form in ("avro", "protobuf"))
TEXTS = {
    "avro": '{"type": "record", "name": "Key", "namespace": "calls", "fields": '
    '[{"name": "user1", "type": "string"}, {"name": "user2", "type": "string"}]}',
    "protobuf": 'syntax = "proto3";\npackage calls;\nmessage Key {\n  string user1 = 1;\n  string user2 = 2;\n}\n',
}
SCHEMAS = {pipeline.output_key: key_schema(pipeline, 7) for pipeline in (AVRO, PROTOBUF)}
MESSAGE = GetMessageClass(compile_source(TEXTS["protobuf"], {}).message_at([0]))
BODIES = {"avro": b"\x06ann\x04\xc3\xa9", "protobuf": b"\x00\x0a\x03ann\x12\x02\xc3\xa9"}


@pytest.mark.parametrize("pipeline", [AVRO, PROTOBUF], ids=list(TEXTS))
def test_schema_and_bytes_are_what_they_have_always_been(pipeline: Pipeline) -> None:
    schema = key_schema(pipeline, 258)
    assert (schema.kind, schema.text) == (pipeline.output_key.upper(), TEXTS[pipeline.output_key])
    assert output_key(pipeline, ("ann", "é"), schema) == b"\x00\x00\x00\x01\x02" + BODIES[pipeline.output_key]


@pytest.mark.parametrize("pipeline", [AVRO, PROTOBUF], ids=list(TEXTS))
def test_an_erased_key_is_none(pipeline: Pipeline) -> None:
    users, schema = ["ann", None, "eve", None], SCHEMAS[pipeline.output_key]
    keys = output_keys(pipeline, [pa.array(users), pa.array(users)], schema).to_pylist()
    assert keys == [user and output_key(pipeline, (user, user), schema) for user in users] and None in keys
    nobody = pa.array([None, None], pa.string())
    assert output_keys(pipeline, [nobody, nobody], schema).to_pylist() == [None, None]


def test_a_key_is_unknown_before_its_schema_has_an_id() -> None:
    assert output_key(AVRO, ("ann", "bob")) is None


def test_the_schema_follows_from_the_key_fields_alone() -> None:
    others: dict[str, Any] = {"output_format": "protobuf", "output_fields": (("a", "ts"),), "output_topic": "another"}
    assert key_schema(replace(AVRO, **others, key_order="any")) == key_schema(AVRO)


@settings(deadline=None)
@given(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1)] * 2))
def test_consumers_read_the_fields_back(key: tuple[str, str]) -> None:
    fields = dict(zip(CALLS.key, key, strict=True))
    avro, proto = output_key(AVRO, key, SCHEMAS["avro"]), output_key(PROTOBUF, key, SCHEMAS["protobuf"])
    assert [sample_truth._key(AVRO, list(key), avro or b""), sample_truth._key(PROTOBUF, list(key), proto or b"")] == [
        avro,
        proto,
    ]
    assert avro and schemaless_reader(BytesIO(avro[5:]), parse_schema(json.loads(TEXTS["avro"])), None) == fields
    message = MESSAGE.FromString((proto or b"")[6:])
    assert {field.name: value for field, value in message.ListFields()} == fields
