"""The ledger against itself and against the number of raw rows: what is planned once and landed is right, all else has a finding."""

from __future__ import annotations

import pytest

from spark_jobs.quality.checks import Finding
from spark_jobs.quality.ledger_checks import RawRows, find_removed, planned_ranges, read_ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, PUBLISHING, OffsetRange
from spark_jobs.tables.records import LIVE, REPLAY, REWIND
from tests.helpers.ledger_in_a_list import FakeLedger
from tests.helpers.ledger_rows import ledger_row


def at(first, until, **more):
    return OffsetRange("t", 0, first, until, until, **more)


def row(batch_id, step, kind=LIVE, offsets=(), **counts):
    return ledger_row(batch_id, step, kind, offsets=tuple(offsets), **counts)


def live(batch_id, *offsets, without=(), gaps=0, **changed):
    landed = sum(each.planned for each in offsets) - gaps
    counts = {LANDED: {"landed": landed, "offset_gaps": gaps}, PAIRED: {"collapsed": 0}, PUBLISHED: {"partitions": 2}}
    steps = (PLANNED, LANDED, PAIRED, PUBLISHED)
    return [
        row(batch_id, step, LIVE, changed.get(step, offsets), **counts.get(step, {}))
        for step in steps
        if step not in without
    ]


def correction(batch_id, kind, **counts):
    return [row(batch_id, step, kind, **counts) for step in (PLANNED, PAIRED, PUBLISHED)]


def found(*batches, raw=None, first=1):
    """Findings of a ledger whose raw rows are as landed, if no others are given."""
    ledger = FakeLedger(*batches)
    horizon = ledger.last_ids()[PUBLISHED]
    summary = read_ledger(ledger, first, horizon, horizon, ledger.rewinds())
    as_landed = [RawRows(n, "t", 0, each.landed, 0, 99) for n, each in summary.batches.items() if each.landed]
    if raw is None:
        raw = [rows._replace(first=b.ranges[0].from_offset, last=b.ranges[0].until_offset - 1)
               for rows in as_landed for b in (summary.batches[rows.batch_id],)]  # fmt: skip
    return list(summary.checked(raw, find_removed(ledger, (0, 0))))


ONE, TWO = live(1, at(0, 10)), live(2, at(10, 20), gaps=2)


def test_what_goes_on_is_right_also_over_a_replay_and_a_repeated_publication():
    assert found(ONE, TWO, correction(3, REPLAY), live(4, at(20, 21)), [row(4, PUBLISHING), row(4, PUBLISHING)]) == []


@pytest.mark.parametrize(
    ("second", "finding"),
    [
        (live(2, at(11, 20)), (Finding.OFFSETS_SKIPPED, "t-0:10-11 before batch 2")),
        (live(2, at(9, 20)), (Finding.OFFSETS_TWICE, "t-0:10-9 before batch 2")),
        (live(2, at(15, 20, lost=5)), None),
        (live(2, at(10, 20), without=[LANDED], gaps=10), (Finding.STEP_MISSING, "batch 2 landed")),
        ([*live(2, at(10, 20)), row(2, PAIRED)], (Finding.STEP_TWICE, "batch 2 paired")),
    ],
)
def test_a_ledger_that_does_not_go_on(second, finding):
    raw = [
        RawRows(1, "t", 0, 10, 0, 9),
        RawRows(2, "t", 0, second[0].offsets[0].planned, second[0].offsets[0].from_offset, 19),
    ]
    assert found(ONE, second, raw=raw) == ([finding] if finding else [])


@pytest.mark.parametrize(
    ("rows", "findings"),
    [
        (RawRows(1, "t", 0, 10, 0, 9), []),
        (RawRows(1, "t", 0, 10, 0, 10), [(Finding.ROWS_NOT_PLANNED, "batch 1 t-0:0-11")]),
        (
            RawRows(1, "t", 0, 9, 0, 9),
            [(Finding.ROWS_NOT_COUNTED, "batch 1: 10 offsets planned, 0 of them gaps, 9 raw rows")],
        ),
        (RawRows(1, "u", 0, 10, 0, 9), [(Finding.ROWS_NOT_PLANNED, "batch 1 u-0:0-10")]),
    ],
)
def test_raw_rows_are_those_that_were_planned(rows, findings):
    assert found(ONE, raw=[rows]) == findings


def test_a_batch_that_was_given_up_answers_for_nothing():
    rewind = correction(3, REWIND, to_batch=1)
    again = live(4, at(10, 30))
    assert found(ONE, live(2, at(12, 20), without=[PAIRED, PUBLISHED]), rewind, again) == []


def test_a_ledger_whose_first_batches_were_removed_begins_anywhere():
    removal = row(2, "removed_ledger", removed_ever=1, landed=0)
    assert found([*TWO, removal], live(3, at(20, 21)), first=2) == []


def test_what_the_broker_lost_before_it_was_landed_was_not_planned_in_the_end():
    plan, landed = row(1, PLANNED, offsets=[at(0, 10)]), row(1, LANDED, offsets=[at(4, 10, lost=4)])
    assert planned_ranges(plan, landed) == (at(4, 10, lost=4),)
    assert planned_ranges(plan, row(1, LANDED, offsets=[at(0, 7, cut_from=7, cut=3)])) == (
        at(0, 7, cut=3)._replace(end_offset=10),
    )
    assert planned_ranges(plan, None) == (at(0, 10),)
