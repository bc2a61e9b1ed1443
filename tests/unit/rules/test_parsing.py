"""What a message says, against an obviously strict reading of the same bytes."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.rules.nesting import DEEPEST
from spark_jobs.rules.parsed_columns import parse_columns
from spark_jobs.rules.times import LARGEST_TS
from tests.helpers.one_message import any_message_parser, body_layout, columns_of

FIELDS = body_layout(("user1", "user2"), "timestamp", "metrics")
NOW = 2_000
parse = any_message_parser(FIELDS, NOW)


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
    """Python's own parser, made strict: no constants that are not JSON, no unpaired surrogates, no digit lost."""
    decoded = STRICT.decode(value.decode("utf-8"))
    json.dumps(decoded, ensure_ascii=False).encode("utf-8")
    return decoded


def refuse(text):
    raise ValueError(text)


# Numbers stay the text they are.
STRICT = json.JSONDecoder(parse_constant=refuse, parse_int=lambda text: Number(text), parse_float=lambda text: Number(text))


class Number(str):
    pass


def members(text):
    """Name -> (decoded, text) of each member of the one JSON object that the text is; of a name that occurs twice the last."""
    found, at = {}, end_of_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = STRICT.raw_decode(text, at)
        at = end_of_space(text, end_of_space(text, at) + 1)
        decoded, end = STRICT.raw_decode(text, at)
        found[name] = (decoded, text[at:end])
        at = end_of_space(text, end)
        at = end_of_space(text, at + 1) if text[at] == "," else at
    return found


def end_of_space(text, at):
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


def depth(decoded):
    levels, found = 0, [decoded]
    while found := [value for value in found if isinstance(value, dict | list)]:
        found = [inner for value in found for inner in (value.values() if isinstance(value, dict) else value)]
        levels += 1
    return levels


def obviously(value, record_ts, payload_field="metrics", latest=NOW):
    """What a message says, by the rules as they are written: (key, ts, payload, problem), key and ts only if there is none."""
    try:
        decoded = strictly(value)
    except (ValueError, AttributeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict) or depth(decoded) > DEEPEST:
        return None, None, None, "malformed_json"
    absent = (None, "null")
    said = members(value.decode())
    payload = said.get(payload_field, absent)[1]
    key = tuple(said.get(name, absent)[0] for name in ("user1", "user2"))
    if not all(type(name) is str and name for name in key):
        return None, None, None if payload == "null" else payload, "missing_key"
    moment = said.get("timestamp", absent)[0]
    ts = record_ts if moment is None else None
    if isinstance(moment, str) and re.fullmatch("[0-9]+", moment):
        ts = int(moment.lstrip("0") or "0") if len(moment.lstrip("0")) < 20 else None
    if ts is None or not 0 <= ts <= LARGEST_TS:
        return None, None, None if payload == "null" else payload, "bad_timestamp"
    if ts > latest:
        return None, None, None if payload == "null" else payload, "future"
    return key, ts, None if payload == "null" else payload, None


def said_of(values, record_ts):
    """What parse_columns says of each message, in the form of `obviously`."""
    columns = parse_columns(columns_of(values, record_ts), FIELDS, NOW)
    rows = zip(*(column.to_pylist() for column in (*columns.key, columns.ts, columns.payload, columns.problem)), strict=True)
    return [((k1, k2), ts, payload, None) if p is None else (None, None, payload, p) for k1, k2, ts, payload, p in rows]


pieces = st.sampled_from(
    [b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b" ", b"\n", b"null", b"true", b"1", b"-", b".", b"e", b"0", b"\xff", b"\x00", b"\\u00e9",
     b"\\ud83d\\ude00", b"\\ud800", b"NaN", b"'", b'"user1":"a"', b'"user2":"b"', b'"timestamp":5', b'"metrics":', b'{"user1":"a","user2":"b"', b"/**/",
     b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x98", b"\xef\xbb\xbf", b"\xc2\x85", b"\x7f", b"\x1f", b"}{", b"}\n{", b'"user\\u0031":"z"',
     b'"timestamp":"7"', b'"timestamp":-0', b'"timestamp":2001', b'"timestamp":1.0', b'"timestamp":null',
     b'"metrics":null', b"1e400", b"-0", b"Infinity", b"0x1", b"01",
     b'"\\u0000"', b"[" * 60, b"]" * 60, b'{"":' * 20, "٣".encode()]
)  # fmt: skip
VALID = [
    b'{"user1":"a","user2":"b","timestamp":5,"metrics":{"loss":0.10,"deep":[1,[2,{"x":null}]],"text":"\\u00e9\\n\\ud83d\\ude00"}}',
    b' {"metrics" : [ 1 , -2.50e-3 , 12345678901234567890123 ] , "user2":"\xc3\xa9","x":{"user1":1},"user1":"\\"","timestamp":"1999"} ',
    b'{"user1":"a","user2":"b","metrics":"text","metrics":null,"timestamp":null}',
    b'{"user1":"a","user2":"b","timestamp":5,"extra":"\xe2\x98\x8e"}',
]  # fmt: skip
places = st.integers(0, 10_000)
mutations = st.lists(
    st.tuples(st.sampled_from(["insert", "replace", "cut", "repeat", "move"]), places, places, pieces | st.binary(min_size=1, max_size=2)),
    max_size=3,
)  # fmt: skip


def mutated(value, changes):
    for change, one, other, piece in changes:
        begin, stop = sorted((one % (len(value) + 1), other % (len(value) + 1)))
        middle = value[begin:stop]
        value = {
            "insert": value[:begin] + piece + value[begin:],
            "replace": value[:begin] + piece + value[begin + len(piece) :],
            "cut": value[:begin] + value[stop:],
            "repeat": value[:stop] + middle + value[stop:],
            "move": middle + value[:begin] + value[stop:],
        }[change]
    return value


hostile = (
    st.lists(pieces, max_size=14).map(b"".join)
    | st.binary(max_size=30)
    | st.builds(mutated, st.sampled_from(VALID), mutations)
    | st.sampled_from([value for values in PROBLEMS.values() for value in values])
)


@settings(max_examples=750, deadline=None)
@given(st.lists(st.tuples(hostile, st.sampled_from([9, 9, 0, NOW, NOW + 1, None, -1])), max_size=8))
def test_same_verdict_and_same_payload_as_a_strict_parser(messages):
    values, record_ts = [value for value, _ in messages], [ts for _, ts in messages]
    assert said_of(values, record_ts) == [obviously(*message) for message in messages]


@settings(max_examples=750, deadline=None)
@given(st.lists(st.tuples(hostile, st.sampled_from([9, 0, NOW, NOW + 1, None, -1])), max_size=8))
def test_in_bulk_as_one_by_one(messages):
    values, record_ts = [value for value, _ in messages], [ts for _, ts in messages]
    columns = parse_columns(columns_of(values, record_ts), FIELDS, NOW)
    one_by_one = [parse(*message) for message in messages]
    assert [tuple(names) for names in zip(*(c.to_pylist() for c in columns.key), strict=True)] == [p.key for p in one_by_one]
    assert columns.ts.to_pylist() == [p.ts for p in one_by_one]
    assert columns.payload.to_pylist() == [p.payload for p in one_by_one]
    assert columns.problem.to_pylist() == [p.problem for p in one_by_one]
    for column in (*columns.key, columns.ts, columns.payload, columns.problem):
        column.validate(full=True)


@pytest.mark.parametrize(
    ("levels", "problem"), [(DEEPEST, None), (DEEPEST + 1, "malformed_json"), (5_000, "malformed_json")]
)
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"[":', b"}")])
def test_the_deepest_nesting_is_the_same_for_every_caller(levels, problem, opening, closing):
    inside = opening * (levels - 1) + b"1" + closing * (levels - 1)
    value = b'{"user1":"a","user2":"b","timestamp":5,"metrics":' + inside + b"}"
    assert parse(value, 9).problem == said_of([value], [9])[0][3] == problem

    def deeper(frames):
        return deeper(frames - 1) if frames else said_of([value], [9])[0][3]

    assert deeper(100) == problem


def test_brackets_in_strings_do_not_nest():
    value = body(metrics="[" * 2_000 + '\\"{' * 2_000)
    assert parse(value, 9).problem is None
    assert said_of([value], [9])[0][2] == json.dumps("[" * 2_000 + '\\"{' * 2_000)


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
    columns = parse_columns(columns_of([body(), b"\xff", body(user1="c")], [1, 2, 3]), FIELDS, NOW)
    assert columns.problem.to_pylist() == [None, "malformed_json", None]
    assert [column.to_pylist() for column in columns.key] == [["a", None, "c"], ["b", None, "b"]]
    assert columns.ts.to_pylist() == [5, None, 5]
