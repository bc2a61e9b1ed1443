"""How far back the versions of open_events are needed: to where the oldest batch began that somebody is not done with."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spark_jobs.maintenance.upkeep import needed_since, nothing_pending
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REPORTED, STEPS
from spark_jobs.tables.records import LIVE, REWIND
from tests.helpers.ledger_in_a_list import FakeLedger
from tests.helpers.ledger_rows import ledger_rows

DONE = STEPS


def batch(number, steps=DONE, kind=LIVE, **named):
    """Begun at 1000 times its number, in epoch ms."""
    return ledger_rows(number, steps, kind, started_at=datetime.fromtimestamp(number, UTC), **named)


LAST_DONE = {
    "nothing yet": ([], None),
    "one batch": ([batch(1)], 1_000),
    "all done": ([batch(1), batch(2), batch(3)], 3_000),
    "one planned": ([batch(1), batch(2), batch(3, [PLANNED])], 2_000),
    "one landed": ([batch(1), batch(2), batch(3, [PLANNED, LANDED])], 2_000),
    "the first planned": ([batch(1, [PLANNED])], 1_000),
    "not published": (
        [batch(1), batch(2, [PLANNED, LANDED, PAIRED, REPORTED]), batch(3, [PLANNED, LANDED, PAIRED, REPORTED])],
        1_000,
    ),
    "not reported": ([batch(1), batch(2), batch(3, [PLANNED, LANDED, PAIRED, PUBLISHED])], 2_000),
    # While a rewind is not done, its target is needed, too.
    "a rewind planned": ([batch(1), batch(2), batch(3), batch(4, [PLANNED], REWIND, to_batch=1)], 1_000),
    "a rewind paired": ([batch(1), batch(2), batch(3), batch(4, [PLANNED, PAIRED], REWIND, to_batch=2)], 2_000),
    "a rewind to the beginning": ([batch(1), batch(2), batch(3), batch(4, [PLANNED], REWIND, to_batch=0)], 1_000),
    "a rewind of long ago": ([batch(1), batch(2), batch(3, kind=REWIND, to_batch=1), batch(4)], 4_000),
}


@pytest.mark.parametrize(("batches", "since"), LAST_DONE.values(), ids=LAST_DONE)
def test_since_when(batches, since):
    assert needed_since(FakeLedger(*batches)) == since


@pytest.mark.parametrize(("batches", "since"), LAST_DONE.values(), ids=LAST_DONE)
def test_all_is_done_when_only_the_last_batch_is_needed(batches, since):
    assert nothing_pending(FakeLedger(*batches)) == (
        not batches or (since == batches[-1][0].batch_id * 1_000 and len(batches[-1]) == len(DONE))
    )
