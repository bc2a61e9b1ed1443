"""Totals over batches, and how one batch goes on from another: what is carried, and what breaks the laws."""

from __future__ import annotations

import pytest

from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.checks import continuity, totals
from spark_jobs.quality.landed_records import with_gaps
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, OffsetRange
from tests.helpers.ledger_rows import ledger_rows


def batch(before, accepted, out, after):
    """The same on both sides."""
    numbers = {"open_before": before, "accepted": accepted, "out": out, "open_after": after}
    return {f"{name}_{side}": float(number) for name, number in numbers.items() for side in ("left", "right")}


def broken(metrics):
    return [metrics[f"cumulative_difference_{side}"] for side in ("left", "right")]


def test_totals_begin_with_what_was_open():
    first = totals(batch(3, 10, 9, 4), {}, 7)
    assert (first["total_since"], first["total_in_left"], first["total_out_right"], broken(first)) == (7, 13, 9, [0, 0])
    second = totals(batch(4, 5, 9, 0), first, 8)
    assert (second["total_since"], second["total_in_left"], second["total_out_right"], broken(second)) == (7, 18, 18, [0, 0])


def test_open_events_that_went_between_two_batches_break_it_once():
    first = totals(batch(0, 10, 6, 4), {}, 1)
    # Two of the four are gone, so the batch's own law holds.
    second = totals(batch(2, 5, 7, 0), first, 2)
    assert broken(second) == [2, 2]
    third = totals(batch(0, 5, 5, 0), second, 3)
    assert (third["total_since"], broken(third)) == (3, [0, 0])


def test_a_row_of_an_earlier_version_begins_nothing():
    assert totals(batch(2, 1, 3, 0), {"pairing_difference": 0.0}, 9)["total_since"] == 9


def of_ranges(*offsets, **counts):
    rows = ledger_rows(1, (PLANNED, LANDED, PAIRED), offsets=offsets, clock=0, **counts)
    return Batch.of({row.step: row for row in rows})


BEFORE = of_ranges(OffsetRange("t", 0, 700, 710, 710, began=700))


@pytest.mark.parametrize(
    ("offsets", "apart"),
    [
        ([OffsetRange("t", 0, 710, 720, 720, began=700)], 0),
        ([OffsetRange("t", 0, 715, 720, 720, began=700)], 5),
        ([OffsetRange("t", 0, 715, 720, 720, lost=5, began=700)], 0),
        # One that came later begins at 0.
        ([OffsetRange("t", 1, 700, 700, 700)], 700),
        ([OffsetRange("t", 1, 700, 700, 700, lost=700)], 0),
    ],
)
def test_a_batch_goes_on_where_the_one_before_it_ended(offsets, apart):
    assert continuity(of_ranges(*offsets), BEFORE) == {"continuity_difference": apart}


@pytest.mark.parametrize(("earliest", "end", "there"), [(0, 9, True), (5, 9, True), (6, 9, False), (0, 8, False)])
def test_gaps_are_looked_for_only_where_the_whole_range_is_there(earliest, end, there):
    topics = TopicsNow(0, {("t", 0): earliest}, {("t", 0): end}, {})
    assert bool(with_gaps([of_ranges(OffsetRange("t", 0, 5, 9, 9), offset_gaps=1)], topics)) is there
