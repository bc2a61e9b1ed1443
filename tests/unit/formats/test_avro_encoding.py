"""JSON values back to Avro's bytes: what `avro_values` makes texts of comes back, and nothing that would be lost fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.formats.avro_encoding import NotFitting, parse_json, value_encoder
from spark_jobs.formats.avro_schema import read_schema
from tests.unit.formats.test_avro import TREE, on_wire, texts_of, types, varint, without_logical, written

FIXED = {"type": "fixed", "name": "F", "size": 2}
DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 3}
UUID = "00000000-0000-0000-0000-0000000000ff"
GROWN = {
    "type": "record", "name": "R", "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "c", "type": {"type": "bytes", **DECIMAL}, "default": "\u0001"},
        {"name": "d", "type": {"type": "map", "values": "R"}, "default": {}},
    ],
}  # fmt: skip


def encoded(schema: Any, text: str) -> bytes:
    return value_encoder(read_schema(json.dumps(schema)))(parse_json(text))


def test_random_values_of_random_schemas_come_back() -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        typed = data.draw(types(in_bulk=False))
        schema = json.dumps({"type": "record", "name": "top", "fields": [{"name": "x", "type": typed.schema}]})
        values = data.draw(st.lists(typed.values, min_size=1, max_size=4))
        bodies = written(without_logical(json.loads(schema)), *({"x": on_wire(each, typed.schema)} for each in values))
        texts = texts_of(schema, *bodies)
        again = [encoded(json.loads(schema), text or "") for text in texts]
        assert texts_of(schema, *again) == texts
        # Texts of decimals do not say in how many bytes they were.
        assert again == bodies or "decimal" in schema

    check()


@pytest.mark.parametrize(
    ("schema", "text", "body"),
    [
        ("null", "null", b""),
        ("boolean", "true", b"\x01"),
        ("int", "-2147483648", varint(-(2**31))),
        ("long", "9223372036854775807", varint(2**63 - 1)),
        ("double", "-0", b"\x00" * 7 + b"\x80"),
        ("double", "1e+16", bytes.fromhex("0080e03779c34143")),
        ("float", '"-Infinity"', b"\x00\x00\x80\xff"),
        ("float", "0.1", b"\xcd\xcc\xcc\x3d"),
        ("bytes", '"aÿ"', b"\x04a\xff"),
        (FIXED, '"aÿ"', b"a\xff"),
        ({"type": "bytes", **DECIMAL}, "12.340", b"\x04\x30\x34"),
        ({"type": "bytes", **DECIMAL}, "-0.001", b"\x02\xff"),
        ({**FIXED, **DECIMAL, "precision": 4}, "1", b"\x03\xe8"),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, f'"{UUID}"', b"\x00" * 15 + b"\xff"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"B"', b"\x02"),
        ({"type": "array", "items": "int"}, "[1,2]", b"\x04\x02\x04\x00"),
        ({"type": "array", "items": "int"}, "[]", b"\x00"),
        # A key that was there twice stays twice.
        ({"type": "map", "values": "int"}, '{"a":1,"a":2}', b"\x04\x02a\x02\x02a\x04\x00"),
        (["null", "string", "long"], "3", b"\x04\x06"),
        (["string", "null"], "null", b"\x02"),
        (TREE, '{"left":{"left":null,"right":null},"right":null}', b"\x02\x00\x00\x00"),
        (GROWN, '{"a":1}', b"\x02\x00\x02\x01\x00"),
        (GROWN, '{"d":{"k":{"a":2}},"a":1}', b"\x02\x00\x02\x01\x02\x02k\x04\x00\x02\x01\x00\x00"),
    ],
)  # fmt: skip
def test_bytes_of_each_type(schema: Any, text: str, body: bytes) -> None:
    assert encoded(schema, text) == body


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ("null", ["0"]),
        ("boolean", ["1", "null"]),
        ("int", ["2147483648", "1.0", "true", '"1"']),
        ("long", ["9223372036854775808", "-9223372036854775809", "1e3", "-0", "1" * 5000]),
        # A float would keep other digits than came.
        ("double", ["9007199254740993", "0.1000000000000000055", "1e400", '"nan"', "true", "1" * 5000]),
        ("float", ["0.100000001", "1e39"]),
        ("string", ["1", "null"]),
        ("bytes", ['"Ā"', "1"]),
        (FIXED, ['"a"', '"abc"']),
        ({"type": "bytes", **DECIMAL}, ["0.0001", '"1"', '"\\u0001"', "1e100000"]),
        ({**FIXED, **DECIMAL, "precision": 4}, ["32.768"]),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            [f'"{{{UUID}}}"', '"x"', "1", f'"{UUID.upper()}"'],
        ),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ['"B"', "0", "[]"]),
        ({"type": "array", "items": "int"}, ["{}", '["a"]']),
        ({"type": "map", "values": "int"}, ["[]", '{"a":null}']),
        (["null", "int"], ['"a"']),
        (GROWN, ["{}", '{"a":1,"e":null}', '{"a":1,"a":1}', "null", "[]"]),
    ],
)
def test_what_would_be_lost_does_not_fit(schema: Any, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(NotFitting):
            encoded(schema, text)
