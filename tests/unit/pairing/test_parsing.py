"""What a message says, against an obviously strict reading of the same bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.pairing.parsing import LARGEST_TS, BodyFields, message_parser, parse_columns

FIELDS = BodyFields(("user1", "user2"), "timestamp", "metrics")
NOW = 2_000
parse = message_parser(FIELDS, NOW)


def body(**fields):
    return json.dumps({"user1": "a", "user2": "b", "timestamp": 5, "metrics": 1} | fields).encode()


def raw(text):
    return b'{"user1":"a","user2":"b","timestamp":' + text + b',"metrics":1}'


PROBLEMS = {
    "malformed_json": [
        b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}{}", b"{} x", b"{'user1':'a'}", b'{"user1":"a",}', b"\xff", b'{"user1":"\xff"}',
        b"\xef\xbb\xbf{}", raw(b"NaN"), raw(b"Infinity"), raw(b"01"), raw(b"1."), raw(b".5"), raw(b"+1"), raw(b"1 2"), raw(b'"\x01"'),
        b'{"metrics":"\\x"}', b'{"metrics":"\\ud800"}', b'{"metrics":tru}', b'{"metrics":[1,]}', b'{"metrics":' + b"[" * 9999 + b"]" * 9999 + b"}",
        None,
    ],
    "missing_key": [b"{}", body(user1=""), body(user1=None), body(user2=5), body(user2=["b"]), b'{"user1":"a","timestamp":5}'],
    "bad_timestamp": [
        *(raw(text) for text in (b"-1", b"1.5", b"1e3", b"1.0", b"true", b"[]", b"{}", b'""', b'"soon"', b'"-5"', b'"1.5"', b'" 5"', b"-0")),
        raw(str(LARGEST_TS + 1).encode()), raw(b"9" * 5000), raw('"٣"'.encode()),
    ],
    "future": [raw(b"2001"), raw(str(LARGEST_TS).encode()), raw(b'"2001"')],
}  # fmt: skip


@pytest.mark.parametrize(("problem", "value"), [(p, value) for p, values in PROBLEMS.items() for value in values])
def test_problem(problem, value):
    assert parse(value, 9).problem == problem


@pytest.mark.parametrize(
    ("value", "ts"),
    [
        (raw(b"0"), 0), (raw(b"2000"), 2_000), (raw(b'"1500"'), 1_500), (raw(b'"007"'), 7), (raw(b'"\\u0031"'), 1), (raw(b"null"), 9),
        (b'{"user1":"a","user2":"b"}', 9), (b' \n{"user1":"a","user2":"b","timestamp":5,"timestamp": 6 } ', 6),
    ],
)  # fmt: skip
def test_timestamp(value, ts):
    assert parse(value, 9) == (("a", "b"), ts, "1" if b"metrics" in value else None, None)


@pytest.mark.parametrize("record_ts", [None, -1, LARGEST_TS + 1])
def test_no_timestamp_at_all(record_ts):
    assert parse(b'{"user1":"a","user2":"b"}', record_ts).problem == "bad_timestamp"


@pytest.mark.parametrize(
    "payload",
    [
        b'"a \\u00e9 \\n"',
        b"9223372036854775807",
        b"0.100000000000000000000000000001",
        b'{"b": [1, {"c": null}] }',
        b'""',
        b"1E400",
        '"☎"'.encode(),
    ],
)
def test_payload_stays_as_it_came(payload):
    assert parse(b'{"user1":"a","user2":"b","timestamp":5,"metrics":' + payload + b"}", 9).payload == payload.decode()


@pytest.mark.parametrize("value", [body(metrics=None), b'{"user1":"a","user2":"b","timestamp":5}'])
def test_no_payload_is_an_event(value):
    assert parse(value, 9) == (("a", "b"), 5, None, None)


def test_escaped_and_wide_keys():
    assert parse(b'{"user1":"\\u00e9\\"","user2":"\xf0\x9f\x98\x80","timestamp":1}', 9).key == ('é"', "😀")


def strictly(value):
    """Python's own parser, made strict: no constants that are not JSON, no unpaired surrogates."""

    def refuse(text):
        raise ValueError(text)

    decoded = json.loads(value.decode("utf-8"), parse_constant=refuse)
    json.dumps(decoded, ensure_ascii=False).encode("utf-8")
    return decoded


pieces = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b" ", b"\n", b"null", b"true", b"1", b"-", b".", b"e", b"0", b"\xff", b"\x00", b"\\u00e9",
     b"\\ud83d\\ude00", b"\\ud800", b"NaN", b"'", b'"user1":"a"', b'"user2":"b"', b'"timestamp":5', b'"metrics":', b'{"user1":"a","user2":"b"', b"/**/"]
)  # fmt: skip


@settings(max_examples=3_000, deadline=None)
@given(st.lists(pieces, max_size=14).map(b"".join) | st.binary(max_size=30))
def test_same_verdict_as_a_strict_parser(value):
    try:
        malformed = not isinstance(strictly(value), dict)
    except (ValueError, RecursionError):
        malformed = True
    assert (parse(value, 9).problem == "malformed_json") == malformed


@settings(max_examples=500, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_same_payload_as_a_strict_parser(payload, ascii_only, indent):
    try:
        text = json.dumps(payload, ensure_ascii=ascii_only, indent=indent).encode()
        strictly(text)
    except ValueError:
        return
    found = parse(b'{"user1":"a","user2":"b","timestamp":5,"metrics":' + text + b"}", 9).payload
    assert (None if found is None else json.loads(found)) == payload


def test_one_bad_message_does_not_touch_its_neighbours():
    columns = parse_columns([body(), b"\xff", body(user1="c")], [1, 2, 3], FIELDS, NOW)
    assert columns.problem.to_pylist() == [None, "malformed_json", None]
    assert [column.to_pylist() for column in columns.key] == [["a", None, "c"], ["b", None, "b"]]
    assert columns.ts.to_pylist() == [5, None, 5]
