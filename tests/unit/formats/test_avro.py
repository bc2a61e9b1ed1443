"""Avro bodies as JSON texts: in bulk, alone, and hostile ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jobs.formats import avro
from spark_jobs.formats.avro import AvroBodies
from spark_jobs.formats.avro_plain import can_decode_in_bulk
from spark_jobs.formats.avro_schema import DEEPEST, read_schema, unit_of

RECORD = {"type": "record", "name": "R"}
FIXED_OF_ONE = {"type": "fixed", "name": "F", "size": 1}
DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}
NODE = {**RECORD, "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "R"]}]}
TREE = {**RECORD, "fields": [{"name": side, "type": ["null", "R"]} for side in ("left", "right")]}


class Typed(NamedTuple):
    """A schema, values for fastavro's writer, and what a reader of the JSON text must find for a value."""

    schema: Any
    values: st.SearchStrategy[Any]
    expect: Callable[[Any], Any]


def record_of(*types: Any, name: str = "R") -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": f"x{n}", "type": t} for n, t in enumerate(types)]}
    )


def written(schema: Any, *values: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
    bodies = []
    for value in values:
        file = BytesIO()
        # Values are of the wire's types: without logical types, nothing is converted.
        fastavro.schemaless_writer(file, parsed, value)
        bodies.append(file.getvalue())
    return bodies


def texts_of(schema: str, *bodies: bytes | None, **more: Any) -> list[str | None]:
    return AvroBodies(schema, **more).to_json(pa.array(bodies, pa.binary())).to_pylist()


def varint(number: int) -> bytes:
    bits = (number << 1 ^ number >> 63) & 2**64 - 1
    octets = [bits >> shift & 127 for shift in range(0, max(bits.bit_length(), 1), 7)]
    return bytes(octet | 128 for octet in octets[:-1]) + bytes(octets[-1:])


def float_expected(value: float) -> Any:
    return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


def scalar_types(draw: st.DrawFn, name: str) -> Typed:
    long, text = st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    same: Callable[[Any], Any] = lambda value: value  # noqa: E731
    kinds = {
        "boolean": Typed("boolean", st.booleans(), same),
        "int": Typed("int", st.integers(-(2**31), 2**31 - 1), same),
        "long": Typed("long", long, same),
        "float": Typed("float", st.floats(width=32), float_expected),
        "double": Typed("double", st.floats(), float_expected),
        "string": Typed("string", text, same),
        "bytes": Typed("bytes", st.binary(max_size=6), lambda value: value.decode("latin-1")),
        "enum": Typed({"type": "enum", "name": f"{name}e", "symbols": ["A", "B_1"]}, st.sampled_from(["A", "B_1"]), same),
    }
    if draw(st.booleans()):
        return kinds[draw(st.sampled_from(sorted(kinds)))]
    return draw(
        st.sampled_from(
            [
                *(Typed({"type": "long", "logicalType": logical}, long, same) for logical in LONGS),
                Typed({"type": "int", "logicalType": "date"}, st.integers(-(2**31), 2**31 - 1), same),
                Typed({"type": "int", "logicalType": "time-millis"}, st.integers(0, 86_399_999), same),
                Typed({"type": "string", "logicalType": "uuid"}, st.uuids().map(str), same),
                Typed(
                    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
                    st.integers(-(10**9), 10**9),
                    lambda n: Decimal(n).scaleb(-3),
                ),
            ]
        )
    )


LONGS = ["time-micros", *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos"))]
FIXED = [
    Typed({"type": "fixed", "size": 2}, st.binary(min_size=2, max_size=2), lambda value: value.decode("latin-1")),
    Typed(
        {"type": "fixed", "size": 12, "logicalType": "duration"},
        st.binary(min_size=12, max_size=12),
        lambda v: v.decode("latin-1"),
    ),
    Typed(
        {"type": "fixed", "size": 16, "logicalType": "uuid"},
        st.binary(min_size=16, max_size=16),
        lambda v: str(UUID(bytes=v)),
    ),
    Typed({"type": "null"}, st.none(), lambda value: value),
]


def takes_bytes(schema: Any) -> bool:
    if isinstance(schema, dict) and schema["type"] == "record":
        return any(takes_bytes(field["type"]) for field in schema["fields"])
    return schema != {"type": "null"}


@st.composite
def types(draw: st.DrawFn, in_bulk: bool, depth: int = 3, name: str = "n", in_union: bool = False) -> Typed:
    """A type that is decoded in bulk, or any type."""
    forms = ["scalar"] + ["record", "array", "map"] * (depth > 0) + ["optional"] * (depth > 0 and not in_union)
    form = draw(st.sampled_from(forms + ["fixed", "union"] * (not in_bulk and not in_union)))
    if form == "scalar":
        return scalar_types(draw, name)
    if form == "fixed":
        fixed = draw(st.sampled_from(FIXED))
        return fixed._replace(schema={**fixed.schema, "name": f"{name}x"}) if fixed.schema["type"] == "fixed" else fixed
    if form == "union":
        # The branches are told apart by the writer through their Python types.
        parts = [
            Typed("null", st.none(), lambda v: v),
            Typed("string", st.text("aé", max_size=3), lambda v: v),
            Typed("long", st.integers(-9, 9), lambda v: v),
        ]
        order = draw(st.permutations(parts))
        return Typed([part.schema for part in order], st.one_of(*(part.values for part in order)), lambda v: v)
    if form == "record":
        parts = [draw(types(in_bulk, depth - 1, f"{name}{rank}")) for rank in range(draw(st.integers(1, 4)))]
        names = [f"{draw(st.sampled_from(['a', '_b', 'Cd']))}{rank}" for rank in range(len(parts))]
        schema = {"type": "record", "name": f"{name}r", "namespace": draw(st.sampled_from(["", "a.b"])), "doc": "x"}
        schema["fields"] = [{"name": n, "type": p.schema, "aliases": ["old"]} for n, p in zip(names, parts, strict=True)]
        values = st.fixed_dictionaries(dict(zip(names, [p.values for p in parts], strict=True)))
        return Typed(schema, values, lambda v: {n: p.expect(v[n]) for n, p in zip(names, parts, strict=True)})
    part = draw(types(in_bulk, depth - 1, name, in_union=form == "optional"))
    if form == "optional":
        if part.schema == {"type": "null"}:
            return part
        order = draw(st.permutations(["null", part.schema]))
        return Typed(order, st.none() | part.values, lambda v: None if v is None else part.expect(v))
    if form == "array":
        # Arrays of what takes no byte are refused.
        if not takes_bytes(part.schema):
            return part
        return Typed(
            {"type": "array", "items": part.schema}, st.lists(part.values, max_size=3), lambda v: [part.expect(x) for x in v]
        )
    values = st.dictionaries(st.text('aé"', max_size=3), part.values, max_size=3)
    return Typed({"type": "map", "values": part.schema}, values, lambda v: {k: part.expect(x) for k, x in v.items()})


def without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_logical(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
        if key != "logicalType"
    }


def on_wire(value: Any, schema: Any) -> Any:
    """The value for the writer of the schema without logical types."""
    if value is not None and isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        return on_wire(value, others[0]) if len(others) == 1 else value
    kind = schema.get("logicalType", schema["type"]) if isinstance(schema, dict) else schema
    if kind == "decimal":
        return value.to_bytes(6, signed=True)
    if kind == "record":
        return {field["name"]: on_wire(value[field["name"]], field["type"]) for field in schema["fields"]}
    if kind == "array":
        return [on_wire(each, schema["items"]) for each in value]
    if kind == "map":
        return {key: on_wire(each, schema["values"]) for key, each in value.items()}
    return value


def same_value(found: Any, expected: Any) -> bool:
    """Equal values of equal types; a float of 32 or 64 bits is read back from its digits."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same_value(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same_value, found, expected))
    if isinstance(expected, float):
        return float(found) == expected or float(np.float32(str(found))) == expected
    if isinstance(expected, Decimal):
        return isinstance(found, Decimal) and str(found) == format(expected, "f")
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("in_bulk", [True, False])
def test_random_values_of_random_schemas_have_one_text_in_bulk_and_alone_and_it_reads_back(in_bulk: bool) -> None:
    bulk = []

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        typed = data.draw(types(in_bulk))
        schema = {
            "type": "record",
            "name": "top",
            "fields": [{"name": "s", "type": "string"}, {"name": "x", "type": typed.schema}],
        }
        values = data.draw(st.lists(typed.values, min_size=1, max_size=4))
        plain = without_logical(schema)
        bodies = [*written(plain, *({"s": "é", "x": on_wire(value, typed.schema)} for value in values)), None]
        together = texts_of(json.dumps(schema), *bodies)
        alone = texts_of(json.dumps(schema), *bodies, b"")
        assert alone == [*together, None]
        for text, value in zip(together, [*values, None], strict=True):
            if text is None:
                assert value is None
                continue
            found = json.loads(text, parse_float=Decimal)
            assert found["s"] == "é"
            assert same_value(found["x"], typed.expect(value)), (text, value)
        bulk.append(can_decode_in_bulk(read_schema(json.dumps(schema))))

    check()
    assert all(bulk) if in_bulk else not all(bulk)


def test_mapping_of_each_type_to_json() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    decimal = {"logicalType": "decimal", "precision": 9, "scale": 3}
    cases: list[tuple[Any, bytes, str]] = [
        ("null", b"", "null"),
        ("boolean", b"\x01", "true"),
        ("int", varint(-(2**31)), "-2147483648"),
        # No int, but the value is clear.
        ("int", varint(2**31), "2147483648"),
        ("long", varint(2**63 - 1), "9223372036854775807"),
        ("float", np.float32(0.1).tobytes(), "0.1"),
        ("double", np.float64("-inf").tobytes(), '"-Infinity"'),
        *(
            ("double", np.float64(text).tobytes(), text)
            for text in ("1", "-250", "1e+10", "0.00001", "1e-7", "9999999999.5")
        ),
        *(("float", np.float32(text).tobytes(), text) for text in ("1", "16777216", "1e+10", "0.00001", "1e-7")),
        ("string", b'\x0aa"\n\xc3\xa9', r'"a\"\né"'),
        ("bytes", b"\x06a\xff\x00", '"aÿ\\u0000"'),
        (fixed, b"\x7f\x80", '"\x7f\x80"'),
        ({"type": "bytes", **decimal}, b"\x04\x30\x34", "12.340"),
        ({"type": "bytes", **decimal}, b"\x00", "0.000"),
        ({**fixed, **decimal, "precision": 4}, b"\xff\xfe", "-0.002"),
        ({**fixed, "size": 16, "logicalType": "uuid"}, bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
        ({"type": "int", "logicalType": "date"}, varint(20_000), "20000"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", '"B"'),
        (["null", "int", "string"], b"\x04\x02a", '"a"'),
        (
            [{**RECORD, "name": "A", "fields": []}, {**RECORD, "name": "B", "fields": [{"name": "n", "type": "null"}]}],
            b"\x02",
            '{"n":null}',
        ),
        (["float", "double", "null"], b"\x00" + np.float32(0.1).tobytes(), "0.1"),
        (
            [{"type": "map", "values": "int"}, {**RECORD, "name": "A", "fields": [{"name": "key", "type": "int"}]}],
            b"\x02\x02",
            '{"key":1}',
        ),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00", "[1,2,3]"),
        ({"type": "map", "values": "int"}, b"\x04\x02b\x02\x02a\x04\x02\x02b\x06\x00", '{"b":1,"a":2,"b":3}'),
        ({"type": "map", "values": "null"}, b"\x02\x02b\x00", '{"b":null}'),
    ]
    for schema, body, text in cases:
        assert texts_of(json.dumps(schema), body) == [text], schema
        in_record = json.dumps({**RECORD, "fields": [{"name": "s", "type": "string"}, {"name": "x", "type": schema}]})
        # Bytes behind the value are no fault. An empty body makes that its neighbours are decoded alone.
        assert texts_of(in_record, b"\0" + body + b"more", b"") == [f'{{"s":"","x":{text}}}', None], schema


def test_names_and_defaults_of_a_schema_do_not_matter_and_named_schemas_are_found() -> None:
    point = {"type": "record", "name": "a.b.Point", "fields": [{"name": "x", "type": "int", "default": 7, "aliases": ["y"]}]}
    line = {
        "type": "record",
        "name": "a.Line",
        "fields": [
            {"name": "from", "type": "a.b.Point"},
            {"name": "to", "type": ["null", "a.b.Point"]},
            {"name": "via", "type": "a.b.Point"},
        ],
    }
    schema = {**RECORD, "namespace": "a", "fields": [{"name": "Linie", "type": "Line"}]}
    bodies = AvroBodies(json.dumps(schema), [json.dumps(point), json.dumps(line)])
    text = '{"Linie":{"from":{"x":1},"to":{"x":2},"via":{"x":3}}}'
    assert bodies.to_json(pa.array([b"\x02\x02\x04\x06"])).to_pylist() == [text]


@pytest.mark.parametrize("kind", ["int", {**RECORD, "fields": [{"name": "a", "type": "int"}]}])
def test_message_that_is_null_as_a_whole_is_the_text_null(kind: Any) -> None:
    schema = json.dumps(["null", kind])
    # An empty body makes that its neighbours are decoded alone.
    assert texts_of(schema, b"\x00", None) == ["null", None]
    assert texts_of(schema, b"\x00", None, b"") == ["null", None, None]


@pytest.mark.parametrize("last", ["int", {"type": "fixed", "name": "F", "size": 1}])
def test_only_wanted_fields_are_in_the_texts(last: Any) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": name, "type": "int"} for name in "pq"]}
    schema = record_of("string", ["null", inner], "string", last)
    body = b"\x02a" + b"\x02\x02\x04" + b"\x02b" + b"\x06"
    wanted = {"x1": {"q": {}}, "x2": {}, "absent": {}}
    assert texts_of(schema, body, wanted=wanted) == ['{"x1":{"q":2},"x2":"b"}']
    assert texts_of(schema, body, wanted={"x1": {}}) == ['{"x1":{"p":1,"q":2}}']
    assert texts_of(schema, b"\x02\xff" + body[2:], body, wanted=wanted)[0] is None, (
        "a field that is not wanted is checked, too"
    )


@pytest.mark.parametrize("last", ["int", {"type": "fixed", "name": "F", "size": 1}])
def test_record_may_be_wanted_whole_at_one_place_and_in_part_at_another(last: Any) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": name, "type": "int"} for name in "pq"]}
    texts = texts_of(record_of(inner, "I", last), b"\x02\x04\x06\x08\x00", wanted={"x0": {}, "x1": {"q": {}}})
    assert texts == ['{"x0":{"p":1,"q":2},"x1":{"q":4}}']


@pytest.mark.parametrize("extra", ["string", {"type": "fixed", "name": "F", "size": 3}])
def test_bad_bodies_are_null_among_good_ones_at_any_place(extra: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_AT_ONCE", 50)
    monkeypatch.setattr(avro, "_FEW", 7)
    schema = record_of("string", extra)
    good = b"\x02a" + b"\x04xy"
    for bad in (b"\x02a\x04x", b"", None, b"\x04\xff\xfe\x04xy", b"\x01a"):
        for place in (0, 6, 7, 48, 49, 50, 119):
            bodies: list[bytes | None] = [good] * 120
            bodies[place] = bad
            texts = texts_of(schema, *bodies)
            assert len(texts) == 120 and [row for row, text in enumerate(texts) if text is None] == [place]
    column = pa.array([b"", good, None, good, b""], pa.binary())
    assert AvroBodies(schema).to_json(column[1:4]).is_valid().to_pylist() == [True, False, True]
    assert AvroBodies(schema).to_json(column[:0]).type == pa.string()


def test_one_bad_body_makes_few_others_be_decoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = []
    read = avro.schemaless_reader
    monkeypatch.setattr(avro, "schemaless_reader", lambda *given: alone.append(1) or read(*given))
    texts_of('"string"', *[b"\x02a"] * 3000, b"\x02", *[b"\x02a"] * 3000)
    assert len(alone) == avro._FEW


def test_decimal_of_a_thousand_bytes_is_no_message() -> None:
    schema = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    longest, longer = (varint(size) + b"\x01" * size for size in (1024, 1025))
    assert [text is None for text in texts_of(schema, longest, longer)] == [False, True]


def doubled(last: str, levels: int) -> dict[str, Any]:
    """Records of which each is twice in the next."""
    schema: dict[str, Any] = {"type": "record", "name": "D0", "fields": [{"name": "x", "type": last}]}
    for level in range(1, levels + 1):
        fields = [{"name": "l", "type": schema}, {"name": "r", "type": f"D{level - 1}"}]
        schema = {"type": "record", "name": f"D{level}", "fields": fields}
    return schema


def test_schema_that_would_be_a_billion_fields_is_read_at_once() -> None:
    begun = time.process_time()
    assert not can_decode_in_bulk(read_schema(json.dumps(doubled("int", 29))))
    with pytest.raises(ValueError, match="takes no byte, and its text is longer"):
        AvroBodies(json.dumps(doubled("null", 29)))
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
def test_value_without_a_byte_has_a_text_of_ten_thousand_characters_at_most(last: Any) -> None:
    (text,) = texts_of(record_of(doubled("null", 8), last), b"\x02")
    assert text is not None and text.count("null") == 2**8
    with pytest.raises(ValueError, match="its type D9 takes no byte, and its text is longer than 10,000 characters"):
        AvroBodies(record_of(doubled("null", 9), last))


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
def test_longest_names_and_largest_scale(last: Any) -> None:
    def schema(length: int, scale: int) -> str:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 2000, "scale": scale}
        symbols = {"type": "enum", "name": "E", "symbols": ["s" * length]}
        return json.dumps({**RECORD, "fields": [{"name": "n" * length, "type": symbols}, *fields(decimal, last)]})

    def fields(*kinds: Any) -> list[dict[str, Any]]:
        return [{"name": f"x{rank}", "type": kind} for rank, kind in enumerate(kinds)]

    (text,) = texts_of(schema(1000, 1024), b"\x00\x02\x01\x02")
    assert text is not None and text.startswith(f'{{"{"n" * 1000}":"{"s" * 1000}","x0":0.{"0" * 1023}1,')
    for length, scale, reason in (
        (1001, 3, "is longer than 1,000 characters"),
        (3, 1025, "larger than its precision or 1,024"),
    ):
        with pytest.raises(ValueError, match=reason):
            AvroBodies(schema(length, scale))


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "Bb"]}, b"\x02"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 5}, b"\x02\x01"),
        ({"type": "record", "name": "I", "fields": [{"name": "öö", "type": "null"}, {"name": "n", "type": "int"}]}, b"\x02"),
    ],
    ids=["enum", "decimal", "record"],
)
def test_body_with_a_longer_text_is_no_message(last: Any, kind: Any, value: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record_of({"type": "array", "items": kind}, last)
    body = varint(5) + value * 5 + b"\x00" + b"\x02"
    (text,) = texts_of(schema, body)
    assert text is not None
    longest = len(text.encode())
    for most, expected in ((longest, text), (longest - 1, None)):
        monkeypatch.setattr(avro, "_longest_text", lambda size, most=most: most if size else 0)
        assert texts_of(schema, body) == [expected]
        # An empty body makes that its neighbours are decoded alone.
        assert texts_of(schema, body, b"") == [expected, None]


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
@pytest.mark.parametrize(
    # 1,003 characters with the quotes and the comma: the 16 kB that a text may always have are used up by 6,800.
    ("length", "most"),
    [(1000, 6_700), (900, 74_000)],
    ids=["a_thousand_times_its_body", "64_MB"],
)
def test_text_of_a_body_may_be_long(last: Any, length: int, most: int) -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["s" * length]}
    schema = record_of({"type": "array", "items": symbols}, last)

    def body(items: int) -> bytes:
        return varint(items) + b"\x00" * items + b"\x00" + b"\x02"

    long, longer = texts_of(schema, body(most), body(most + most // 50))
    assert long is not None and json.loads(long)["x0"] == ["s" * length] * most
    assert longer is None


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
def test_texts_beyond_what_a_column_holds_are_null_and_pieces_do_not_matter(
    last: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record_of("string", last)
    given: list[bytes | None] = [b"\x02a\x02"] * 30 + [None, b""] + [b"\x02a\x02"] * 30
    whole = texts_of(schema, *given)
    assert [row for row, text in enumerate(whole) if text is None] == [30, 31]
    size = len(whole[0] or "")
    for at_once, piece in ((1, 7), (3 * size, 7), (3 * size, 10_000), (2**30, 7)):
        monkeypatch.setattr(avro, "_AT_ONCE", piece)
        monkeypatch.setattr(avro, "_TEXT_AT_ONCE", at_once)
        monkeypatch.setattr(avro, "_TEXT_AT_MOST", 2**31 - 1)
        assert texts_of(schema, *given) == whole
        for most in (0, 1, size - 1, size, 40 * size + 1):
            monkeypatch.setattr(avro, "_TEXT_AT_MOST", most)
            texts = texts_of(schema, *given)
            assert len([text for text in texts if text]) == most // size
            assert AvroBodies(schema).to_json(pa.array(given)).get_total_buffer_size() < most + 1000
            assert texts == [*whole[: most // size + 2 * (most // size > 30)], *[None] * 62][:62]


@pytest.mark.parametrize("last", ["int", FIXED_OF_ONE])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("boolean", [b"\x00", b"\x01"], [b"\x02", b"\xff"]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, [b"\x00", b"\x02"], [b"\x01", b"\x03", b"\x05", b"\x04"]),
        (["null", "string"], [b"\x00", b"\x02\x02a"], [b"\x01\x02a", b"\x03", b"\x03\x02a", b"\x05", b"\x04"]),
        (["int", "null", "string"], [b"\x00\x02", b"\x02", b"\x04\x02a"], [b"\x01\x02a", b"\x03", b"\x05\x02", b"\x07", b"\x06"]),
        (["null", {"type": "array", "items": ["null", "int"]}], [b"\x02\x02\x02\x02\x00"], [b"\x02\x02\x03\x00", b"\x02\x02\x01\x02\x00"]),
        (["null", NODE], [b"\x02\x02\x02\x04\x00"], [b"\x02\x02\x02\x04\x03", b"\x02\x02\x01\x04\x00", b"\x01\x02\x00"]),
    ],
    ids=["boolean", "enum", "optional", "union", "in_array", "in_itself"],
)  # fmt: skip
def test_bytes_that_name_no_value_of_the_type_are_no_message(
    last: Any, kind: Any, good: list[bytes], bad: list[bytes]
) -> None:
    bad = [*bad, varint(-(2**63)), varint(-(2**62))]
    schema = record_of(kind, last, name="Top")
    texts = texts_of(schema, *(body + b"\x02" for body in good + bad))
    assert [text is not None for text in texts] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize("schema", [NODE, TREE], ids=["list", "tree"])
def test_record_inside_itself_is_read_down_to_a_depth_that_is_told(schema: Any) -> None:
    def body(depth: int) -> bytes:
        return b"\x02\x02" * depth + b"\x02\x00" if schema is NODE else b"\x02" * depth + b"\x00" * (depth + 2)

    ok, deep = texts_of(json.dumps(schema), body(DEEPEST // 2), body(DEEPEST // 2 + 1))
    assert ok is not None and ok.count("{") == DEEPEST // 2 + 1 and deep is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "JSONDecodeError"),
        ('"strin"', "strin"),
        ('{"type": "record", "fields": []}', "name"),
        ("[" * 5000 + "]" * 5000, "nests too deep"),
        ('{"type": "array", "items": ' * 101 + '"int"' + "}" * 101, "nest deeper than 100"),
        (json.dumps({"type": "array", "items": "null"}), "array of items that take no byte"),
        (
            json.dumps({"type": "array", "items": {**RECORD, "fields": [{"name": "n", "type": "null"}]}}),
            "array of items that take no byte",
        ),
    ],
)
def test_schema_that_cannot_be_read_is_refused_in_one_line(schema: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as problem:
        AvroBodies(schema)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        *(({"type": "fixed", "name": "F", "size": size}, "size") for size in ("4", 2.5, -1, True, None)),
        *(({"type": "bytes", **DECIMAL, "scale": scale}, "scale") for scale in ("1", 1.0, -1, True, 10)),
        *(({"type": "bytes", **DECIMAL, "precision": value}, "precision") for value in ("9", 9.0, -1, True, None)),
        ({"type": "fixed", "name": "F", "size": 2000, **DECIMAL, "precision": 2000, "scale": 1025}, "scale"),
        *(({"type": "enum", "name": "E", "symbols": symbols}, "not an Avro schema") for symbols in ("AB", {"A": 1}, [1], ["A", "A"], [None], None)),
        *(({**RECORD, "fields": [{"name": name, "type": "int"}]}, "name") for name in (1, ["a"], None, "n" * 1001)),
        *(({**RECORD, "fields": fields}, "not an Avro schema") for fields in ("x", None, [1], [{"name": "a"}])),
        *(({"type": kind, "name": name, "size": 1, "fields": []}, "not an Avro schema") for kind in ("record", "fixed") for name in (1, None, {})),
        ({**RECORD, "fields": [{"name": "\ud800", "type": "int"}]}, "surrogates not allowed"),
        ({"type": "array"}, "items"),
        ({"type": "map"}, "values"),
        ({"type": "strange", "__fastavro_parsed": True, "__named_schemas": {}}, "unknown type strange"),
    ],
)  # fmt: skip
def test_schema_of_wrong_values_is_refused_in_one_line(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as problem:
        AvroBodies(json.dumps(schema))
    assert len(str(problem.value).splitlines()) == 1


def test_schema_tells_the_unit_of_a_time() -> None:
    def long(logical: str) -> dict[str, str]:
        return {"type": "long", "logicalType": logical}

    inner = json.loads(record_of(long("timestamp-nanos"), [long("timestamp-micros"), "null"], name="I"))
    schema = record_of(["null", inner], long("timestamp-millis"), long("local-timestamp-millis"), "long")
    units = [
        unit_of(read_schema(schema), path)
        for path in (("x0", "x0"), ("x0", "x1"), ("x1",), ("x2",), ("x3",), ("x4",), ("x1", "x1"))
    ]
    assert units == ["epoch_ns", "epoch_us", "epoch_ms", None, None, None, None]
    assert AvroBodies(schema).timestamp_unit(("x0", "x1")) == "epoch_us"
    # The specification has this logical type on longs only.
    assert unit_of(read_schema('{"type": "string", "logicalType": "timestamp-millis"}'), ()) is None


def test_panic_of_the_bulk_decoder_is_survived_and_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # It panics on what is no record, so the whole schema is given to it without the record around it.
    bodies = AvroBodies('"string"')
    monkeypatch.setattr(bodies, "_bulk", '"string"')
    for _ in range(2):
        assert bodies.to_json(pa.array([b"\x02a", b"\x02"])).to_pylist() == ['"a"', None]
    errors = capfd.readouterr().err
    assert errors.count("panicked") == 1 and errors.count("decoded one by one") == 1


def test_types_that_are_decoded_in_bulk() -> None:
    def in_bulk(schema: Any) -> bool:
        return can_decode_in_bulk(read_schema(json.dumps(schema)))

    fixed = {"type": "fixed", "name": "F", "size": 2}
    assert not any(
        map(
            in_bulk,
            (fixed, ["int", "string"], ["null", fixed], NODE, {"type": "map", "values": "null"}, {**RECORD, "fields": []}),
        )
    )
    wide = {**RECORD, "fields": [{"name": f"x{n}", "type": "int"} for n in range(1001)]}
    assert not in_bulk(wide) and in_bulk({**wide, "fields": wide["fields"][:900]})


def test_hostile_bodies_are_null_within_time_and_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.formats.hostile_avro"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr[-2000:]
