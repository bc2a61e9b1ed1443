"""`key_order: any`: both orders of two key fields are one key, by the bytes of UTF-8, and each event keeps its direction."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.rules.event_order import find_duplicates, order_events
from spark_jobs.rules.key_order import order_key, order_keys
from spark_jobs.rules.rules import Rules, event_schema
from spark_jobs.tables.schemas import schemas
from tests.helpers.timeline import SMALL

ANY_ORDER = replace(SMALL, key_order="any")
# Of the last two, UTF-16 would have the second one first.
TEXTS = st.text(st.sampled_from("ab-\x00é\uffff\U0001f3a7"), min_size=1, max_size=3)


@pytest.mark.parametrize("make", [pa.table, pa.record_batch])
@settings(deadline=None)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20))
def test_the_smaller_text_comes_first_by_its_bytes(pairs, make):
    rows = make({"ts": [*range(len(pairs))], "user1": [one for one, _ in pairs], "user2": [other for _, other in pairs]})
    ordered = order_keys(rows, ANY_ORDER)
    assert type(ordered) is type(rows) and ordered.schema.names == ["ts", "user1", "user2", "reversed"]
    expected = [
        (min(pair, key=str.encode), max(pair, key=str.encode), pair[0].encode() > pair[1].encode()) for pair in pairs
    ]
    assert [(row["user1"], row["user2"], row["reversed"]) for row in ordered.to_pylist()] == expected
    assert [order_key(pair, ANY_ORDER) for pair in pairs] == [(one, other) for one, other, _ in expected]
    assert order_keys(rows, SMALL) is rows and [order_key(pair, SMALL) for pair in pairs] == pairs


def test_a_row_without_a_key_keeps_what_it_has():
    fields = {"user1": [None, "b", None], "user2": ["a", None, None]}
    rows = pa.table({name: pa.array(texts, pa.string()) for name, texts in fields.items()})
    assert order_keys(rows, ANY_ORDER).to_pydict() == fields | {"reversed": [False] * 3}


@pytest.mark.parametrize("payload", [None, "1", "x" * 1_001])
def test_the_same_event_in_the_other_direction_is_no_duplicate(payload):
    names = [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]
    said = {"side": 0, "partition": 0, "ts": 5, "payload": payload, "batch_id": 1, "is_open": False}
    rows = [said | {"user1": one, "user2": other, "offset": offset} for offset, (one, other) in enumerate(names)]
    events = order_keys(pa.Table.from_pylist(rows, event_schema(SMALL)), ANY_ORDER)
    ordered = order_events(events, Rules(ANY_ORDER, None, None))
    assert find_duplicates(ordered, events["payload"], events["reversed"]).tolist() == [False, False, True, True]
    assert find_duplicates(ordered, events["payload"]).tolist() == [False, True, True, True]


def test_only_tables_of_such_a_pipeline_have_directions():
    for (table, columns), with_directions in zip(schemas(SMALL).items(), schemas(ANY_ORDER).values(), strict=True):
        names = {"open_events": [" reversed"], "compound_events": [" left_reversed", " right_reversed"]}.get(table, [])
        for name in names:
            assert with_directions.count(f"{name} BOOLEAN,") == 1
            with_directions = with_directions.replace(f"{name} BOOLEAN,", "")
        assert with_directions == columns and "reversed" not in columns
