"""Up to which batch rows may go: old enough, counted, and nobody looks further back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spark_jobs.maintenance.age import last_to_go
from spark_jobs.maintenance.summary import summed
from spark_jobs.maintenance.unreplayed import Left, first_to_wait_for
from spark_jobs.tables.ledger import LANDED, LIVE, PAIRED, PLANNED, PUBLISHED, REPLAY, REWIND, LedgerRow, OffsetRange
from tests.helpers.timeline import CALLS

AT = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = {"landed": 10, "accepted": 8, "offset_gaps": 1, "lost": 0, "rejected": 2, "compounds": 4}
COUNTS |= dict.fromkeys(("pair", "left_only", "right_only", "duplicate", "late", "collapsed"), 1)


def batch(number, kind=LIVE, lost=0, config="{}", **counts):
    """Planned at 1000 times its number; every batch reads ten offsets."""
    steps = (PLANNED, LANDED, PAIRED, PUBLISHED) if kind == LIVE else (PLANNED, PAIRED, PUBLISHED)
    at = OffsetRange("t", 0, number * 10 + lost, number * 10 + 10, 99, 5, lost)
    return [
        LedgerRow(number, kind, step, (at,), number * 1_000, None, config, "", AT, COUNTS | {"lost": lost} | counts)
        for step in steps
    ]


def rewound(number, to_batch):
    return batch(number, REWIND, to_batch=to_batch, corrected_from=to_batch + 1, corrected_to=number)


def correcting(number, first, rewind):
    return batch(number, corrected_from=first, corrected_to=rewind)


PLAIN = [batch(1), batch(2), batch(3), batch(4)]
# 2 and 3 are void; compounds of theirs may come back until 5 is done.
REWOUND = [batch(1), batch(2), batch(3), rewound(4, 1), correcting(5, 2, 4), batch(6), batch(7)]


@pytest.mark.parametrize(
    ("batches", "until", "before", "last"),
    [
        (PLAIN, 4, 3_000, 2),
        # Exactly as old does not go, a moment older does.
        (PLAIN, 4, 3_001, 3),
        (PLAIN, 2, 9_999, 2),
        (PLAIN, 4, 1_000, None),
        (PLAIN, 0, 9_999, None),
        ([], 0, 9_999, None),
        (REWOUND, 7, 9_999, 7),
        (REWOUND, 6, 9_999, 6),
        # Nothing ends among batches that look back, nor at one that is void.
        (REWOUND, 5, 9_999, 1),
        (REWOUND, 4, 9_999, 1),
        (REWOUND, 3, 9_999, 1),
        (REWOUND[:5], 5, 9_999, 1),
        ([*REWOUND[:3], rewound(4, 0), correcting(5, 1, 4)], 5, 9_999, None),
    ],
)
def test_the_last_batch_whose_rows_may_go(batches, until, before, last):
    row = last_to_go([row for rows in batches for row in rows], until, before)
    assert (row and (row.batch_id, row.step)) == (last and (last, PAIRED))


def test_the_sums_are_those_of_batches_that_count_and_losses_stay_one_by_one():
    rows = [
        row
        for rows in [batch(1, lost=3), batch(2), batch(3, lost=2), rewound(4, 2), batch(5, lost=4), batch(6)]
        for row in rows
    ]
    counts, lost = summed(None, rows, 3)
    assert (counts["batches"], counts["landed"], counts["lost"], counts["compounds"]) == (2, 20, 3, 8)
    assert lost == (OffsetRange("t", 0, 13, 13, 13, None, 3),)
    # In two parts as in one; void batches were read again and do not count.
    before = batch(3)[0].next_step("removed_ledger", AT, counts=counts, offsets=lost)
    again = summed(before, [row for row in rows if row.batch_id >= 3], 6)
    assert again == summed(None, rows, 6)
    assert (again[0]["batches"], again[0]["corrections"], again[0]["lost"]) == (3, 1, 7)
    assert [(at.from_offset, at.lost) for at in again[1]] == [(13, 3), (54, 4)]


def test_late_events_are_waited_for_where_the_dag_asks_for_their_replays():
    from dataclasses import replace
    from types import SimpleNamespace

    asking = replace(CALLS, late="replay")
    rows = [row for rows in [batch(1, config=CALLS.to_json()), batch(2, config=asking.to_json())] for row in rows]
    left = [Left(1, 5, 0, 9), Left(2, 1, 0, 9)]
    assert first_to_wait_for(SimpleNamespace(pipeline=asking), rows, left) == 2
    assert first_to_wait_for(SimpleNamespace(pipeline=asking), rows, left[:1]) is None
    # Nobody asks any more.
    assert first_to_wait_for(SimpleNamespace(pipeline=CALLS), rows, left) is None


def test_replays_are_no_batches_of_the_topics():
    rows = [*batch(1), *batch(2, REPLAY), *batch(3)]
    counts, _ = summed(None, rows, 3)
    assert (counts["batches"], counts["corrections"], counts["landed"]) == (1, 1, 10)
