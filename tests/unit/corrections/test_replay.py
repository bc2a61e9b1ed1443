"""The interval of a replay: as it is written, when it is closed, and what the plan carries on."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from include.config.time_text import point_in_time
from spark_jobs.corrections.replay import check_window, plan_replay
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.ledger_rows import PAIRED, REMOVED_RAW, OffsetRange
from spark_jobs.tables.records import REPLAY, CorrectedBatches, ReplayPlan, StepCounts, TopicIds, Window
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import SMALL

WAREHOUSE = SimpleNamespace(pipeline=SMALL)


def paired(clock, **named):
    """The last batch; T = 100, G = 200, R = 500."""
    offsets = (OffsetRange("t", 0, 5, 8, 20, 1_000, lost=2),)
    return ledger_row(7, PAIRED, offsets=offsets, clock=clock, versions={"open_events": 4}, open_after=3, **named)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31T13:00:00+00:00", 1769864400000),
        ("2026-01-31T13:00:00Z", 1769864400000),
        ("2026-01-31 14:00:00.001+01:00", 1769864400001),
        ("2026-01-31T13:00", 1769864400000),
        ("1769864400001", 1769864400001),
    ],
)
def test_times_as_people_and_airflow_write_them(text, ms):
    assert point_in_time(text) == ms


@pytest.mark.parametrize("text", ["", "None", "yesterday", "-1", "12", "2026-13-01", "\uff11769864400000", "1769864400.5"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match=r"."):
        point_in_time(text)


@pytest.mark.parametrize(("clock", "closed"), [(1_700, True), (1_699, False)])
def test_an_interval_is_closed_when_its_last_millisecond_is(clock, closed):
    # An event at 999 is over if 999 + 200 + 500 < clock.
    window = Window(0, 1_000)
    if closed:
        check_window(window, paired(clock), SMALL)
    else:
        with pytest.raises(
            NeedsOperator, match=r"not closed yet: after batch 7 everything before .*\(999\) is; .* at least .*\(1700\)"
        ):
            check_window(window, paired(clock), SMALL)


@pytest.mark.parametrize("window", [Window(5, 5), Window(6, 5)])
def test_an_empty_interval_is_refused(window):
    with pytest.raises(NeedsOperator, match="is empty"):
        check_window(window, paired(10_000), SMALL)


def test_before_the_first_clock_nothing_is_closed():
    with pytest.raises(NeedsOperator, match="batch 7 has no clock, so no time is closed"):
        check_window(Window(0, 1), paired(None), SMALL)


def test_a_plan_goes_on_where_the_last_batch_ended():
    # Sessions were longer once, and a rewind's corrections are under way.
    ledger = SimpleNamespace(
        settings=lambda: [replace(SMALL, max_session_ms=9_000), replace(SMALL, tolerance_ms=8_000)], removals=dict
    )
    plan = plan_replay(
        WAREHOUSE,
        ledger,
        paired(9_999, corrected=CorrectedBatches(2, 5), topic_ids=TopicIds("a", "b"), pair=1),
        Window(10, 20),
    )
    assert (plan.batch_id, plan.kind, plan.clock, plan.versions) == (8, REPLAY, 9_999, {"open_events": 4})
    assert plan.offsets == (OffsetRange("t", 0, 8, 8, 20, 1_000, lost=0),)
    assert plan.counts == StepCounts()
    assert plan.plan == ReplayPlan(
        open_before=3, topic_ids=TopicIds("a", "b"), corrected=CorrectedBatches(2, 5), window=Window(10, 20), reach_ms=9_000
    )
    assert re.fullmatch(r"1970-.*\(10\) to 1970-.*\(20\)", str(plan.replay.window))


def test_an_interval_whose_raw_rows_were_removed_is_refused():
    ledger = SimpleNamespace(
        settings=list, removals=lambda: {REMOVED_RAW: ledger_row(7, REMOVED_RAW, removed=7, removed_until=9)}
    )
    assert plan_replay(WAREHOUSE, ledger, paired(9_999), Window(10, 20)).replay.removed_until == 9
    with pytest.raises(
        NeedsOperator, match=r"cannot be replayed: raw rows with events up to .*\(9\) .* begin at .*\(10\) or later"
    ):
        plan_replay(WAREHOUSE, ledger, paired(9_999), Window(9, 20))
    # Rows without an event leave every interval as it is.
    ledger.removals = lambda: {REMOVED_RAW: ledger_row(7, REMOVED_RAW, removed=7)}
    assert plan_replay(WAREHOUSE, ledger, paired(9_999), Window(9, 20)).replay.removed_until is None
