"""Messages printed one by one: what columns cannot show, and what has no JSON form."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa

from spark_jobs.formats.json_text import float_text, numbers
from tests.helpers.proto_schemas import BY_ONE, EVENT, bodies_of, body, is_in_bulk, texts, varint


def test_a_message_that_has_no_json_form_is_null_on_both_ways() -> None:
    any_of = [
        b"\x1a\x0a\x0a\x08x/gone.G",  # an unknown type
        b"\x1a\x12\x0a\x0dx/calls.Event\x12\x01\xff",  # content that is no message
        b"\x0a\x01\xff",  # a string that is not UTF-8, which Protobuf accepts here
        b"\x12\x03\x0a\x01\xff",
        b"\x3a\x09\x11" + b"\x00" * 6 + b"\xf8\x7f",  # a Value that is not a number
        b"\x2a\x05\x0a\x03a_B",  # a mask of a name that has no JSON name
    ]
    assert texts(bodies_of(BY_ONE), [*any_of, b"\x0a\x01x"]) == [None] * len(any_of) + ['{"user":"x"}']
    moments = [
        b"\x1a" + varint(len(moment)) + moment
        for moment in (b"\x08" + varint(253402300800), b"\x10" + varint(-1), b"\x10" + varint(10**9))
    ]
    assert texts(bodies_of(EVENT), [*moments, b"\x1a\x00", b"\x0a\x01\xff"]) == [None] * 3 + [
        '{"sentAt":"1970-01-01T00:00:00Z"}',
        None,
    ]


def test_an_any_may_nest_as_deep_as_protobuf_parses_and_no_deeper() -> None:
    bodies = bodies_of(BY_ONE)

    def nested(levels: int) -> bytes:
        content = b""
        for _ in range(levels):
            content = b"\x0a\x15x/google.protobuf.Any" + b"\x12" + varint(len(content)) + content
        return b"\x1a" + varint(len(content)) + content

    assert [text is None for text in texts(bodies, [nested(levels) for levels in (1, 126, 127, 128, 300, 5000)])] == [
        False
    ] * 2 + [True] * 4


def test_a_float_is_spelled_alike_on_both_ways() -> None:
    random = Random(5)
    values = [random.uniform(-10, 10) * 10.0 ** random.randint(-320, 300) for _ in range(3000)]
    values += [random.randint(-(10**12), 10**12) / 10 ** random.randint(0, 12) for _ in range(3000)]
    values += [sign * 10.0**power for power in range(-20, 25) for sign in (1, -1)] + [
        0.0,
        -0.0,
        1e10 - 1,
        9999999999.5,
        5e-324,
    ]
    assert [float_text(value, False) for value in values] == numbers(pa.array(values)).to_pylist()


def test_what_columns_cannot_show_is_printed_by_protobuf() -> None:
    bodies = bodies_of(BY_ONE)
    assert not is_in_bulk(bodies)
    content = {
        "user": "ann", "inner": {"inner": {"user": "bob"}}, "free": {"b": [1, None, {"x": 2.5}], "a": True}, "mask": "userId,to",
        "any": {"@type": "x/calls.Event", "user": "c"}, "old": {"x": 1}, "[calls.extra]": 0.5, "value": None,
    }  # fmt: skip
    (text,) = texts(bodies, [body(BY_ONE, content)])
    assert text is not None and json.loads(text) == content
    assert text.startswith('{"[calls.extra]":0.5,"any":{"@type"') and '{"x":2.5}' in text and '"b":[1,null' in text
