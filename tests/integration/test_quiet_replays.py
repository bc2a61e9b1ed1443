"""Replays of which the tables show, without Spark, that they change nothing: when that is said, and that a full replay says the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs import heal_schemas, publish_compounds, replay_interval, report_quality
from spark_jobs.corrections import quiet
from spark_jobs.corrections.quiet import nothing_waits, quiet_counts
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.ledger import PAIRED, PLANNED, Ledger
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Tables
from tests.helpers import stream_clock
from tests.helpers.stream_clock import killed_at, run

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
NOTHING = {"new": 0, "changed": 0, "retracted": 0, "unchanged": 0}


def tables_of(warehouse):
    """Without a Spark session, as the job has them."""
    return Tables(warehouse.root, warehouse.pipeline)


def test_an_interval_without_events_is_quiet_and_a_replay_says_the_same(warehouse, send, begun):
    tables = tables_of(warehouse)

    def at(start, end):
        return Window(begun + start, begun + end)

    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    # One millisecond decides, at both ends: the start is inclusive, the end exclusive.
    quiet_ones = [at(0, 100), at(151, 1_000)]
    assert [quiet_counts(tables, each) for each in (*quiet_ones, at(0, 101), at(150, 1_000), at(100, 101))] == [
        NOTHING,
        NOTHING,
        None,
        None,
        None,
    ]
    assert [replay_interval.main(warehouse, each) for each in quiet_ones] == [NOTHING, NOTHING]
    # An event that was late lies in no compound, and a replay would make one of it.
    send("m500:y a5000:tick m5000:tick")
    assert run(warehouse)["late"] == 1
    assert quiet_counts(tables, at(499, 501)) is None and quiet_counts(tables, at(501, 600)) == NOTHING
    assert replay_interval.main(warehouse, at(499, 501))["new"] == 1
    # Refused as a replay is.
    for window, line in ((at(0, 10_000), "not closed yet"), (at(5, 5), "is empty")):
        with pytest.raises(NeedsOperator, match=line):
            quiet_counts(tables, window)


def test_a_compound_without_its_events_is_no_quiet_interval(warehouse, send, begun, monkeypatch):
    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    # As if its raw rows had been removed: the replay has to refuse to take it back.
    monkeypatch.setattr(quiet, "has_no_problem", lambda column: column("problem") == "none has this")
    assert quiet_counts(tables_of(warehouse), Window(begun + 100, begun + 101)) is None
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 100)) == NOTHING


def test_a_batch_that_is_not_paired_is_finished_by_a_replay_first(warehouse, send, begun, monkeypatch):
    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    send("m60:x a5000:tick m5000:tick")
    with killed_at(monkeypatch, "before_paired"):
        run(warehouse)
    steps = Ledger(warehouse).last_batch()
    assert PLANNED in steps and PAIRED not in steps
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 50)) is None


def test_when_nothing_is_left_to_publish_or_report(warehouse, send):
    tables, seen = tables_of(warehouse), []
    send("a100:x m150:x a3000:tick m3000:tick")
    for step in (run, publish_compounds.main, report_quality.main):
        step(warehouse)
        seen.append(nothing_waits(tables))
    assert seen == [False, False, True]
    assert replay_interval.with_rest(tables, NOTHING) == NOTHING | {"nothing_waits": 1}
    assert replay_interval.with_rest(tables, {"batch_id": 7}) == {"batch_id": 7}


@pytest.mark.parametrize("failed", [0, 1])
def test_a_report_that_failed_is_repeated(failed, warehouse, send):
    send("a100:x m150:x a3000:tick m3000:tick")
    for step in (run, publish_compounds.main):
        step(warehouse)
    ledger = Ledger(warehouse)
    report_quality.main(warehouse)
    (reported,) = (row for row in ledger.rows(1, 1) if row.step == "reported")
    rows = [row for row in ledger.rows(1, 1) if row.step != "reported"]
    rows.append(replace(reported, counts=replace(reported.reported, failed_checks=failed)))

    class Known(Ledger):
        def rows(self, first, last=None):
            return rows

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quiet, "Ledger", Known)
        assert nothing_waits(tables_of(warehouse)) is not bool(failed)


def test_events_of_unknown_schemas_may_lie_anywhere(warehouse, send, begun, monkeypatch):
    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    monkeypatch.setattr(quiet, "batches_with_unknown", lambda tables: {1: heal_schemas})
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 50)) is None
