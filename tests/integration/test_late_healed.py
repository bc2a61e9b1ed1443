"""Late events from the batch that rejected them to the replay that pairs them: what is counted, and what both pages say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.config.health import read_state
from spark_jobs import publish_compounds, replay_interval, report_quality
from spark_jobs.corrections.looked import note_look
from spark_jobs.corrections.quiet import quiet_counts
from spark_jobs.quality import orphans
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.late_intervals import late_intervals
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.tables.records import Window
from spark_jobs.tables.tables import Tables
from tests.helpers import stream_clock
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.reading import table_rows
from tests.helpers.stream_clock import run

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun


@pytest.fixture
def batch(warehouse, send):
    """Sends, and runs all four jobs."""

    def of(words, warehouse=warehouse):
        send(words)
        run(warehouse)
        finish(warehouse)

    return of


def finish(warehouse):
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)


def known(warehouse, batch_id):
    """Metrics and breakdowns."""
    (row,) = (row for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == batch_id)
    return dict(row["metrics"]), [Breakdown(**each) for each in row["breakdowns"]]


def waiting(warehouse):
    """How many late events wait by the state of the last report."""
    state = read_state(pages_in(pages_folder(warehouse.root, warehouse.pipeline.name)))
    return sum(int(each.text.rpartition(" ")[2]) for each in state.problems if each.name == "late_healable")


def page(warehouse, batch_id):
    return (pages_folder(warehouse.root, warehouse.pipeline.name) / f"batch-{batch_id}.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("looked_back", [True, False])
def test_a_late_event_leads_to_the_replay_that_heals_it(looked_back, warehouse, batch, begun, monkeypatch):
    if not looked_back:
        # As if many batches lay between an orphan and what comes late.
        monkeypatch.setattr(orphans, "_COMPOUNDS_BEFORE", -1)
    batch("a0:x a300:y a600:z a2000:tick m2000:tick")
    # Partners of x and y; z has one too far away, and nobody has sent w.
    batch("m50:x m350:y m701:z a900:w a4000:tick m4000:tick")
    metrics, breakdowns = known(warehouse, 2)
    assert (metrics["late_right"], metrics["late_left"], metrics["late_healable"]) == (3, 1, 2)
    (interval,) = late_intervals(Batch(2, 0, breakdowns=breakdowns))
    # At the times of the compounds that they would be part of.
    assert (interval.late, interval.healable, interval.times) == (4, 2, (begun, begun + 300))
    assert interval.window.start <= begun and begun + 900 < interval.window.end
    assert "2 of 4 late events have an unpaired partner" in page(warehouse, 2)
    # Without grace, late is what is older than the clock (2,000) less the gap.
    assert [(row.bucket, row.number) for row in breakdowns if row.family == "grace_of_all"] == [
        (0, 2),
        (1_000, 1),
        (2_000, 3),
    ]
    # When they happened, besides when they were sent.
    at = f"{(begun + 350) // 1000 % 60:02}.350Z"
    assert f"{at}</td>" in page(warehouse, 2)

    # A replay of a part of it heals that part, up to its last moment.
    closed = begun + 2_000
    assert replay_interval.main(warehouse, Window(interval.window.start - 60_000, begun + 300))["changed"] == 1
    finish(warehouse)
    assert known(warehouse, 3)[0]["late_healed"] == 1 and "dags trigger" in page(warehouse, 2)
    assert "partly healed by" in page(warehouse, 2) and waiting(warehouse) == 1
    batch(f"a{interval.window.end - begun + 1_000}:tick m{interval.window.end - begun + 1_000}:tick")
    assert replay_interval.main(warehouse, interval.window)["changed"] == 1 and closed < interval.window.end
    finish(warehouse)
    metrics, breakdowns = known(warehouse, 5)
    assert (metrics["late_healed"], metrics["healed_left"]) == (1, 1) and waiting(warehouse) == 0
    healed = page(warehouse, 2)
    assert "Healed" in healed and 'href="batch-5.html"' in healed and "dags trigger" not in healed
    assert "1 late events of batch 2 that had an unpaired partner" in page(warehouse, 5)

    # What is paired by now is nobody's partner any more.
    batch(f"m60:x a{interval.window.end - begun + 3_000}:tick m{interval.window.end - begun + 3_000}:tick")
    assert known(warehouse, 6)[0]["late_healable"] == 0


@pytest.mark.parametrize("is_quiet", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_replay_that_corrects_nothing_heals_what_it_has_looked_at(is_quiet, warehouse, batch, begun):
    def replay(start, end):
        window, tables = Window(begun + start, begun + end), Tables(warehouse.root, warehouse.pipeline)
        if not is_quiet:
            return replay_interval.main(warehouse, window)
        counts = quiet_counts(tables, window)
        note_look(tables, window)
        return counts

    warehouse = replace(warehouse, pipeline=replace(warehouse.pipeline, tolerance_ms=300, gap_ms=100))
    # Near enough for a pair, but in two sessions.
    batch("a0:x m250:x a2000:tick m2000:tick", warehouse)
    # So this one has a partner at its time, but it repeats an event: a replay drops it.
    batch("a0:x a4000:tick m4000:tick", warehouse)
    assert known(warehouse, 2)[0]["late_healable"] == 1 and waiting(warehouse) == 1
    for start, end, left in ((1, 200, 1), (-100, 0, 1), (0, 1, 0)):
        found = replay(start, end)
        assert found and "batch_id" not in found and not found["changed"] + found["new"] + found["retracted"]
        assert ("Healed" in page(warehouse, 2)) == (not left)
        batch("", warehouse)
        assert waiting(warehouse) == left, (start, end)
    assert "a replay that had nothing to correct" in page(warehouse, 2)
