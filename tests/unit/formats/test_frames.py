"""Frames are taken off as confluent-kafka's own deserializers do it, which are the truth here, and whatever is no frame is told apart."""

from __future__ import annotations

import io
import random
import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

from spark_jobs.formats.frames import split_frames, split_message_indexes

VALUE, KEY = "__value_schema_id", "__key_schema_id"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GUID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
RAW = uuid.UUID(GUID).bytes


def rows_of(frames):
    """(schema, body) of each record, by the groups; None where a record has no valid frame."""
    found = [None] * len(frames.codes)
    bodies = frames.bodies.to_pylist()
    for key, rows in frames.groups():
        assert rows.tolist() == sorted(rows.tolist())
        for row in rows:
            assert found[row] is None
            found[row] = (key, bodies[row])
    assert [body for row, body in enumerate(bodies) if found[row] is None] == [None] * found.count(None)
    return found


def split(values, headers=None, name=VALUE):
    given = None if headers is None else pa.array(headers, HEADERS)
    return split_frames(pa.array(values, pa.binary()), given, name)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0\0\0\7body", (7, b"body")),
        (b"\0\x01\x02\x03\x04body", (0x01020304, b"body")),
        (b"\0\xff\xff\xff\xff", (4294967295, b"")),
        (b"\0\0\0\0", None),
        (b"\1" + RAW + b"body", (GUID, b"body")),
        (b"\1" + RAW, (GUID, b"")),
        (b"\1" + RAW[:15], None),
        (b"\2\0\0\0\7body", None),
        (b"\x80\0\0\0\7body", None),
        (b'{"a": 1}', None),
        (b"", None),
        (None, None),
    ],
)
def test_a_frame_before_the_body(value, expected):
    assert rows_of(split([value])) == [expected]
    # Beside others, and within a larger array, whose buffers have other rows before and after.
    among = pa.array([b"\0\0\0\0\1x", None, value, b"\0\0\0\0\2", b"\1" + RAW], pa.binary())
    assert rows_of(split_frames(among, None, VALUE))[2] == expected
    assert rows_of(split_frames(among.slice(2, 2), None, VALUE)) == [expected, (2, b"")]


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ([(VALUE, b"\0\0\0\0\7")], b"body", (7, b"body")),
        ([(VALUE, b"\1" + RAW)], b"\0\0\0\0\1body", (GUID, b"\0\0\0\0\1body")),
        ([("a", b"x"), (VALUE, b"\0\0\0\0\7"), (VALUE, b"\0\0\0\0\1")], b"body", (7, b"body")),
        ([(VALUE, None), (VALUE, b"\0\0\0\0\7")], b"\0\0\0\0\1body", (1, b"body")),
        ([(KEY, b"\0\0\0\0\7")], b"\0\0\0\0\1body", (1, b"body")),
        ([(VALUE, b"\0\0\0\0")], b"\0\0\0\0\1body", None),
        ([(VALUE, b"\1" + RAW[1:])], b"\0\0\0\0\1body", None),
        ([(VALUE, b"")], b"\0\0\0\0\1body", None),
        ([(VALUE, b"\0\0\0\0\7")], None, None),
        ([(VALUE, b"\0\0\0\0\7")], b"", (7, b"")),
        ([], b"\0\0\0\0\1body", (1, b"body")),
        (None, b"\0\0\0\0\1body", (1, b"body")),
    ],
)
def test_a_frame_in_a_header(header, value, expected):
    assert rows_of(split([value], [header])) == [expected]
    headers = pa.array([[("a", b"b")], None, header, [(VALUE, b"\0\0\0\0\3")], []], HEADERS)
    values = pa.array([b"\0\0\0\0\1x", b"", value, b"y", None], pa.binary())
    assert rows_of(split_frames(values, headers, VALUE)) == [(1, b"x"), None, expected, (3, b"y"), None]
    assert rows_of(split_frames(values.slice(2, 2), headers.slice(2, 2), VALUE)) == [expected, (3, b"y")]


def test_keys_have_their_own_header():
    headers = [[(VALUE, b"\0\0\0\0\7"), (KEY, b"\0\0\0\0\5")]]
    assert rows_of(split([b"key"], headers, KEY)) == [(5, b"key")]


def test_no_rows_and_only_nulls():
    assert rows_of(split([])) == [] and rows_of(split([], [])) == []
    assert rows_of(split([None, None])) == [None, None]
    assert rows_of(split_frames(pa.nulls(2, pa.binary()), pa.nulls(2, HEADERS), VALUE)) == [None, None]


def test_large_binary_and_many_schemas():
    values = [struct.pack(">bI", 0, number % 1000) + b"b" for number in range(3000)]
    frames = split_frames(pa.array(values, pa.large_binary()), None, VALUE)
    assert frames.keys == list(range(1000))
    assert rows_of(frames) == [(number % 1000, b"b") for number in range(3000)]


def client_s_answer(value, headers, kind="AVRO"):
    """What confluent-kafka makes of a record: (schema, message indexes, body), None if it refuses it."""
    schema = SchemaId(kind)
    try:
        body = dual_schema_id_deserializer(value, SerializationContext("t", MessageField.VALUE, headers), schema).read()
    except (SerializationError, struct.error, ValueError, EOFError):
        return None
    key = str(schema.guid) if schema.guid else schema.id
    indexes = schema.message_indexes
    # It refuses these only when it looks for the message type, or never.
    if indexes and (min(indexes) < 0 or len(indexes) > 32 or max(indexes) >= 2**31):
        return None
    return key, tuple(indexes or ()), body


def test_the_client_says_the_same_of_random_records():
    dice = random.Random(26)
    pieces = [
        b"",
        b"\0",
        b"\1",
        b"\2",
        b"\0\0\0\0\7",
        b"\1" + RAW,
        b"\0\0\0\0",
        b"\4\2\x80\1",
        b"\2\1",
        b"\2\4",
        b"body",
        b"\xff\xff",
    ]

    def piece():
        begin = dice.choice([b"", b"\0\0\0\0\7", b"\1" + RAW])
        return begin + b"".join(dice.choice(pieces) for _ in range(dice.randrange(4)))

    def headers():
        names = dice.choices([VALUE, KEY, "other"], k=dice.randrange(4))
        return [(name, None if dice.random() < 0.2 else piece()) for name in names]

    records = [(piece(), headers()) for _ in range(3000)]
    frames = split([value for value, _ in records], [each for _, each in records])
    truth = [client_s_answer(*record) for record in records]
    assert rows_of(frames) == [answer and (answer[0], answer[2]) for answer in truth]

    truth = [client_s_answer(*record, "PROTOBUF") for record in records]
    messages = split_message_indexes(frames.bodies, frames.told)
    bodies, found = messages.bodies.to_pylist(), [None] * len(records)
    for path, rows in messages.groups():
        for row in rows:
            found[row] = (frames.keys[frames.codes[row]], path, bodies[row])
    assert found == truth and sum(answer is not None for answer in truth) > 300


def test_what_the_client_s_serializers_write():
    schema = SchemaId("PROTOBUF", 9, GUID, [3, 1])
    context = SerializationContext("t", MessageField.VALUE, [])
    in_header = header_schema_id_serializer(b"body", context, schema)
    before = prefix_schema_id_serializer(b"body", context, schema)
    frames = split([before, in_header], [[], context.headers])
    assert frames.keys == [9, GUID]
    messages = split_message_indexes(frames.bodies, frames.told)
    assert [(path, rows.tolist()) for path, rows in messages.groups()] == [((3, 1), [0, 1])]
    assert messages.bodies.to_pylist() == [b"body", b"body"]


def indexes(numbers):
    buffer = io.BytesIO()
    SchemaId._encode_varints(buffer, numbers)
    return buffer.getvalue()


@pytest.mark.parametrize("path", [[0], [1], [63], [64], [2**31 - 1], [0, 0], [5, 300, 2], [1] * 32])
def test_indexes_before_a_message(path):
    messages = split_message_indexes(pa.array([indexes(path) + b"body", b"\0"]), None)
    assert {each: rows.tolist() for each, rows in messages.groups()} in (
        [{tuple(path): [0], (0,): [1]}] if path != [0] else [{(0,): [0, 1]}]
    )
    assert messages.bodies.to_pylist() == [b"body", b""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\2",
        b"\1",
        b"\2\1",
        b"\4\2",
        indexes([1] * 33),
        b"\x80\x80\x80\x80\x80\0",
        b"\xff" * 1000,
        b"\xc0\x9a\x0c" + b"\0" * 50,
        b"\xfe\xff\xff\xff\x0f" + b"\0" * 1000,
    ],
)
def test_indexes_that_are_none(body):
    messages = split_message_indexes(pa.array([b"\2\2x", body, None]), None)
    assert messages.codes.tolist() == [0, -1, -1] and messages.bodies.to_pylist() == [b"x", None, None]


def test_rows_of_one_schema_are_split_apart_from_the_others():
    frames = split([b"\0\0\0\0\1\0a", b"body", b"\0\0\0\0\2b"], [None, [(VALUE, b"\0\0\0\0\1\2\2")], None])
    rows = pa.array(dict(frames.groups())[1])
    messages = split_message_indexes(frames.bodies.take(rows), frames.told.take(rows))
    assert [(path, rows.tolist()) for path, rows in messages.groups()] == [((0,), [0]), ((1,), [1])]
    assert messages.bodies.to_pylist() == [b"a", b"body"]


def test_more_rows_than_arrow_slices_without_an_end():
    values = pa.array([b"\0\0\0\0\1b"]).take(pa.array(np.zeros(2_000_000, np.int64)))
    frames = split_frames(values, None, VALUE)
    assert len(frames.bodies) == 2_000_000 and frames.bodies[1_999_999].as_py() == b"b"
