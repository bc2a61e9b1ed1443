"""Long texts made of valid ones, cut, doubled, escaped and spliced: both parsers say the same, and take no longer than their length."""

import json
import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.rules import nesting
from spark_jobs.rules.nesting import DEEPEST, nests_too_deep
from spark_jobs.rules.parsed_columns import parse_columns
from tests.helpers.hostile_texts import FAMILIES, HEAD, plain
from tests.helpers.one_message import columns_of
from tests.unit.rules.test_parsing import FIELDS, NOW, VALID, obviously, parse

# What Python's own parser, one value at a time, reads in no time.
CHEAP = 20_000
EXAMPLES = 500
MAKERS = {"plain": plain, **FAMILIES, **{f"valid {number}": lambda _, text=text: text for number, text in enumerate(VALID)}}


def in_a_string(text):
    """As a JSON string; what is no UTF-8 in it is replaced."""
    return json.dumps(text.decode("utf-8", "replace")).encode()


def payload_of(text):
    """What a family repeats is its payload, mostly."""
    return text[len(HEAD) : -1] if text.startswith(HEAD) else text


def cut(text, place):
    return text[: len(text) * place // 1000]


# (JSON text, another, two places in per mille) -> text. Of JSON these make JSON.
KEEPING = {
    "escaped": lambda text, other, one, two: in_a_string(text),
    "escaped twice": lambda text, other, one, two: in_a_string(in_a_string(text)),
    "cut and escaped": lambda text, other, one, two: in_a_string(cut(text, one)),
    "spliced and escaped": lambda text, other, one, two: in_a_string(cut(text, one) + other[len(other) * two // 1000 :]),
    "doubled": lambda text, other, one, two: b"[" + text + b",\n" + text + b"]",
    "joined": lambda text, other, one, two: b'{"\\u0061":' + text + b',"":' + other + b"}",
    "deeper": lambda text, other, one, two: b"[" * (one // 2) + text + b"]" * (one // 2),
    "as a message": lambda text, other, one, two: HEAD + text + b"}",
}
BREAKING = {
    "cut": lambda text, other, one, two: cut(text, one),
    "beheaded": lambda text, other, one, two: text[len(text) * one // 1000 :],
    "doubled": lambda text, other, one, two: text + text,
    "spliced": lambda text, other, one, two: cut(text, one) + other[len(other) * two // 1000 :],
    "inserted": lambda text, other, one, two: cut(text, one) + other + text[len(text) * one // 1000 :],
    "a sign of it changed": lambda text, other, one, two: cut(text, one) + bytes([two % 256]) + cut(text, one)[::-1],
}
# Members before and behind the payload: whether they are sound is the other half of what is told.
SOUND = [
    '"user1":"a","user2":"b","timestamp":5',
    '"timestamp":"05","user2":"\\u0062","user1":"é"',
    '"user1":"","user1":"a","user2":"b"',
]
UNSOUND = ['"user1":"a","timestamp":5', '"user1":"a","user2":"","timestamp":2001', '"user1":["a"],"user2":"b","timestamp":5',
           '"user1":"a","user2":"b","timestamp":1.5', '"user1":"a","user2":"b","timestamp":"x"', '"user2":"b","user1":"a","timestamp":-1',
           '"user1":"a","user2":"b","timestamp":2001', '"user1":"a","user2":"b","timestamp":5,"timestamp":"9223372036854775807"']  # fmt: skip
names, per_mille = st.sampled_from([*MAKERS]), st.integers(0, 1000)


def steps(changes):
    return st.tuples(st.sampled_from([*changes.values()]), names, per_mille, per_mille)


keeping = st.lists(steps(KEEPING), max_size=3)
breaking = st.just([]) | st.lists(steps(BREAKING), min_size=1, max_size=2)
sizes = st.sampled_from([2_000, 20_000, 20_000, 70_000, 1_000_000])


def changed(text, size, changes):
    for change, other, one, two in changes:
        text = change(text, payload_of(MAKERS[other](size)), one, two)
        if len(text) > 4 * size + 1_000:
            break
    return text


@st.composite
def messages(draw):
    """A payload that was changed, some ways keeping it JSON and some not, among members that are sound or not, or a whole message changed."""
    size = draw(sizes)
    payload = changed(payload_of(MAKERS[draw(names)](size)), size, draw(keeping))
    if not draw(st.integers(0, 3)):
        payload = changed(payload, size, draw(breaking))
    members = draw(st.sampled_from(SOUND) | st.sampled_from(UNSOUND)).encode()
    parts = [members, b'"metrics":' + payload]
    value = b"{" + b",".join(parts if draw(st.booleans()) else parts[::-1]) + b"}"
    return value if draw(st.integers(0, 7)) else changed(value, size, draw(breaking))


def check(values):
    """Both parsers say the same in every column, and what Python's own says, where that is fast; gives the problems."""
    columns = parse_columns(columns_of(values, [9] * len(values)), FIELDS, NOW)
    one_by_one = [parse(value, 9) for value in values]
    told = zip(zip(*(c.to_pylist() for c in columns.key), strict=True), *(c.to_pylist() for c in columns[1:]), strict=True)
    # Not compared by assert, which would print megabytes.
    different = [number for number, (bulk, single) in enumerate(zip(told, one_by_one, strict=True)) if bulk != tuple(single)]
    assert not different, [values[number][:200] for number in different]
    for column in (*columns.key, columns.ts, columns.payload, columns.problem):
        column.validate(full=True)
    for value, (key, ts, payload, problem) in zip(values, one_by_one, strict=True):
        if value is not None and len(value) <= CHEAP:
            said = (None, None, payload, str(problem)) if problem else (key, ts, payload, None)
            assert said == obviously(value, 9), value[:200]
    return [parsed.problem for parsed in one_by_one]


def test_changed_texts_of_a_megabyte_in_both_parsers():
    told = Counter()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(messages(), st.sampled_from([b"\xff", b"{", VALID[0]]))
    @example(FAMILIES["JSON in two strings, truncated"](1_000_000), b"{")
    def changed_texts(value, neighbour):
        told[check([VALID[0], value, neighbour, None, VALID[0]])[1]] += 1

    changed_texts()
    # Each of the verdicts was often under test.
    shares = {
        reason: told[reason] / told.total() for reason in (None, "malformed_json", "missing_key", "bad_timestamp", "future")
    }
    assert told.total() >= EXAMPLES
    assert min(shares.values()) > 0.03 and max(shares.values()) < 0.7, shares


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_in_both_parsers(name):
    values = [FAMILIES[name](size) for size in (500, 3_000, 100_000)]
    check(values)
    assert all((parse(value, 9).problem is None) == ("valid" in name) for value in values[1:])


def told_by_hand(text):
    """The deepest level outside of strings, sign by sign."""
    depth = deepest = at = 0
    inside = False
    while at < len(text):
        sign = text[at : at + 1]
        if text[at : at + 2] in (rb"\\", rb"\""):
            at += 1
        elif sign == b'"':
            inside = not inside
        elif not inside:
            depth += (sign in b"[{") - (sign in b"]}")
            deepest = max(deepest, depth)
        at += 1
    return deepest


signs = st.lists(
    st.sampled_from(
        [
            b"[",
            b"]",
            b"{",
            b"}",
            b'"',
            b"\\",
            rb'"\\"',
            rb'\\"',
            rb"\"",
            b"x",
            b'"x"',
            b"[[",
            b"[" * 9,
            b'""' * 40,
            b"[]" * 40,
        ]
    ),
    max_size=120,
)


@settings(max_examples=400, deadline=None)
@given(signs.map(b"".join), st.sampled_from([64, 128, 65_536]), st.integers(0, 12))
@example(b"x" * 127 + rb"\"[[", 64, 1)
@example(b'"' + b"\\" * 127 + b'"[[', 128, 1)
@example(b"x" * 60 + b"[[]]", 64, 1)
def test_the_depth_is_that_of_a_count_by_hand(text, at_once, deepest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "DEEPEST", deepest)
        patch.setattr(nesting, "_AT_ONCE", at_once)
        assert nests_too_deep(text) == (len(text) > deepest and told_by_hand(text) > deepest)


@pytest.mark.parametrize(
    "string",
    [b"", b'"x",', b'"\\\\\\"[",' * 9_000, b'"[{",' * 9_000, b'"[\\\\",' * 9_001],
    ids=["none", "short", "escapes", "brackets", "backslashes at ends"],
)
def test_the_deepest_nesting_behind_strings_of_all_lengths(string):
    for levels in (DEEPEST - 1, DEEPEST):
        assert nests_too_deep(b"[" + string + b"[" * levels) == (levels == DEEPEST)


@pytest.mark.parametrize("name", FAMILIES)
def test_twenty_times_the_text_takes_no_hundred_times_as_long(name):
    """Not a measurement, which is `make bench-hostile-messages`: what is quadratic takes 400 times as long, what is linear at most 20."""

    def seconds(size):
        values = [FAMILIES[name](size)]
        begin = time.process_time()
        parse(values[0], 9)
        parse_columns(columns_of(values, [9]), FIELDS, NOW)
        return time.process_time() - begin

    few = min(seconds(2_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(2)) < 100 * few
