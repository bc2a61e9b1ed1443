"""Long texts made of valid ones, cut, doubled, escaped and spliced: both parsers say the same, and take no longer than their length."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.pairing import nesting
from spark_jobs.pairing.nesting import DEEPEST, nests_too_deep
from spark_jobs.pairing.parsing_in_bulk import parse_columns
from tests.hostile_texts import FAMILIES, plain
from tests.unit.pairing.test_parsing import FIELDS, NOW, VALID, obviously, parse

# What Python's own parser, one value at a time, reads in no time.
CHEAP = 20_000
MAKERS = {"plain": plain, **FAMILIES, **{f"valid {number}": lambda _, text=text: text for number, text in enumerate(VALID)}}


def in_a_string(text):
    """The text as the payload of a message; what is no UTF-8 in it is replaced."""
    return b'{"user1":"a","user2":"b","timestamp":5,"metrics":' + json.dumps(text.decode("utf-8", "replace")).encode() + b"}"


# (text, other text, two places in per mille) -> text.
CHANGES = {
    "cut": lambda text, other, one, two: text[: len(text) * one // 1000],
    "beheaded": lambda text, other, one, two: text[len(text) * one // 1000 :],
    "doubled": lambda text, other, one, two: text + text,
    "nested": lambda text, other, one, two: b'{"user1":"a","user2":"b","timestamp":5,"metrics":' + text + b"}",
    "escaped": lambda text, other, one, two: in_a_string(text),
    "escaped twice": lambda text, other, one, two: in_a_string(in_a_string(text)),
    "escaped and cut": lambda text, other, one, two: in_a_string(text)[: 50 + len(text) * one // 1000],
    "spliced": lambda text, other, one, two: text[: len(text) * one // 1000] + other[len(other) * two // 1000 :],
    "inserted": lambda text, other, one, two: text[: len(text) * one // 1000] + other + text[len(text) * one // 1000 :],
}
names, per_mille = st.sampled_from([*MAKERS]), st.integers(0, 1000)
changes = st.lists(st.tuples(st.sampled_from([*CHANGES]), names, per_mille, per_mille), max_size=3)


def made(name, size, changes):
    text = MAKERS[name](size)
    for change, other, one, two in changes:
        text = CHANGES[change](text, MAKERS[other](size), one, two)[: 4 * size + 1_000]
    return text


def texts(*sizes):
    return st.builds(made, names, st.sampled_from(sizes), changes)


def check(values):
    """Both parsers say the same in every column, and what Python's own says, where that is fast."""
    columns = parse_columns(values, [9] * len(values), FIELDS, NOW)
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


@settings(max_examples=100, deadline=None)
@given(names, st.sampled_from([20_000, 70_000, 1_000_000]), changes, st.sampled_from([b"\xff", b"{", VALID[0]]))
@example("JSON in two strings, truncated", 1_000_000, [], b"{")
def test_changed_texts_of_a_megabyte_in_both_parsers(name, size, changes, neighbour):
    check([VALID[0], made(name, size, changes), neighbour, None, VALID[0]])


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
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(signs.map(b"".join), st.sampled_from([3, 7, 64, 16_384]), st.integers(0, 12))
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
        parse_columns(values, [9], FIELDS, NOW)
        return time.process_time() - begin

    few = min(seconds(2_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(2)) < 100 * few
