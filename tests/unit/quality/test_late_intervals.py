"""Late events by intervals: where they lie, which replay is to be started, and which one has healed them."""

from __future__ import annotations

import html
from dataclasses import replace

import pytest

from spark_jobs.quality.batch import Batch
from spark_jobs.quality.facts import ELSEWHERE, FactCount, Facts
from spark_jobs.quality.late_intervals import (
    HEALABLE,
    HEALED,
    LATE,
    LATE_FACT,
    PARTNER,
    healed_breakdowns,
    healed_pages,
    late_breakdowns,
    late_intervals,
)
from spark_jobs.quality.late_section import healed_lines, late_section, replays, rewrite_section
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.tables.ledger import PLANNED
from spark_jobs.tables.records import Window
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.pages import pages_in
from tests.helpers.timeline import CALLS

MINUTE, HOUR = 60_000, 3_600_000
NOON = 1_767_268_800_000  # 2026-01-01T12:00Z
# A session reaches a minute further at most.
PIPELINE = replace(CALLS, max_session_ms=MINUTE, tolerance_ms=MINUTE, gap_ms=MINUTE, grace_ms=MINUTE)


def fact(batch_id, minute, number, label=""):
    return LATE_FACT, batch_id, label, minute, FactCount(number, 0, 0, 0, 0, 0, "", 0, 0)


def rows(start, end, late, healable=0):
    found = [Breakdown(LATE, late, start, "until", str(end))]
    return found + [Breakdown(HEALABLE, healable, start, "until", str(end))] * bool(healable)


def batch(batch_id, breakdowns):
    return Batch(batch_id, 0, metrics={"live": 1.0}, breakdowns=breakdowns)


def test_the_breakdowns_of_a_batch():
    own = Batch(7, 0, {PLANNED: ledger_row(7, PLANNED, pipeline=PIPELINE)})
    counted = [
        fact(7, NOON - MINUTE, 2),
        fact(7, NOON, 1),
        fact(7, NOON, 3, PARTNER),
        fact(7, NOON + 5 * MINUTE, 4, PARTNER),
        fact(7, ELSEWHERE, 6, PARTNER),
        fact(8, NOON, 9),
    ]
    assert late_breakdowns(own, Facts(counted)) == [
        Breakdown(LATE, 6),
        *rows(NOON - MINUTE, NOON, 2),
        *rows(NOON, NOON + 6 * MINUTE, 8, 7),
    ]


@pytest.mark.parametrize(
    ("window", "covered"),
    [
        (Window(NOON, NOON + 6 * MINUTE), True),
        (Window(NOON - HOUR, NOON + HOUR), True),
        (Window(NOON + 1, NOON + HOUR), False),
        (Window(NOON, NOON + 6 * MINUTE - 1), False),
    ],
)
def test_a_replay_heals_what_it_covers_wholly(window, covered):
    late = batch(7, [*rows(NOON, NOON + 6 * MINUTE, 8, 7), *rows(NOON + HOUR, NOON + HOUR + MINUTE, 5)])
    found = healed_breakdowns(window, [late])
    assert found == [Breakdown(HEALED, 7, 7, "from", str(NOON))] * covered
    # Once, whichever replays come later.
    assert healed_breakdowns(window, [late, batch(9, found)]) == []


def test_whose_pages_say_so():
    first, second = batch(7, rows(NOON, NOON + MINUTE, 3, 2) + rows(NOON + HOUR, NOON + HOUR + MINUTE, 1, 1)), batch(8, [])
    before = batch(9, healed_breakdowns(Window(NOON, NOON + HOUR), [first]))
    now = batch(10, healed_breakdowns(Window(NOON + HOUR, NOON + 2 * HOUR), [first, before]))
    # The page of batch 7 names both replays, and no other page is written.
    assert healed_pages([now], [first, second, before]) == [(first, {NOON: 9, NOON + HOUR: 10})]
    assert healed_pages([batch(11, [])], [first, before]) == []
    assert healed_lines([*before.breakdowns, *now.breakdowns]) == [
        "3 late events of batch 7 that had an unpaired partner lay in its interval"
    ]


def test_the_replays_to_start():
    near = NOON + 3 * MINUTE
    intervals = late_intervals(
        [
            *rows(NOON, NOON + MINUTE, 3, 2),
            *rows(near, near + MINUTE, 5, 1),
            *rows(near + 4 * MINUTE, near + 5 * MINUTE, 4),
            *rows(NOON + HOUR, NOON + HOUR + MINUTE, 1, 1),
        ]
    )
    # Those a minute around which touch are one; nobody has to replay what finds no partner.
    assert [(each.window, each.late, each.healable) for each in replays(PIPELINE, intervals)] == [
        (Window(NOON - MINUTE, near + 2 * MINUTE), 8, 3),
        (Window(NOON + HOUR - MINUTE, NOON + HOUR + 2 * MINUTE), 1, 1),
    ]


def section(clock=NOON + HOUR, healed=None, pipeline=PIPELINE, healable=2):
    metrics = {"late_left": 3.0, "late_healable": float(healable)}
    return late_section(pipeline, metrics, rows(NOON, NOON + MINUTE, 3, healable), clock, healed or {})


def test_what_the_section_says():
    said = section()
    assert "2 of 3 late events have an unpaired partner" in said and "can be started" in said
    assert '<a href="../../dags/calls_replay">' in said
    command = '{"window_start": "2026-01-01T11:59Z", "window_end": "2026-01-01T12:02Z"}'
    assert f"airflow dags trigger calls_replay --conf '{command}'" in html.unescape(said)
    assert late_section(PIPELINE, {}, [], None, {}) == ""
    assert "None of 3 late events" in section(healable=0) and "dags trigger" not in section(healable=0)
    assert "by itself" in section(pipeline=replace(PIPELINE, late="replay"))


@pytest.mark.parametrize(("clock", "closed"), [(NOON + 4 * MINUTE, True), (NOON + 4 * MINUTE - 1, False), (None, False)])
def test_when_a_replay_can_be_started(clock, closed):
    # Its interval ends two minutes after noon; gap and grace are a minute each.
    assert ("can be started" in section(clock)) is closed and ("when its time is closed" in section(clock)) is not closed


def test_a_page_that_is_there_says_what_has_healed_it(tmp_path):
    pages = pages_in(tmp_path)
    page = tmp_path / "batch-7.html"
    page.write_text(f"<h1>before</h1>\n{section()}\n<h2>after</h2>")
    for _ in range(2):
        rewrite_section(pages, page.name, section(healed={NOON: 9}))
        text = page.read_text()
        assert text.startswith("<h1>before</h1>") and text.endswith("<h2>after</h2>") and text.count("<section") == 1
        assert "Healed" in text and 'href="batch-9.html"' in text and "dags trigger" not in text
    # A page of an earlier version stays as it is, and one that was deleted stays away.
    page.write_text("old")
    for name in (page.name, "batch-8.html"):
        rewrite_section(pages, name, section())
    assert page.read_text() == "old" and not (tmp_path / "batch-8.html").exists()
