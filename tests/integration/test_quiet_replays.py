"""Replays of which the tables show, without Spark, that they change nothing: when that is said, and that a full replay says the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from include.config.project import REMOTE_VARIABLE
from include.local.machine import ROOT
from spark_jobs import heal_schemas, publish_compounds, replay_interval, report_quality
from spark_jobs.corrections import quiet
from spark_jobs.corrections.quiet import nothing_waits
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.stages import pairing_input
from spark_jobs.tables import schemas
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED
from spark_jobs.tables.records import Window
from spark_jobs.tables.tables import Tables
from tests.conftest import yaml_of
from tests.helpers import stream_clock
from tests.helpers.stream_clock import killed_at, run

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
NOTHING = {"new": 0, "changed": 0, "retracted": 0, "unchanged": 0}


def quiet_counts(tables, window):
    """As in the job, which has no Spark session then: it would read the declared columns."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark.sql.types.StructType.fromDDL", lambda text: pytest.fail(f"Spark was asked: {text}"))
        schemas._columns.cache_clear()
        return quiet.quiet_counts(tables, window)


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
    intervals, one = [at(0, 100), at(101, 1_000), at(0, 101), at(100, 1_000)], NOTHING | {"unchanged": 1}
    assert [quiet_counts(tables, each) for each in intervals] == [NOTHING, NOTHING, one, one]
    assert [replay_interval.main(warehouse, each) for each in intervals[1:3]] == [NOTHING, one]
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
    for module in (quiet, pairing_input):
        monkeypatch.setattr(module, "has_no_problem", lambda column: column("problem") == "none has this")
    assert quiet_counts(tables_of(warehouse), Window(begun + 100, begun + 101)) is None
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 100)) == NOTHING


@pytest.mark.long
def test_a_batch_that_is_not_paired_is_finished_by_a_replay_first(warehouse, send, begun, monkeypatch):
    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    send("m60:x a5000:tick m5000:tick")
    with killed_at(monkeypatch, "before_paired"):
        run(warehouse)
    steps = Ledger(warehouse).last_batch()
    assert PLANNED in steps and PAIRED not in steps
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 50)) is None


@pytest.mark.long
def test_when_nothing_is_left_to_publish_or_report(warehouse, send):
    tables, seen = tables_of(warehouse), []
    send("a100:x m150:x a3000:tick m3000:tick")
    for step in (run, publish_compounds.main, report_quality.main):
        step(warehouse)
        seen.append(nothing_waits(tables))
    assert seen == [False, False, True]
    assert replay_interval.with_rest(tables, NOTHING) == NOTHING | {"nothing_waits": 1}
    assert replay_interval.with_rest(tables, {"batch_id": 7}) == {"batch_id": 7}


@pytest.mark.long
def test_the_job_needs_no_spark_for_a_quiet_interval(warehouse, send, begun, tmp_path):
    send("a100:x m150:x a3000:tick m3000:tick")
    for step in (run, publish_compounds.main, report_quality.main):
        step(warehouse)

    def job(end):
        command = [sys.executable, "-m", "spark_jobs.replay_interval", "--pipeline", yaml_of(warehouse.pipeline, tmp_path)]
        window = ["--window-start", begun, "--window-end", begun + end, "--warehouse", warehouse.root]
        environment = os.environ | {REMOTE_VARIABLE: "sc://127.0.0.1:1"}
        done = subprocess.run(
            [*map(str, [*command, *window])],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    said = "replay_interval: new 0, changed 0, retracted 0, unchanged 0, nothing_waits 1\n"
    assert job(100) == (0, said)
    assert job(101) == (0, said.replace("unchanged 0", "unchanged 1"))
    # A late event, of which only a replay can make a compound.
    send("m99:y a5000:tick m5000:tick")
    run(warehouse)
    status, line = job(100)
    assert status == 1 and "no Spark server answers at sc://127.0.0.1:1" in line


@pytest.mark.long
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


@pytest.mark.long
def test_events_of_unknown_schemas_may_lie_anywhere(warehouse, send, begun, monkeypatch):
    send("a100:x m150:x a3000:tick m3000:tick")
    run(warehouse)
    monkeypatch.setattr(quiet, "batches_with_unknown", lambda tables: {1: heal_schemas})
    assert quiet_counts(tables_of(warehouse), Window(begun, begun + 50)) is None


def random_words(source):
    """Events of three users within two seconds, so dense that sessions touch and duplicates happen, with a tick that closes all."""
    ends = f"a{source.randrange(8_000, 9_000)}:tick m9000:tick"
    return (
        " ".join(f"{source.choice('am')}{source.randrange(0, 2_000, 10)}:{source.choice('xyz')}" for _ in range(25))
        + f" {ends}"
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_what_is_called_unchanged_a_replay_leaves_unchanged(seed, warehouse, send, begun):
    source, tables = random.Random(seed), tables_of(warehouse)
    send(random_words(source))
    run(warehouse)
    # Late ones, which only a replay can say of.
    send(f"m{source.randrange(100, 1_900)}:x a{source.randrange(100, 1_900)}:y a10000:tick m10000:tick")
    run(warehouse)
    certain = 0
    for _ in range(3):
        start = source.randrange(-500, 2_000, 50)
        window = Window(begun + start, begun + start + source.randrange(50, 1_000, 50))
        said = quiet_counts(tables, window)
        counts = replay_interval.main(warehouse, window)
        assert said is None or said == {name: counts[name] for name in NOTHING}
        # What was replayed a moment ago is certain.
        again = quiet_counts(tables, window)
        assert again == replay_interval.main(warehouse, window)
        certain += again is not None
    assert certain == 3
