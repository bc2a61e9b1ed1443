"""Late events by intervals: where they lie, which replay is to be started, and which one has healed them."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest

from include.config.problem_marks import LookMark
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.facts import ELSEWHERE, FactCount, Facts
from spark_jobs.quality.late_intervals import (
    EXACT,
    HEALABLE,
    HEALED,
    LATE,
    LATE_FACT,
    LOOKED,
    PARTNER,
    TIMES,
    LateHistory,
    Look,
    healed_batches,
    healed_breakdowns,
    late_breakdowns,
    late_intervals,
    looks_of,
    waiting_after,
)
from spark_jobs.quality.late_section import healed_lines, late_section, replays, rewrite_section
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED
from spark_jobs.tables.records import Window
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.pages import pages_in
from tests.helpers.timeline import CALLS

MINUTE, HOUR = 60_000, 3_600_000
NOON = 1_767_268_800_000  # 2026-01-01T12:00Z
# A session reaches a minute further at most.
PIPELINE = replace(CALLS, max_session_ms=MINUTE, tolerance_ms=MINUTE, gap_ms=MINUTE, grace_ms=MINUTE)


def fact(batch_id, at, number, label=""):
    return LATE_FACT, batch_id, label, at, FactCount(number, 0, 0, 0, 0, 0, "", 0, 0)


def rows(start, end, late, healable=0, times=None):
    found = [Breakdown(LATE, late, start, "until", str(end))]
    found += [Breakdown(HEALABLE, healable, start, "until", str(end))] * bool(healable)
    return found + [Breakdown(TIMES, healable, start, "ms after", times)] * (times is not None)


def batch(batch_id, breakdowns=()):
    healable = sum(row.number for row in breakdowns if row.family == HEALABLE)
    return Batch(batch_id, 0, metrics={"live": 1.0, "late_healable": float(healable)}, breakdowns=breakdowns)


def looked(replay, start, end, *healed):
    """The breakdowns of a replay: its interval, and (number, batch, begin of an interval) of what it has healed."""
    found = [Breakdown(HEALED, number, batch_id, "from", str(begin)) for number, batch_id, begin in healed]
    return [Breakdown(LOOKED, 1, start, "until", str(end)), *found]


@pytest.mark.parametrize("late", [EXACT, EXACT + 1])
def test_the_breakdowns_of_a_batch(late):
    own = Batch(7, 0, {PLANNED: ledger_row(7, PLANNED, pipeline=PIPELINE), PAIRED: ledger_row(7, PAIRED, late=late)})
    counted = [
        fact(7, NOON - 1, 2),
        fact(7, NOON, 1),
        fact(7, NOON + 7, 3, PARTNER),
        fact(7, NOON + 5 * MINUTE, 1, PARTNER),
        fact(7, ELSEWHERE, 6, PARTNER),
        fact(8, NOON, 9),
    ]
    assert late_breakdowns(own, Facts(counted)) == [
        Breakdown(LATE, 6),
        *rows(NOON - MINUTE, NOON, 2),
        *rows(NOON, NOON + 6 * MINUTE, 5, 4, "7 7 7 300000" if late == EXACT else None),
    ]


AT = "5 5 60005"


@pytest.mark.parametrize(
    ("window", "times", "healed"),
    [
        (Window(NOON, NOON + 6 * MINUTE), AT, 3),
        # The start is inclusive, the end exclusive, and no other time of the minute counts.
        (Window(NOON + 5, NOON + 6), AT, 2),
        (Window(NOON + 6, NOON + 60_005), AT, 0),
        (Window(NOON + 6, NOON + 60_006), AT, 1),
        (Window(NOON - HOUR, NOON + 5), AT, 0),
        # Of a batch without exact times only the whole interval.
        (Window(NOON, NOON + 6 * MINUTE), None, 3),
        (Window(NOON + 1, NOON + HOUR), None, 0),
        (Window(NOON, NOON + 6 * MINUTE - 1), None, 0),
    ],
)
def test_a_replay_heals_what_it_has_looked_at(window, times, healed):
    late = batch(7, [*rows(NOON, NOON + 6 * MINUTE, 8, 3, times), *rows(NOON + HOUR, NOON + HOUR + MINUTE, 5)])
    found = healed_breakdowns(9, window, LateHistory([late]))
    assert found == looked(9, *window, *[(healed, 7, NOON)] * bool(healed))
    looks = looks_of([batch(9, found)])
    assert waiting_after([late], looks) == {7: 3 - healed}
    # Once, whichever replays come later; and nothing of what comes later.
    assert healed_breakdowns(12, window, LateHistory([late], looks)) == looked(12, *window)
    assert waiting_after([replace(late, batch_id=10)], looks) == {10: 3}


def test_what_lies_in_no_interval_waits():
    far = replace(batch(7, rows(NOON, NOON + MINUTE, 1, 1, "0")), metrics={"late_healable": 3.0})
    assert waiting_after([far], [Look(8, Window(0, 2 * NOON))]) == {7: 2}


def test_of_many_replays_those_count_that_touch_an_interval():
    """Long and short ones, before, after, around and at both ends of the intervals of two batches: as if each had been asked for all."""
    first = batch(7, rows(NOON, NOON + MINUTE, 3, 3, "0 7 59999") + rows(NOON + HOUR, NOON + HOUR + MINUTE, 1, 1, "0"))
    second = batch(8, rows(NOON + MINUTE, NOON + 2 * MINUTE, 2, 2))
    spans = [
        (-HOUR, 0),
        (-1, 1),
        (-HOUR, 1),
        (7, 8),
        (MINUTE - 1, MINUTE),
        (MINUTE, 2 * MINUTE),
        (0, 3 * HOUR),
        (HOUR, HOUR + 1),
    ]
    for start, end in spans:
        others = [Look(9 + number, Window(NOON + (9 + number) * HOUR, NOON + (10 + number) * HOUR)) for number in range(50)]
        # One of the others is as long as all of them together.
        looks = [*others, Look(70, Window(NOON + 9 * HOUR, NOON + 60 * HOUR)), Look(71, Window(NOON + start, NOON + end))]
        healed = [sum(each.healed for each in late_intervals(each, looks)) for each in (first, second)]
        found = waiting_after([replace(each, metrics={"late_healable": 4.0}) for each in (first, second)], looks)
        assert found == {7: 4 - healed[0], 8: 4 - healed[1]}, (start, end)


def test_parts_add_up_to_the_whole():
    late = batch(7, rows(NOON, NOON + 2 * MINUTE, 4, 3, AT))
    # The first one corrected nothing, so it made no batch.
    looks = looks_of([], [LookMark(start=NOON, end=NOON + 6, batch=8)])
    (interval,) = late_intervals(late, looks)
    assert (interval.healed, interval.waiting, interval.times) == (2, 1, (NOON + 60_005,))
    found = healed_breakdowns(10, Window(NOON, NOON + HOUR), LateHistory([late], looks))
    assert found == looked(10, NOON, NOON + HOUR, (1, 7, NOON))
    (interval,) = late_intervals(late, [*looks, *looks_of([batch(10, found)])])
    assert (interval.waiting, [look.replay for look in interval.by]) == (0, [None, 10])


def test_whose_pages_say_so():
    first = batch(7, rows(NOON, NOON + MINUTE, 3, 2, "0 0") + rows(NOON + HOUR, NOON + HOUR + MINUTE, 1, 1, "0"))
    second = batch(8)
    before = batch(9, healed_breakdowns(9, Window(NOON, NOON + HOUR), LateHistory([first])))
    now = batch(10, healed_breakdowns(10, Window(NOON + HOUR, NOON + 2 * HOUR), LateHistory([first], looks_of([before]))))
    # The page of batch 7, and no other page is written.
    assert healed_batches([now], [first, second, before]) == [first]
    assert healed_batches([batch(11)], [first, before]) == []
    assert healed_lines([*before.breakdowns, *now.breakdowns]) == [
        "3 late events of batch 7 that had an unpaired partner lay in its interval"
    ]


def test_the_replays_to_start():
    near = NOON + 3 * MINUTE
    found = [
        *rows(NOON, NOON + MINUTE, 3, 2),
        *rows(near, near + MINUTE, 5, 1),
        *rows(near + 4 * MINUTE, near + 5 * MINUTE, 4),
        *rows(NOON + HOUR, NOON + HOUR + MINUTE, 1, 1),
    ]
    intervals = late_intervals(batch(7, found))
    # Those a minute around which touch are one; nobody has to replay what finds no partner.
    assert [(each.window, each.late, each.healable) for each in replays(PIPELINE, intervals)] == [
        (Window(NOON - MINUTE, near + 2 * MINUTE), 8, 3),
        (Window(NOON + HOUR - MINUTE, NOON + HOUR + 2 * MINUTE), 1, 1),
    ]


def section(clock=NOON + HOUR, looks=(), pipeline=PIPELINE, healable=2):
    late = replace(
        batch(7, rows(NOON, NOON + MINUTE, 3, healable, "3 9" if healable else None)),
        metrics={"late_left": 3.0, "late_healable": float(healable)},
    )
    return late_section(pipeline, late, clock, looks)


def test_what_the_section_says():
    said = section()
    assert "2 of 3 late events have an unpaired partner" in said and "can be started" in said
    assert '<a href="../../dags/calls_replay">' in said
    command = '{"window_start": "2026-01-01T11:59Z", "window_end": "2026-01-01T12:02Z"}'
    assert f"airflow dags trigger calls_replay --conf '{command}'" in html.unescape(said)
    assert late_section(PIPELINE, batch(7), None) == ""
    assert "None of 3 late events" in section(healable=0) and "dags trigger" not in section(healable=0)
    assert "by itself" in section(pipeline=replace(PIPELINE, late="replay"))


def test_what_a_part_that_was_looked_at_leaves():
    said = " ".join(section(looks=[Look(8, Window(NOON, NOON + 4), 9)]).split())
    assert (
        "2 of 3 late events had an unpaired partner. <a" in said and "1 still wait" in said and "partly healed by <a" in said
    )
    assert "can be started" in said and "dags trigger" in said
    said = section(looks=[Look(8, Window(NOON, NOON + 4), 9), Look(9, Window(NOON + 9, NOON + 10))])
    assert "Healed" in said and "a replay that had nothing to correct" in said and "dags trigger" not in said
    # What came only after it still waits.
    assert section(looks=[Look(6, Window(NOON, NOON + MINUTE))]) == section()


@pytest.mark.parametrize(("clock", "closed"), [(NOON + 4 * MINUTE, True), (NOON + 4 * MINUTE - 1, False), (None, False)])
def test_when_a_replay_can_be_started(clock, closed):
    # Its interval ends two minutes after noon; gap and grace are a minute each.
    assert ("can be started" in section(clock)) is closed and ("when its time is closed" in section(clock)) is not closed


def test_a_page_that_is_there_says_what_has_healed_it(tmp_path):
    pages = pages_in(tmp_path)
    page = tmp_path / "batch-7.html"
    page.write_text(f"<h1>before</h1>\n{section()}\n<h2>after</h2>")
    for _ in range(2):
        rewrite_section(pages, page.name, section(looks=[Look(8, Window(NOON, NOON + MINUTE), 9)]))
        text = page.read_text()
        assert text.startswith("<h1>before</h1>") and text.endswith("<h2>after</h2>") and text.count("<section") == 1
        assert "Healed" in text and 'href="batch-9.html"' in text and "dags trigger" not in text
    # A page of an earlier version stays as it is, and one that was deleted stays away.
    page.write_text("old")
    for name in (page.name, "batch-8.html"):
        rewrite_section(pages, name, section())
    assert page.read_text() == "old" and not (tmp_path / "batch-8.html").exists()
