"""Which replays late events ask for: of which batches, which intervals, and when it is time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.corrections.late import ReplayRequest, by_interval, is_done, is_due, late_batches
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED
from spark_jobs.tables.records import LIVE, REPLAY, REWIND, Window
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS

ASKING = replace(CALLS, late="replay")


def row(batch_id, kind, step, pipeline=ASKING, **named):
    return ledger_row(batch_id, step, kind, pipeline, **named)


def batch(batch_id, late=0, pipeline=ASKING):
    return [row(batch_id, LIVE, PLANNED, pipeline), row(batch_id, LIVE, PAIRED, pipeline, late=late)]


def replay(batch_id, start, end, *steps):
    return [row(batch_id, REPLAY, step, window=Window(start, end)) for step in steps or (PLANNED, PAIRED)]


def rewind(batch_id, to_batch):
    return [row(batch_id, REWIND, step, to_batch=to_batch) for step in (PLANNED, PAIRED)]


@pytest.mark.parametrize(
    ("rows", "asking"),
    [
        ([*batch(1, late=2), *batch(2), *batch(3, late=1)], [1, 3]),
        # With the settings of its plan, whatever the file says by now.
        ([*batch(1, late=2, pipeline=CALLS), *batch(2, late=1)], [2]),
        ([row(1, LIVE, PLANNED)], []),
        ([*batch(1, late=2), *batch(2, late=2), *batch(3, late=2), *rewind(4, 1), *batch(5, late=2)], [1, 5]),
        # Its counts are those of other batches' events.
        ([*batch(1), *replay(2, 0, 9)], []),
    ],
    ids=["late ones", "planned to dead_letter", "not paired", "rewound", "a replay"],
)
def test_batches_that_ask(rows, asking):
    assert [each.batch_id for each in late_batches(rows)] == asking


HOUR, MINUTE = 3_600_000, 60_000


@pytest.mark.parametrize(
    ("cron", "begins"),
    [
        ("0 * * * *", [0, HOUR, 2 * HOUR]),
        ("*/30 * * * *", [0, HOUR // 2, HOUR, 2 * HOUR]),
        # The days of 1970: the minute before midnight belongs to the interval that began before the epoch.
        ("30 0 * * *", [-23 * HOUR - 30 * MINUTE, 30 * MINUTE]),
    ],
)
def test_one_window_for_each_interval_of_the_schedule(cron, begins):
    minutes = [0, 29, 30, 59, 60, 119 + 1]
    spans = [(minute, Window(minute * MINUTE + 7, minute * MINUTE + 9)) for minute in reversed(minutes)]
    found = by_interval(spans, cron)
    assert sorted(found) == begins
    assert {(window.start % MINUTE, window.end % MINUTE) for window in found.values()} == {(7, 9)}
    assert min(window.start for window in found.values()) == 7
    assert max(window.end for window in found.values()) == 120 * MINUTE + 9


@pytest.mark.parametrize(
    ("clock", "first_open", "due"),
    [
        (1_700, None, True),
        (1_699, None, False),
        (None, None, False),
        (1_700, 1_000, True),
        (1_700, 999, False),
    ],
    ids=["closed", "one short of it", "no clock", "open right behind it", "open inside"],
)
def test_when_it_is_time(clock, first_open, due):
    assert is_due(Window(0, 1_000), row(9, LIVE, PAIRED, clock=clock), first_open, 700) == due


@pytest.mark.parametrize(
    ("rows", "done"),
    [
        (replay(6, 100, 200), True),
        (replay(6, 101, 200), False),
        (replay(6, 100, 199), False),
        (replay(6, 0, 999), True),
        (replay(5, 0, 999), False),
        (replay(6, 0, 999, PLANNED), False),
        ([*replay(6, 0, 999), *rewind(7, 5)], False),
        ([*replay(6, 0, 999), *rewind(8, 6)], True),
    ],
    ids=["covered", "begins behind", "ends before", "larger", "before the batch", "not done", "taken back", "kept"],
)
def test_what_a_replay_has_covered_is_done(rows, done):
    assert is_done(ReplayRequest(5, 0, Window(100, 200)), rows) == done
