"""Where fields are in a record: every layout, in columns as one message at a time."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.config.pipeline_file import load_pipeline
from include.config.sources import parse_source
from include.config.times import Times
from spark_jobs.rules.layout import Finder, Layout, layout_of
from spark_jobs.rules.nesting import nests_too_deep
from spark_jobs.rules.parsed_columns import HEADERS, Columns, parse_columns
from spark_jobs.rules.parsing import Record, is_utf8, message_parser

NOW = 2_000


def layout(*key, time="at", form=None, zone=None, payload="load", only=None, key_text=()):
    names = tuple(f"user{number}" for number, _ in enumerate(key))
    wanted = tuple((parse_source(where), frozenset(texts)) for where, texts in (only or {}).items())
    sources = tuple(map(parse_source, key))
    return Layout(names, sources, parse_source(time), Times(time, form, zone), parse_source(payload), wanted, key_text)


def columns_of(records):
    headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
    return Columns(
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.timestamp for record in records], pa.int64()),
        pa.array([record.key for record in records], pa.binary()),
        pa.array(headers, HEADERS),
    )


def read(records, where, latest_ts=NOW):
    """What columns say of the records, after a look that each one alone says the same."""
    parsed = parse_columns(columns_of(records), where, latest_ts)
    rows = list(
        zip(
            zip(*(key.to_pylist() for key in parsed.key), strict=True),
            *(each.to_pylist() for each in parsed[1:]),
            strict=True,
        )
    )
    parse = message_parser(where, latest_ts)
    for record, row in zip(records, rows, strict=True):
        is_sound = record.value is not None and is_utf8(record.value) and not nests_too_deep(record.value)
        key_is_sound = record.key is None or is_utf8(record.key)
        assert (
            tuple(parse(record._replace(value=record.value if is_sound else None, key=record.key if key_is_sound else None)))
            == row
        )
    return rows


def one(record, where, latest_ts=NOW):
    (row,) = read([record], where, latest_ts)
    return row


BODY = b'{"call":{"caller":{"id":"a"},"callee":{"id":"b","x":[1]}},"at":5,"load":{"n":1.50},"type":"end"}'


def test_paths():
    where = layout("call.caller.id", "call.callee.id", payload="call.callee")
    assert one(Record(BODY, 9), where) == (("a", "b"), 5, '{"id":"b","x":[1]}', None)


def test_the_whole_value_is_the_payload():
    assert one(Record(BODY, 9), layout("call.caller.id", payload="$value")) == (("a",), 5, BODY.decode(), None)


@pytest.mark.parametrize(
    "value",
    [b'{"call":[{"caller":{"id":"a"}}],"at":5}', b'{"call":{"caller":"a"},"at":5}', b'{"call":null,"at":5}', b'{"at":5}',
     b'{"call":{"caller":{"id":7}},"at":5}', b'{"call":{"caller":{"id":""}},"at":5}', b'{"call":{"caller":{"ID":"a"}},"at":5}'],
)  # fmt: skip
def test_a_key_that_is_not_there(value):
    """Also a path into a list."""
    assert one(Record(value, 9), layout("call.caller.id")) == ((None,), 5, None, "missing_key")


@pytest.mark.parametrize("value", [b'{"k":"a","meta":[]}', b'{"k":"a","meta":{"at":[]}}', b'{"k":"a","meta":{"at":-5}}'])
def test_a_time_that_cannot_be_read(value):
    expected = (("a",), 9, None, None) if b'"at"' not in value else (("a",), None, None, "bad_timestamp")
    assert one(Record(value, 9), layout("k", time="meta.at")) == expected


@pytest.mark.parametrize(
    "value", [b'{"k":"a"}', b'{"k":"a","meta":{}}', b'{"k":"a","meta":null}', b'{"k":"a","meta":{"at":null}}']
)
def test_a_time_that_is_not_there_is_the_records(value):
    assert one(Record(value, 9), layout("k", time="meta.at")) == (("a",), 9, None, None)
    assert one(Record(value, None), layout("k", time="meta.at"))[3] == "bad_timestamp"


def test_the_records_own_time():
    assert one(Record(b'{"k":"a","at":5}', 9), layout("k", time="$timestamp")) == (("a",), 9, None, None)
    assert one(Record(b'{"k":"a"}', NOW + 1), layout("k", time="$timestamp"))[3] == "future"


KEY = b'{"user":"a","n":{"at":"7"},"load":[1]}'


def test_fields_of_the_records_key():
    where = layout("$key.user", "k", time="$key.n.at", payload="$key.load")
    assert one(Record(b'{"k":"b"}', 9, KEY), where) == (("a", "b"), 7, "[1]", None)
    for key in (None, b"", b"a", b"[]", b"{", b"\xff", b'{"user":7}'):
        assert one(Record(b'{"k":"b"}', 9, key), where)[3] == "missing_key"


@pytest.mark.parametrize(
    ("key", "text"), [(b"ann", "ann"), (b'"', '"'), ("ü\\".encode(), "ü\\"), (b"", None), (None, None), (b"\xff", None)]
)
def test_the_whole_key(key, text):
    problem = None if text else "missing_key"
    assert one(Record(b'{"at":5}', 9, key), layout("$key")) == ((text,), 5, None, problem)


def test_the_whole_key_is_time_or_payload():
    assert one(Record(b'{"k":"a"}', 9, b"1500"), layout("k", time="$key", payload="$key")) == (("a",), 1500, '"1500"', None)


def test_headers():
    where = layout("$header.from", "k", time="$header.at", payload="$header.load")
    headers = (("to", b"x"), ("from", b"a"), ("from", b"z"), ("at", b"12"), ("load", b'{""}'))
    assert one(Record(b'{"k":"b"}', 9, None, headers), where) == (("a", "b"), 12, '"{\\"\\"}"', None)
    for found in ((), (("from", None), ("from", b"a")), (("from", b""),), (("from", b"\xff"),)):
        assert one(Record(b'{"k":"b"}', 9, None, found), where)[3] == "missing_key"


def test_a_path_that_begins_with_another_one():
    where = layout("call.caller.id", "call.callee.id", payload="call", time="call.callee.at")
    assert one(Record(BODY, 9), where)[2] == '{"caller":{"id":"a"},"callee":{"id":"b","x":[1]}}'


# Times


@pytest.mark.parametrize(
    ("form", "zone", "token", "ts"),
    [
        ("epoch_s", None, "1700000000", 1_700_000_000_000), ("epoch_s", None, "1700000000.1239", 1_700_000_000_123),
        ("epoch_s", None, '"1700000000.1"', 1_700_000_000_100), ("epoch_s", None, "1.7e9", None), ("epoch_s", None, '"1."', None),
        ("epoch_s", None, "-1", None), ("epoch_s", None, "0.5", 500), ("epoch_s", None, "9223372036854775.807", 2**63 - 1),
        ("epoch_s", None, "9223372036854775.808", None), ("epoch_s", None, "9" * 400, None),
        ("epoch_s", None, '"' + "0" * 5000 + '1"', 1_000), ("epoch_s", None, "true", None),
        ("epoch_us", None, "1700000000123999", 1_700_000_000_123), ("epoch_us", None, '"1700000000123999"', 1_700_000_000_123),
        ("epoch_ns", None, "1700000000123999999", 1_700_000_000_123), ("epoch_ns", None, "9223372036854775807999999", 2**63 - 1),
        ("epoch_ns", None, "1.5", None), ("epoch_ms", None, '"0123"', 123),
        ("iso8601", None, '"2023-11-14T22:13:20Z"', 1_700_000_000_000), ("iso8601", None, '"2023-11-14t22:13:20z"', 1_700_000_000_000),
        ("iso8601", None, '"2023-11-14T22:13:20.123456789Z"', 1_700_000_000_123), ("iso8601", None, '"2023-11-14 23:13:20.1+01:00"', 1_700_000_000_100),
        ("iso8601", None, '"2023-11-14T22:13:20"', None), ("iso8601", "UTC", '"2023-11-14T22:13:20"', 1_700_000_000_000),
        ("iso8601", "Europe/Berlin", '"2023-11-14T23:13:20"', 1_700_000_000_000), ("iso8601", "Europe/Berlin", '"2023-11-14T22:13:20Z"', 1_700_000_000_000),
        ("iso8601", "UTC", '"2023-11-14"', 1_699_920_000_000), ("iso8601", None, '"1969-12-31T23:59:59Z"', None),
        ("iso8601", None, "1700000000", None), ("iso8601", None, '"2023-02-30T00:00:00Z"', None), ("iso8601", None, '"soon"', None),
        ("iso8601", None, '"2023-11-14T22:13:20\\u005a"', 1_700_000_000_000), ("iso8601", None, '"0001-01-01T00:00:00+14:00"', None),
        ("%d.%m.%Y %H:%M:%S", "Europe/Berlin", '"14.11.2023 23:13:20"', 1_700_000_000_000),
        ("%d.%m.%Y %H:%M:%S %z", None, '"14.11.2023 23:13:20 +0100"', 1_700_000_000_000), ("%H", "UTC", '"x"', None),
        # Clocks go back: the first of both.
        ("%Y-%m-%d %H:%M", "Europe/Berlin", '"2023-10-29 02:30"', 1_698_539_400_000),
    ],
)  # fmt: skip
def test_formats_of_times(form, zone, token, ts):
    row = one(Record(f'{{"k":"a","at":{token}}}'.encode(), 9), layout("k", form=form, zone=zone), latest_ts=2**63 - 1)
    assert row == (("a",), ts, None, None if ts is not None else "bad_timestamp")


@pytest.mark.parametrize(
    ("form", "token"), [("epoch_s", "3"), ("epoch_us", "2001000"), ("iso8601", '"1970-01-01T00:00:02.001Z"')]
)
def test_the_future_in_each_format(form, token):
    assert one(Record(f'{{"k":"a","at":{token}}}'.encode(), 9), layout("k", form=form))[3] == "future"


# only


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [(b'"end"', True), (b'"e\\u006ed"', True), (b'"begin"', False), (b"null", False), (b"7", True), (b'"7"', True), (b"7.0", False),
     (b"true", True), (b"[]", False)],
)  # fmt: skip
def test_only(value, is_kept):
    where = layout("k", only={"type": ("end", "7", "true", "null")})
    body = b'{"k":"a","at":5,"type":' + value + b"}"
    assert one(Record(body, 9), where) == ((("a",), 5, None, None) if is_kept else ((None,), None, None, "filtered"))


def test_only_is_asked_before_anything_else():
    where = layout("k", only={"type": ("end",), "$header.kind": ("x",)})
    wrong, right = (("kind", b"y"),), (("kind", b"x"),)
    assert one(Record(b'{"type":"end","at":-1}', 9, None, wrong), where)[3] == "filtered"
    # Of what cannot be read, the header decides alone.
    assert one(Record(b"{", 9, None, wrong), where)[3] == "filtered"
    assert one(Record(b"{", 9, None, right), where)[3] == "malformed_json"
    assert one(Record(b'{"type":"end"}', 9, None, right), where)[3] == "missing_key"


# key_text


@pytest.mark.parametrize(
    ("steps", "token", "text"),
    [
        ((), '" A "', " A "), (("trim",), '" A "', "A"), (("trim",), '"  "', None), (("lower",), '"ÄB"', "äb"), (("upper",), '"äß"', "ÄSS"),
        (("trim", "lower"), '"\\u00a0B\\n"', "b"), ((), "7", None), (("integers",), "7", "7"), (("integers",), "-0", "0"),
        (("integers",), "7.0", None), (("integers",), "123456789012345678901234567890", "123456789012345678901234567890"),
        (("integers",), "true", None), (("integers",), '"07"', "07"), (("integers",), "null", None),
    ],
)  # fmt: skip
def test_key_text(steps, token, text):
    row = one(Record(f'{{"k":{token},"at":5}}'.encode(), 9), layout("k", key_text=steps))
    assert row == ((text,), 5, None, None if text else "missing_key")


# Whatever comes


def trees(leaves):
    return st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6)


VALUES = trees(
    st.sampled_from(["x", "", " Y ", 5, 0, -1, 1.5, None, True, [], [{"a": 1}], "1500", 3_000, "1970-01-01T00:00:01Z"])
)
BYTES = st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.sampled_from([None, b"", b"{", b"\xff", b"x"]))
WHERE = st.sampled_from(["a", "a.b", "a.b.c", "b", "c", "$key", "$key.a", "$key.a.b", "$header.a"])


@settings(deadline=None, max_examples=250)
@given(st.data())
def test_columns_say_what_each_message_says(data):
    """`read` compares both."""
    records = data.draw(
        st.lists(
            st.builds(
                Record,
                BYTES,
                st.sampled_from([None, 9, -1]),
                BYTES,
                st.lists(st.tuples(st.sampled_from("ab"), BYTES), max_size=2).map(tuple),
            )
        )
    )
    where = layout(
        *data.draw(st.lists(WHERE, min_size=1, max_size=2)),
        time=data.draw(st.one_of(WHERE, st.just("$timestamp"))),
        form=data.draw(st.sampled_from([None, "epoch_s", "epoch_us", "iso8601"])),
        payload=data.draw(st.one_of(WHERE, st.just("$value"))),
        only=data.draw(st.one_of(st.none(), st.dictionaries(WHERE, st.just(("x", "5"))))),
        key_text=data.draw(st.sampled_from([(), ("trim",), ("integers",), ("integers", "trim", "lower")])),
    )
    read(records, where)


def test_a_finder_finds_nothing_beside_its_paths():
    assert Finder([("a",)]).find(b'{"b":{"a":1}}') == [b""]


def test_the_layout_of_a_side(tmp_path):
    file = tmp_path / "calls.yaml"
    file.write_text("""
        left: {topic: l, payload: x, key: {b: "$key", a: call.id}, timestamp: meta.at, timestamp_format: iso8601, only: {type: [end, 7]}}
        right: {topic: r, payload: y, payload_from: $value}
        output: {topic: o}
        key: [a, b]
        key_text: [lower, trim]
        timestamp_format: epoch_s
        tolerance: 1m
        gap: 1m
        grace: 1m
        """)
    pipeline = load_pipeline(file)
    left, right = (layout_of(pipeline, side) for side in pipeline.sides)
    assert left == layout(
        "call.id",
        "$key",
        time="meta.at",
        form="iso8601",
        payload="x",
        only={"type": ("7", "end")},
        key_text=("trim", "lower"),
    )._replace(key=("a", "b"))
    assert right == layout(
        "a", "b", time="timestamp", form="epoch_s", payload="$value", key_text=("trim", "lower")
    )._replace(key=("a", "b"))
