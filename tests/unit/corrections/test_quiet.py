"""Whether a chain that reaches an interval may begin before what was read of it."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_jobs.corrections.quiet import _comes_from_before
from spark_jobs.tables.records import Window
from tests.helpers.timeline import SMALL

AROUND = Window(1_000, 9_000)


def events(*times, user="x"):
    return pa.table({"user1": [user] * len(times), "user2": ["v"] * len(times), "ts": pa.array(times, pa.int64())})


def comes(rows, removed=None):
    # G = 200; the interval begins at 1500.
    planned = SimpleNamespace(pipeline=SMALL, replay=SimpleNamespace(window=Window(1_500, 2_000), removed_until=removed))
    return _comes_from_before(rows, planned, AROUND)


@pytest.mark.parametrize(
    ("times", "before"),
    [
        # An event at 999, the last one that was not read, is the gap away from one at 1199.
        ((1_199, 1_399, 1_599), True),
        ((1_200, 1_400, 1_600), False),
        # A silence longer than the gap before the interval, and one of exactly the gap.
        ((1_000, 1_201, 1_400, 1_500), False),
        ((1_000, 1_200, 1_400, 1_500), True),
        # A chain that ends before the interval does not matter; at its first millisecond it does.
        ((1_100, 1_300, 1_499), False),
        ((1_100, 1_300, 1_500), True),
        ((), False),
    ],
)
def test_a_chain_may_begin_before_what_was_read(times, before):
    assert comes(events(*times)) is before


def test_keys_are_told_apart_and_the_order_of_rows_says_nothing():
    near, far = events(1_100, user="x"), events(1_600, 1_300, user="y")
    assert comes(pa.concat_tables([near, far])) is False
    assert comes(events(1_500, 1_300, 1_100)) is True


@pytest.mark.parametrize(("removed", "before"), [(1_199, True), (1_198, False), (None, False)])
def test_what_was_removed_is_as_what_was_not_read(removed, before):
    # Removed up to 1199, inclusive: the gap away from 1399.
    assert comes(events(1_399, 1_599), removed) is before
