"""Whose rows are found: by the fields of a key, or by the bytes of what has no readable key."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_jobs.corrections.erasure_search import nameless, person
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.orphan_section import named
from tests.helpers.timeline import CALLS

PAIR, IN_ANY, FIRST = person(CALLS, ["ann", "bob"]), person(CALLS, ["ann"]), person(CALLS, ["ann"], "user1")
KEYS = [("ann", "bob"), ("bob", "ann"), ("ann", "x"), ("anna", "bob"), ("ann", None), (None, None)]


@pytest.mark.parametrize(
    ("whose", "found"), [(PAIR, [0]), (IN_ANY, [0, 1, 2, 4]), (FIRST, [0, 2, 4]), (person(CALLS, ["ann"], "user2"), [1])]
)
def test_rows_are_found_by_their_key(whose, found):
    rows = pa.RecordBatch.from_pylist([dict(zip(CALLS.key, key, strict=True)) for key in KEYS])
    mask = whose.is_key(rows).to_pylist()
    assert [number for number, mine in enumerate(mask) if mine] == found


@pytest.mark.parametrize(
    ("values", "text", "found"),
    [
        (["ann", "bob"], b'{"user1":"ann","user2":"bob"', True),
        (["ann", "bob"], b'{"user1":"ann"', False),
        (["ann"], b"annual", True),
        (["ann"], None, False),
        (["Zoë"], json.dumps({"user1": "Zoë"}).encode(), True),
        (["Zoë"], "Zoë".encode(), True),
        (['a"b'], b'{"user1": "a\\"b"', True),
        # As bytes, not as a pattern.
        (["a.b"], b"axb", False),
    ],
)
def test_bytes_have_the_values_plain_or_as_json_writes_them(values, text, found):
    assert person(CALLS, values).is_in(pa.array([text], pa.binary())).to_pylist() == [found]


@pytest.mark.parametrize(
    ("steps", "values", "found"),
    [
        (("trim", "lower"), [" Ann", "BOB"], [0]),
        (("trim", "upper"), [" Ann", "bob "], [2]),
        (("trim",), ["ann ", "bob"], [0]),
        (("lower",), ["ann ", "bob"], []),
        (("integers", "trim"), [" 7", "08"], [3]),
    ],
)
def test_values_become_what_key_text_makes_of_keys(steps, values, found):
    keys = [("ann", "bob"), ("Ann", "BOB"), ("ANN", "BOB"), ("7", "08")]
    rows = pa.RecordBatch.from_pylist([dict(zip(CALLS.key, key, strict=True)) for key in keys])
    mask = person(replace(CALLS, key_text=steps), values).is_key(rows).to_pylist()
    assert [number for number, mine in enumerate(mask) if mine] == found


def test_keys_of_every_time_are_found_and_what_was_trimmed_to_nothing_is_none():
    always = PAIR._replace(values=("Ann", " "), key_texts=((), ("lower",), ("lower", "trim")))
    keys = [("Ann", " "), ("ann", " "), ("ann", ""), ("ann", "bob")]
    rows = pa.RecordBatch.from_pylist([dict(zip(CALLS.key, key, strict=True)) for key in keys])
    assert always.is_key(rows).to_pylist() == [True, True, False, False]
    assert always.named() == {("user1", "Ann"), ("user1", "ann"), ("user2", " ")}


@pytest.mark.parametrize(
    ("steps", "values", "text", "found"),
    [
        (("lower",), ["ann"], b'{"user1": "ANN"', True),
        (("upper", "trim"), [" Ann "], b'{"user1": "  aNn"', True),
        (("trim",), ["ann"], b'{"user1": " ANN"', False),
        (("lower",), ["Zo\xeb"], "ZO\xcb".encode(), True),
        (("lower",), ["Zo\xeb"], json.dumps("ZO\xcb").encode(), True),
        (("lower",), ["ann", "bob"], b"ANN \xff Bo", False),
        (("integers",), ["42"], b'{"user1": 42', True),
        (("lower",), ["ann"], None, False),
    ],
)
def test_bytes_are_compared_as_key_text_makes_keys_equal(steps, values, text, found):
    whose = person(replace(CALLS, key_text=steps), values)
    assert whose.is_in(pa.array([text], pa.binary())).to_pylist() == [found]


def test_with_keys_in_either_order_a_breakdown_names_all_fields_at_once():
    either = replace(CALLS, key_order="any")
    assert person(either, ["ann"]).named() == {("user1 or user2", "ann")}
    whose = person(either, ["bob", "ann"])
    assert whose.named() == {("user1 or user2", "ann"), ("user1 or user2", "bob")}
    sentence = f"<li>3 of the 4 are of {named(Breakdown('top_user', 3, field='user1 or user2', value='ann'))} 2 values</li>"
    assert nameless(sentence, whose) == "<li>3 of the 4 are of user1 or user2=(erased), one of 2 values</li>"


@pytest.mark.parametrize(
    ("values", "field", "line"),
    [
        (["a", "b", "c"], None, "give one value for each of user1, user2, in this order, or one alone"),
        (["a", "b"], "user1", "give one value for each of user1, user2"),
        (["a"], "user3", "--field user3 is no field of the key: name one of user1, user2"),
        (["", "b"], None, "a value is empty"),
    ],
)
def test_values_that_name_nobody_are_refused(values, field, line):
    with pytest.raises(ValueError, match=line):
        person(CALLS, values, field)


def test_a_value_that_is_trimmed_to_nothing_is_refused():
    with pytest.raises(ValueError, match="a value is empty"):
        person(replace(CALLS, key_text=("trim",)), [" ", "bob"])


def test_a_page_loses_the_name_and_nothing_that_only_looks_like_it():
    sentence = f"<li>3 of the 4 are of {named(Breakdown('top_user', 3, field='user1', value='a&amp;b'))} 2 values</li>"
    whose = person(CALLS, ["a&b"])
    assert nameless(sentence, whose) == "<li>3 of the 4 are of user1=(erased), one of 2 values</li>"
    assert nameless(sentence.replace("a&amp;b", "aa&amp;b"), whose) is None
    assert nameless(sentence, person(CALLS, ["b"])) is None
