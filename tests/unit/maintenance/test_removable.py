"""Up to which batch rows may go: old enough, counted, and nobody looks further back."""

from __future__ import annotations

import pytest

from spark_jobs.maintenance.removable import UnreplayedEvents, first_waiting, last_removable, sum_batches
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REMOVED_LEDGER, OffsetRange
from spark_jobs.tables.records import LIVE, OUTCOMES, REPLAY, REWIND, CorrectedBatches
from tests.helpers.ledger_rows import ledger_row, ledger_rows
from tests.helpers.timeline import CALLS

LANDING = {"landed": 10, "offset_gaps": 1}
COUNTS = {"accepted": 8, "rejected": 2, "compounds": 4} | dict.fromkeys(OUTCOMES, 1)


def batch(number, kind=LIVE, lost=0, config="{}", **plan):
    """Planned at 1000 times its number; every batch reads ten offsets."""
    steps, landing = (PLANNED, PAIRED, PUBLISHED), {}
    if kind == LIVE:
        steps, landing = (PLANNED, LANDED, PAIRED, PUBLISHED), LANDING | {"lost": lost}
    at = OffsetRange("t", 0, number * 10 + lost, number * 10 + 10, 99, 5, lost)
    return ledger_rows(
        number, steps, kind, offsets=(at,), wall_time=number * 1_000, config=config, **COUNTS, **landing, **plan
    )


def rewound(number, to_batch):
    return batch(number, REWIND, to_batch=to_batch, corrected=CorrectedBatches(to_batch + 1, number))


def correcting(number, first, rewind):
    return batch(number, corrected=CorrectedBatches(first, rewind))


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
    row = last_removable([row for rows in batches for row in rows], until, before)
    assert (row and (row.batch_id, row.step)) == (last and (last, PAIRED))


def test_the_sums_are_those_of_batches_that_count_and_losses_stay_one_by_one():
    rows = [
        row
        for rows in [batch(1, lost=3), batch(2), batch(3, lost=2), rewound(4, 2), batch(5, lost=4), batch(6)]
        for row in rows
    ]
    counts, lost = sum_batches(None, rows, 3)
    assert (counts["batches"], counts["landed"], counts["lost"], counts["compounds"]) == (2, 20, 3, 8)
    assert lost == (OffsetRange("t", 0, 13, 13, 13, None, 3),)
    # In two parts as in one; void batches were read again and do not count.
    before = ledger_row(3, REMOVED_LEDGER, offsets=lost, **counts)
    again = sum_batches(before, [row for row in rows if row.batch_id >= 3], 6)
    assert again == sum_batches(None, rows, 6)
    assert (again[0]["batches"], again[0]["corrections"], again[0]["lost"]) == (3, 1, 7)
    assert [(at.from_offset, at.lost) for at in again[1]] == [(13, 3), (54, 4)]


def test_late_events_are_waited_for_where_the_dag_asks_for_their_replays():
    from dataclasses import replace
    from types import SimpleNamespace

    asking = replace(CALLS, late="replay")
    rows = [row for rows in [batch(1, config=CALLS.to_json()), batch(2, config=asking.to_json())] for row in rows]
    left = [UnreplayedEvents(1, 5, 0, 9), UnreplayedEvents(2, 1, 0, 9)]
    assert first_waiting(SimpleNamespace(pipeline=asking), rows, left) == 2
    assert first_waiting(SimpleNamespace(pipeline=asking), rows, left[:1]) is None
    # Nobody asks any more.
    assert first_waiting(SimpleNamespace(pipeline=CALLS), rows, left) is None


def test_replays_are_no_batches_of_the_topics():
    rows = [*batch(1), *batch(2, REPLAY), *batch(3)]
    counts, _ = sum_batches(None, rows, 3)
    assert (counts["batches"], counts["corrections"], counts["landed"]) == (1, 1, 10)
