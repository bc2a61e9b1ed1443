"""Columns of JSON texts."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.formats.json_text import (
    UnescapedTexts,
    booleans,
    field_strings,
    flat,
    lists,
    maps,
    numbers,
    objects,
    strings,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A slice out of the middle of a longer array: its offsets do not begin at zero."""
    return pa.concat_arrays([pa.array([None, *values[:1]], kind), pa.array([*values, None], kind)])[
        1 + len(values[:1]) : 1 + len(values[:1]) + len(values)
    ]


@quick
@given(st.lists(TEXTS | st.none(), max_size=5))
def test_strings_are_spelled_as_by_json_dumps(values: list[str | None]) -> None:
    texts = strings(column(values, pa.string()))
    assert texts.type == pa.string()
    assert texts.to_pylist() == [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]


def test_each_character_that_needs_an_escape_gets_it_alone_among_others() -> None:
    for character in [*map(chr, range(0x21)), '"', "\\", "\x7f", "é"]:
        spelled = json.dumps(f"a{character}", ensure_ascii=False)
        assert strings(pa.array(["x", f"a{character}"])).to_pylist() == ['"x"', spelled]


def test_strings_of_a_field_are_quoted_by_the_object_only_if_that_is_enough() -> None:
    rows = pa.array([True, True])
    for values in (["a", "b"], ["a", 'b"'], ["a", None], ["\n", "b"], ["", "é"]):
        texts = field_strings(column(values, pa.string()))
        assert isinstance(texts, UnescapedTexts) == (values in (["a", "b"], ["", "é"]))
        left_out = pa.array([True, False])
        found = objects([("k", texts, None), ("l", texts, left_out), ("m", texts, None)], rows).to_pylist()
        first, last = values
        assert [json.loads(text) for text in found] == [{"k": first, "m": first}, {"k": last, "l": last, "m": last}]
    # What is around a slice does not count.
    assert isinstance(field_strings(pa.array(['"', "a", '"'])[1:2]), UnescapedTexts)


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_integers_keep_every_digit(width: int) -> None:
    values = [-(2 ** (width - 1)), 2 ** (width - 1) - 1, 0, None]
    assert numbers(column(values, pa.from_numpy_dtype(f"int{width}"))).to_pylist() == [
        None if v is None else str(v) for v in values
    ]
    assert numbers(pa.array([2**width - 1], pa.from_numpy_dtype(f"uint{width}"))).to_pylist() == [str(2**width - 1)]


@pytest.mark.parametrize("width", [32, 64])
def test_floats_read_back_and_are_as_short_as_can_be(width: int) -> None:
    kind = np.dtype(f"float{width}").type

    @quick
    @given(st.lists(st.floats(width=width), min_size=1))
    def check(values: list[float]) -> None:
        texts = numbers(column(values, pa.from_numpy_dtype(kind))).to_pylist()
        for text, value in zip(texts, values, strict=True):
            found = json.loads(text, parse_float=kind, parse_int=kind)
            if math.isfinite(value):
                assert found == kind(value) and math.copysign(1, found) == math.copysign(1, value)
                digits = text.lstrip("-").partition("e")[0].replace(".", "").strip("0")
                shortest = np.format_float_scientific(kind(value), trim="-").lstrip("-").partition("e")[0].replace(".", "")
                assert len(digits) <= len(shortest.strip("0"))
            else:
                assert found == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]

    check()


def test_objects_have_their_fields_in_order_and_leave_out_what_is_masked() -> None:
    @quick
    @given(
        st.lists(st.tuples(*[st.tuples(st.none() | st.integers(), st.booleans())] * 3, st.booleans()), max_size=4),
        st.tuples(*[st.booleans()] * 3),
    )
    def check(rows: list[Any], is_optional: tuple[bool, ...]) -> None:
        fields = []
        for rank, optional in enumerate(is_optional):
            texts = column([None if row[rank][0] is None else str(row[rank][0]) for row in rows], pa.string())
            fields.append((f'é"{rank}', texts, pa.array([row[rank][1] for row in rows], pa.bool_()) if optional else None))
        found = objects(fields, pa.array([row[3] for row in rows], pa.bool_())).to_pylist()
        for text, row in zip(found, rows, strict=True):
            there = {f'é"{n}': row[n][0] for n, optional in enumerate(is_optional) if not (optional and row[n][1])}
            assert text == (json.dumps(there, ensure_ascii=False, separators=(",", ":")) if row[3] else None)

    check()
    assert objects([], pa.array([True, False])).to_pylist() == ["{}", None]


ITEMS = st.none() | st.integers(-9, 9)


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_lists_of_lists(make: Any) -> None:
    @quick
    @given(st.lists(st.none() | st.lists(st.none() | st.lists(ITEMS, max_size=3), max_size=3), max_size=4))
    def check(rows: list[Any]) -> None:
        array = column(rows, make(make(pa.int64())))
        inner = flat(array)
        texts = lists(array, lists(inner, numbers(flat(inner)))).to_pylist()
        assert texts == [None if row is None else json.dumps(row, separators=(",", ":")) for row in rows]

    check()


@quick
@given(st.lists(st.none() | st.lists(st.tuples(TEXTS, ITEMS), max_size=3), max_size=4))
def test_maps_keep_all_entries_in_their_order(rows: list[Any]) -> None:
    array = column(rows, pa.map_(pa.string(), pa.int64()))
    keys, values = flat(array).flatten()
    for text, row in zip(maps(array, strings(keys), numbers(values)).to_pylist(), rows, strict=True):
        assert (text is None) == (row is None)
        assert row is None or json.loads(text, object_pairs_hook=list) == row


def test_items_that_a_null_list_still_holds_are_not_in_the_texts() -> None:
    array = pa.ListArray.from_arrays(pa.array([0, 2, 4, 5]), pa.array([1, 2, 3, 4, 5]), mask=pa.array([False, True, False]))
    assert lists(array, numbers(flat(array))).to_pylist() == ["[1,2]", None, "[5]"]
    assert lists(array[1:], numbers(flat(array[1:]))).to_pylist() == [None, "[5]"]


def test_fields_of_a_null_parent_are_null() -> None:
    struct = pa.StructArray.from_arrays([pa.array([True, False])], ["b"], mask=pa.array([True, False]))
    (values,) = struct.flatten()
    assert objects([("b", booleans(values), None)], pc.is_valid(struct)).to_pylist() == [None, '{"b":false}']
