"""Compounds in Avro: the schema made of the sides', read back by fastavro as any consumer would."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.avro_output import avro_encoder, avro_schema
from spark_jobs.formats.output_schema import OutputSchema, SideSchema
from spark_jobs.formats.registry import RegisteredSchema
from tests.helpers.timeline import CALLS
from tests.unit.formats.test_avro import on_wire, same_value, texts_of, types, without_logical, written

AVRO = replace(CALLS, output_format="avro", left=replace(CALLS.left, format="avro"))
STATS = {"type": "record", "name": "Stats", "namespace": "com.acme", "doc": "of a call", "fields": [
    {"name": "mos", "type": "double", "default": 4.5}, {"name": "next", "type": ["null", "com.acme.Stats"], "default": None},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}, "default": "B"},
    {"name": "again", "type": "com.acme.Kind", "default": "A"},
]}  # fmt: skip


def side(payload: Any, references: tuple[tuple[str, str], ...] = (), name: str = "analytics") -> dict[str, SideSchema]:
    call = {"type": "record", "name": "Call", "fields": [{"name": name, "type": payload}]}
    return {"left.payload": SideSchema(RegisteredSchema("AVRO", json.dumps(call), references), 1)}


def published(pipeline: Any, sides: Any, rows: list[dict[str, Any]]) -> list[Any]:
    text = avro_schema(pipeline, sides)
    columns = {source: pa.array([row.get(source) for row in rows]) for _, source in pipeline.value_fields}
    values = avro_encoder(OutputSchema(258, "AVRO", text, (), pipeline.value_fields))(columns).to_pylist()
    assert all(value[:5] == b"\0\0\0\1\2" for value in values)
    parsed, found = parse_schema(without_logical(json.loads(text))), []
    for value in values:
        body = BytesIO(value[5:])
        found.append(schemaless_reader(body, parsed, None))
        assert not body.read()
    return found


def row(**more: Any) -> dict[str, Any]:
    return {"user1": "ann", "user2": "é", "ts": 2**62, "left.payload": None, "right.payload": None} | more


def test_payloads_without_a_schema_are_texts() -> None:
    found = published(AVRO, {}, [row(), row(**{"left.payload": '{"a":0.10}', "right.payload": '"x"'})])
    empty = {"user1": "ann", "user2": "é", "ts": 2**62, "analytics": None, "metrics": None}
    assert found == [empty, empty | {"analytics": '{"a":0.10}', "metrics": '"x"'}]


def test_a_payload_has_the_type_of_its_side_or_is_a_text_beside_it() -> None:
    texts = ['{"mos":1.5,"next":{"mos":2,"next":null},"kind":"A","again":"B"}', "{}", '{"mos":"good"}', '{"new":1}', "null"]
    rows = published(AVRO, side(["null", STATS]), [row(**{"left.payload": text}) for text in texts])
    defaults = {"mos": 4.5, "next": None, "kind": "B", "again": "A"}
    inner = defaults | {"mos": 2.0}
    typed = [defaults | {"mos": 1.5, "next": inner, "kind": "A", "again": "B"}, defaults, None, None, None]
    assert [each["analytics"] for each in rows] == typed
    assert [each["analytics_json"] for each in rows] == [None, None, '{"mos":"good"}', '{"new":1}', None]


def test_types_keep_their_names_behind_those_of_pipeline_and_payload() -> None:
    schema = json.loads(avro_schema(AVRO, side("com.acme.Stats", (("stats", json.dumps(STATS)),))))
    types_of = {each["name"]: each["type"] for each in schema["fields"]}
    (_, stats), text = types_of["analytics"], types_of["analytics_json"]
    assert (schema["namespace"], stats["name"], text) == ("calls", "calls.analytics.com.acme.Stats", ["null", "string"])
    assert (stats["doc"], stats["fields"][1]["type"]) == ("of a call", ["null", "calls.analytics.com.acme.Stats"])
    assert stats["fields"][2]["type"]["default"] == "A" and stats["fields"][3]["type"] == "calls.analytics.com.acme.Kind"
    assert types_of["ts"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert types_of["metrics"] == ["null", "string"] and "metrics_json" not in types_of


@pytest.mark.parametrize(
    ("payload_from", "found"),
    [
        ("analytics.mos", ["null", "double"]),
        ("analytics.next", ["null", "calls.analytics.com.acme.Stats"]),
        ("$value", ["null", "calls.analytics.Call"]),
        ("analytics.none", ["null", "string"]),
        ("$header.x", ["null", "string"]),
    ],
)
def test_the_payload_may_be_anywhere(payload_from: str, found: Any) -> None:
    pipeline = replace(AVRO, left=replace(AVRO.left, payload_from=payload_from))
    fields = json.loads(avro_schema(pipeline, side(["null", STATS])))["fields"]
    (kind,) = [each["type"] for each in fields if each["name"] == "analytics"]
    assert [each["name"] if isinstance(each, dict) else each for each in kind] == found


def test_a_schema_that_cannot_be_used_is_named() -> None:
    with pytest.raises(NeedsOperator, match="payloads of analyticsTopic cannot be published by the newest schema of"):
        avro_schema(AVRO, side("com.acme.None"))


def test_random_payloads_of_random_schemas_come_back() -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        typed = data.draw(types(in_bulk=False))
        value = data.draw(typed.values)
        schema = {"type": "record", "name": "Call", "fields": [{"name": "x", "type": typed.schema}]}
        bodies = written(without_logical(schema), {"x": on_wire(value, typed.schema)})
        (text,) = texts_of(json.dumps(schema), *bodies)
        payload = (text or "").removeprefix('{"x":').removesuffix("}")
        (found,) = published(AVRO, side(typed.schema), [row(**{"left.payload": None if payload == "null" else payload})])
        if value is not None and typed.schema != {"type": "null"}:
            assert found["analytics_json"] is None
            (again,) = texts_of(*_alone(typed.schema, payload))
            assert same_value(json.loads(again or "", parse_float=Decimal)["x"], typed.expect(value))

    check()


def _alone(payload: Any, text: str) -> tuple[str, bytes]:
    """The schema of a record of this payload alone, and its bytes in a published value."""
    pipeline = replace(AVRO, key=("user1",))
    made = json.loads(avro_schema(pipeline, side(payload)))
    (kind,) = [each["type"] for each in made["fields"] if each["name"] == "analytics"]
    columns = {source: pa.array([row(**{"left.payload": text}).get(source)]) for _, source in pipeline.value_fields}
    schema = OutputSchema(1, "AVRO", json.dumps(made), (), pipeline.value_fields)
    (value,) = avro_encoder(schema)(columns).to_pylist()
    # Frame, "ann", ten bytes of the time; behind the payload its text and the other payload, both null.
    start = 5 + 4 + 10
    return json.dumps({"type": "record", "name": "top", "fields": [{"name": "x", "type": kind}]}), value[start:-2]
