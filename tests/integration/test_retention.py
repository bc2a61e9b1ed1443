"""Rows go by age, from every table: they are really gone, in the archive before, and everything else still knows what it says."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from include.config.pipeline import Maintenance
from include.config.store import pages_store
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs import maintain_tables, publish_compounds, reconcile, replay_interval, report_quality, rewind
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.maintenance import upkeep
from spark_jobs.quality.trend import FILE, Trend
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.story.from_tables import explain
from spark_jobs.story.history import UnknownKey
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED, REMOVALS, REMOVED_COMPOUNDS, REMOVED_LEDGER, REMOVED_RAW, REMOVED_REJECTED
from spark_jobs.tables.one_writer import writer_lock
from spark_jobs.tables.records import Window
from tests.helpers import stream_clock
from tests.helpers.all_stages import land, run_all
from tests.helpers.job_processes import JOBS, Faults, Jobs
from tests.helpers.pages import pages_folder
from tests.helpers.reading import table_rows
from tests.helpers.stream_clock import consumed, killed_at, run
from tests.helpers.timeless_traffic import Portions, timeless
from tests.integration.test_storage_faults import SmallDisk

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
DAY_MS = 86_400_000
OUTCOMES = ("raw_analytics", "raw_metrics", "rejected_events", "compound_events")
TABLES = (*OUTCOMES, "batch_ledger", "quality_metrics")
POINTS = [point for point in FAULT_POINTS["maintain_tables"] if "removed" in point or "archived" in point]


def kept_for(warehouse, archive=None, **settings):
    """The warehouse whose pipeline gives up all that is older than a day; a report compares with one batch."""
    kept = dict.fromkeys(("raw", "rejected", "compound", "ledger"), DAY_MS)
    care = Maintenance(
        None,
        time_travel_ms=DAY_MS,
        archive=archive and str(archive),
        **{f"{name}_retention_ms": age for name, age in kept.items()},
    )
    quality = replace(warehouse.pipeline.quality, history_batches=1)
    return replace(warehouse, pipeline=replace(warehouse.pipeline, maintenance=care, quality=quality, **settings))


@pytest.fixture
def a_day_after(monkeypatch):
    """Maintenance runs when the batches up to this one are a day old."""

    def move(warehouse, batch_id):
        plan = next(row for row in Ledger(warehouse).rows(batch_id, batch_id) if row.step == PLANNED)
        monkeypatch.setattr(upkeep, "_now", lambda: plan.wall_time + DAY_MS + 1)

    return move


def some_batches(warehouse, send, first, last):
    """Each closes a pair, an orphan and a bad record; its ticks close with the next."""
    for number in range(first, last + 1):
        at = number * 2_000
        send(f"a{at}:x{number} m{at + 50}:x{number} a{at + 100}:alone{number} m:bad a{at + 2000}:tick m{at + 2000}:tick")
        run_all(warehouse)


def batches(warehouse, table):
    return sorted({row["batch_id"] for row in table_rows(warehouse, table)})


def written(warehouse):
    return {table: Counter(map(str, table_rows(warehouse, table))) for table in TABLES}


def archived_and_kept(archive, warehouse, table):
    """By DuckDB, as an analyst would: the files, and the table."""
    kept = DeltaTable(warehouse.path(table)).to_pyarrow_table()
    files = f"{archive}/{warehouse.pipeline.name}/{table}/**/*.parquet"
    with duckdb.connect() as con:
        con.register("kept", kept)
        rows = con.sql(f"SELECT * FROM '{files}' UNION ALL BY NAME SELECT * FROM kept").to_arrow_table()
    rows = pa.table(rows).select(kept.schema.names).cast(kept.schema)
    return Counter(map(str, rows.to_pylist()))


def test_what_went_is_known_to_laws_reconcile_and_trend(warehouse, send, a_day_after):
    """The core of the long one."""
    some_batches(warehouse, send, 1, 3)
    warehouse = kept_for(warehouse)
    a_day_after(warehouse, 2)
    counts = maintain_tables.main(warehouse)
    assert {step: counts[step] for step in REMOVALS} == {
        "removed_raw": 12, "removed_rejected": 2, "removed_compounds": 5, "removed_ledger": 6
    }  # fmt: skip
    assert {table: batches(warehouse, table) for table in TABLES} == {
        **{table: [3] for table in OUTCOMES},
        **{table: [2, 3] for table in ("batch_ledger", "quality_metrics")},
    }
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert answer.unchecked == (
        "batches 1 to 2 were removed for their age, with 12 raw rows (those up to batch 2), 2 rejected events and 5 compounds: not checked"
    )
    # A batch whose laws did not hold would fail its report. The totals go on with what was removed in them.
    some_batches(warehouse, send, 4, 4)
    (metrics,) = (dict(row["metrics"]) for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == 4)
    assert metrics["total_since"] == 1
    assert metrics["cumulative_difference_left"] == metrics["cumulative_difference_right"] == 0
    assert reconcile.main(warehouse).offenders == []
    (pages_folder(warehouse.root, warehouse.pipeline.name) / FILE).unlink()
    report_quality.main(warehouse, again=True)
    trend = Trend.load(pages_store(warehouse.pipeline.name, warehouse.root), warehouse.pipeline.name)
    assert (trend.columns["batch"], trend.removed) == ([2, 3, 4], 1)


@pytest.mark.long
def test_old_rows_are_gone_and_everybody_knows(warehouse, broker, send, begun, a_day_after, monkeypatch, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    some_batches(warehouse, send, 1, 4)
    warehouse = kept_for(warehouse, archive)
    ledger, before = Ledger(warehouse), written(warehouse)
    a_day_after(warehouse, 3)
    counts = maintain_tables.main(warehouse)
    assert counts == {"removed_raw": 18, "removed_rejected": 3, "removed_compounds": 8, "removed_ledger": 12} | {
        "files_put_together": counts["files_put_together"]
    }
    assert {table: batches(warehouse, table) for table in TABLES} == {
        **{table: [4] for table in OUTCOMES},
        **{table: [3, 4] for table in ("batch_ledger", "quality_metrics")},
    }
    # What the analyst finds is what was ever written, and the rows that say what went.
    for table in TABLES:
        more = archived_and_kept(archive, warehouse, table) - before[table]
        assert before[table] - archived_and_kept(archive, warehouse, table) == Counter(), table
        assert more.total() == (len(REMOVALS) if table == "batch_ledger" else 0), table
    # The files go with the next run.
    monkeypatch.setattr(upkeep, "_KEPT_MS", 0)
    # Not those of open_events: versions that are younger than the last batch would look older than it.
    for log in (file for table in TABLES for file in Path(warehouse.path(table)).glob("_delta_log/*")):
        os.utime(log, (log.stat().st_mtime - 9 * DAY_MS / 1000,) * 2)
    again = maintain_tables.main(warehouse)
    assert {again[step] for step in REMOVALS} == {0}
    for table in TABLES:
        folder = Path(warehouse.path(table))
        assert len(list(folder.glob("*.parquet"))) == len(DeltaTable(folder).file_uris()), table

    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert answer.unchecked == (
        "batches 1 to 3 were removed for their age, with 18 raw rows (those up to batch 3), 3 rejected events and 8 compounds: not checked"
    )
    assert answer.counts["batches removed from the ledger for their age"] == 2
    assert answer.counts["… messages where theirs were"] == answer.counts["compounds removed for their age"] == 8
    summary = ledger.removals()[REMOVED_LEDGER].counts
    assert (summary.batches, summary.landed, summary.compounds) == (2, 12, 5)

    # The next batches go on where the last one stopped.
    assert publish_compounds.main(warehouse) == {}
    some_batches(warehouse, send, 5, 5)
    assert batches(warehouse, "batch_ledger") == [3, 4, 5]
    (metrics,) = (dict(row["metrics"]) for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == 5)
    assert metrics["total_since"] == 1 and metrics["cumulative_difference_left"] == 0
    assert reconcile.main(warehouse).offenders == []
    pages = pages_folder(warehouse.root, warehouse.pipeline.name)
    (pages / FILE).unlink()
    report_quality.main(warehouse, again=True)
    trend = Trend.load(pages_store(warehouse.pipeline.name, warehouse.root), warehouse.pipeline.name)
    assert (trend.columns["batch"], trend.removed) == ([3, 4, 5], 2)

    with pytest.raises(NeedsOperator, match=r"raw rows with events up to .* were removed for their age"):
        replay_interval.main(warehouse, Window(begun + 4_000, begun + 4_200))
    with pytest.raises(NeedsOperator, match="name batch 3 or a later one"):
        rewind.main(warehouse, 2)
    with pytest.raises(
        UnknownKey,
        match=r"removed for their age, so not in this story: messages up to batch 3, rejected events up to batch 3",
    ):
        list(explain(warehouse, ("x1", "v")))
    told = list(explain(warehouse, ("x4", "v")))
    assert any(line.startswith("removed for their age, so not in this story") for line in told)
    assert not [line for line in told if "otherwise" in line or "not on" in line]
    assert replay_interval.main(warehouse, Window(begun + 10_000, begun + 10_200))["unchanged"] == 3
    assert rewind.main(warehouse, 4)["batch_id"] == 6
    run_all(warehouse)
    assert reconcile.main(warehouse).offenders == []
    # Every compound once, by the revisions that came; what was removed is still what consumers have.
    kept = {row["pair_id"] for row in table_rows(warehouse, "compound_events")}
    assert len(consumed(warehouse, broker)) == 8 + len(kept)
    some_batches(warehouse, send, 8, 8)
    assert ledger.last_ids()[PLANNED] == 8


@pytest.mark.long
def test_a_rewind_that_would_need_a_removed_revision_is_refused(warehouse, send, begun, a_day_after):
    send("a1800:x a4000:tick m4000:tick")
    run_all(warehouse)
    send("a6000:tick m6000:tick")
    run_all(warehouse)
    # Late: x was published alone, by batch 1; the replay (batch 4) says otherwise.
    send("m1850:x a8000:tick m8000:tick")
    run_all(warehouse)
    assert replay_interval.main(warehouse, Window(begun + 1_700, begun + 1_900))["changed"] == 1
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    send("a10000:tick m10000:tick")
    run_all(warehouse)
    warehouse = kept_for(warehouse)
    a_day_after(warehouse, 2)
    maintain_tables.main(warehouse)
    assert Ledger(warehouse).removals()[REMOVED_COMPOUNDS].batch_id == 2
    with pytest.raises(
        NeedsOperator, match="1 compounds that batches after 3 corrected were said otherwise by batches up to 2"
    ):
        rewind.main(warehouse, 3)
    assert reconcile.main(warehouse).offenders == []
    assert rewind.main(warehouse, 4)["batch_id"] == 6


@pytest.mark.long
def test_killed_at_every_step_and_nothing_differs(warehouse, send, a_day_after, monkeypatch, tmp_path):
    some_batches(warehouse, send, 1, 3)
    a_day_after(warehouse, 2)
    untouched = shutil.copytree(warehouse.root, tmp_path / "untouched")

    def state(root, archive, kill=None):
        mine = kept_for(replace(warehouse, root=str(root)), archive)
        archive.mkdir()
        if kill:
            with killed_at(monkeypatch, kill):
                upkeep.remove_old_rows(mine, Ledger(mine), upkeep._now())
        upkeep.remove_old_rows(mine, Ledger(mine), upkeep._now())
        rows = {
            table: Counter(
                str({name: value for name, value in row.items() if not name.endswith("ed_at") and name != "versions"})
                for row in table_rows(mine, table)
            )
            for table in TABLES
        }
        files = {
            str(file.relative_to(archive)): duckdb.sql(f"SELECT count(*), sum(batch_id) FROM '{file}'").fetchall()
            for file in archive.rglob("*")
            if file.is_file()
        }
        return mine, rows, files

    _, calm, calm_files = state(shutil.copytree(untouched, tmp_path / "calm"), tmp_path / "calm-archive")
    assert {tuple(sorted(file.rsplit("/", 2)[1:])) for file in calm_files} and all(
        file.endswith(".parquet") for file in calm_files
    )
    assert len(calm_files) == len(TABLES)
    for point in POINTS:
        root = shutil.copytree(untouched, tmp_path / point)
        mine, rows, files = state(root, tmp_path / f"{point}-archive", point)
        assert rows == calm, point
        assert files == calm_files, point
        if point in ("after_removed_raw", "after_archived", "before_removed_batch_ledger"):
            assert reconcile.main(mine).offenders == [], point
        shutil.rmtree(root)


@pytest.mark.long
def test_between_two_halves_a_live_batch_comes_and_two_run_at_once(warehouse, send, a_day_after, monkeypatch, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    some_batches(warehouse, send, 1, 3)
    live, warehouse = warehouse, kept_for(warehouse, archive)
    before = written(warehouse)
    a_day_after(warehouse, 2)
    for point in ("after_removed_raw", "before_removed_compound_events", "after_removed_ledger"):
        with killed_at(monkeypatch, point):
            maintain_tables.main(warehouse)
        # A reader sees all of it or nothing, also of what is announced and still there.
        assert reconcile.main(warehouse).offenders == [], point
    run(live)
    # A batch that is planned and not paired: nothing new goes, what was announced does.
    send("a9000:tick m9000:tick")
    land(live)
    problems = []

    def maintain():
        try:
            # As jobs do it; what two do without the lock is shown where a table's commits are.
            with writer_lock(warehouse.root, warehouse.pipeline.name, "maintain_tables", 120):
                maintain_tables.main(warehouse)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=maintain) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert {table: min(batches(warehouse, table)) for table in TABLES} == {
        **dict.fromkeys(OUTCOMES, 3),
        **dict.fromkeys(("batch_ledger", "quality_metrics"), 2),
    }
    for table in TABLES:
        assert before[table] - archived_and_kept(archive, warehouse, table) == Counter(), table
    run_all(live)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_late_events_do_not_vanish(warehouse, send, begun, a_day_after, tmp_path, capsys):
    send("a1800:x a4000:tick m4000:tick")
    run_all(warehouse)
    asking = replace(warehouse, pipeline=replace(warehouse.pipeline, late="replay"))
    send("a6000:tick m6000:tick m1850:x")
    run_all(asking)
    some_batches(asking, send, 4, 4)
    untouched = shutil.copytree(warehouse.root, tmp_path / "untouched")
    asking = kept_for(asking)
    a_day_after(asking, 3)
    maintain_tables.main(asking)
    assert Ledger(asking).removals()[REMOVED_RAW].batch_id == 1
    assert "rows of batch 2 and later ones stay: late events of it wait for their replay" in capsys.readouterr().out

    # By hand it is nobody's business but the operator's, who is told.
    other = kept_for(replace(warehouse, root=str(untouched)))
    counts = maintain_tables.main(other)
    assert counts["late_given_up"] == 1
    assert Ledger(other).removals()[REMOVED_RAW].removed.late_given_up == 1


def test_evidence_is_not_removed(warehouse, send, a_day_after):
    some_batches(warehouse, send, 1, 3)
    warehouse = kept_for(warehouse)
    a_day_after(warehouse, 2)
    DeltaTable(warehouse.path("compound_events")).delete("batch_id = 1")
    with pytest.raises(
        BrokenInvariant,
        match=r"rows of the batches 1 to 2 are not removed from compound_events: there are 3 of them, the ledger counts 5",
    ):
        maintain_tables.main(warehouse)
    assert set(Ledger(warehouse).removals()) == {REMOVED_RAW, REMOVED_REJECTED}


@pytest.mark.long
def test_an_outcome_that_is_lost_beside_the_removed_ones_is_found(warehouse, send, a_day_after):
    some_batches(warehouse, send, 1, 4)
    warehouse = kept_for(warehouse)
    a_day_after(warehouse, 3)
    maintain_tables.main(warehouse)
    # The ticks of batch 3 were open when it ended; batch 4 decided on them.
    DeltaTable(warehouse.path("compound_events")).delete("batch_id = 4 AND user1 = 'tick'")
    found = {str(offender.finding): offender.number for offender in reconcile.main(warehouse).offenders}
    assert found["raw rows removed for their age whose record has no outcome"] == 2


@pytest.mark.long
def test_an_archive_that_cannot_be_written_keeps_everything(warehouse, send, a_day_after, tmp_path):
    some_batches(warehouse, send, 1, 3)
    a_day_after(warehouse, 2)
    before = written(warehouse)
    with pytest.raises(NeedsOperator, match="is no folder: mount it or make it"):
        maintain_tables.main(kept_for(warehouse, tmp_path / "nowhere"))
    with pytest.raises(NeedsOperator, match="lies among the tables of pipeline"):
        maintain_tables.main(kept_for(warehouse, Path(warehouse.path("raw_metrics"))))
    assert written(warehouse) == before
    disk = SmallDisk(tmp_path / "small")
    disk.mounted_or_skipped()
    try:
        disk.fill()
        with pytest.raises(
            JobProblem, match=r"the archive .* cannot be written \(No space left on device\): free space there"
        ):
            maintain_tables.main(kept_for(warehouse, disk.folder))
        assert {table: rows for table, rows in written(warehouse).items() if table in OUTCOMES} == {
            table: rows for table, rows in before.items() if table in OUTCOMES
        }
        disk.mend()
        assert maintain_tables.main(kept_for(warehouse, disk.folder))["removed_compounds"] == 5
        for table in TABLES:
            assert before[table] - archived_and_kept(disk.folder, warehouse, table) == Counter(), table
    finally:
        disk.unmount()


@pytest.mark.long
def test_kill_9_at_every_step_and_nothing_differs(broker, tmp_path, monkeypatch):
    (tmp_path / "faults").mkdir()
    faults, day = Faults(tmp_path / "faults"), DAY_MS
    monkeypatch.setenv("PAIRING_FAULT_DIR", str(faults.folder))
    pipeline, file = timeless("aged", "aged", tmp_path / "jobs")
    kept = ", ".join(f"{name}_retention: 1d" for name in ("raw", "rejected", "compound", "ledger"))
    settings = f"quality: {{history_batches: 8}}\nmaintenance: {{time_travel: 1d, {kept}, archive: {tmp_path}/archive}}\n"
    file.write_text(file.read_text() + settings)
    with LocalSpark(tmp_path / "spark-server", free_port()) as server:
        jobs = Jobs(file, pipeline, broker.bootstrap, server.url, tmp_path / "warehouse", faults)
        portions = Portions(broker, pipeline)
        for _ in range(11):
            portions.send()
            # Each pairs what the one before has landed.
            jobs.run("land_events")
        for job in ("pair_events", "publish_compounds", "report_quality"):
            jobs.run(job)
        ledger = DeltaTable(jobs.warehouse / pipeline.name / "batch_ledger")
        ledger.update({"wall_time": f"wall_time - {2 * day}"}, predicate="batch_id <= 9")
        shutil.copytree(jobs.warehouse, tmp_path / "calm")

        def state(root):
            folder = root / pipeline.name
            tables = {table: DeltaTable(folder / table).to_pyarrow_table().to_pylist() for table in TABLES}
            archived = {
                str(file.relative_to(tmp_path / "archive")): duckdb.sql(
                    f"SELECT count(*), sum(batch_id) FROM '{file}'"
                ).fetchall()
                for file in (tmp_path / "archive").rglob("*.parquet")
            }
            return {table: Counter(map(_untimed, rows)) for table, rows in tables.items()}, archived

        (tmp_path / "archive").mkdir()
        for point in POINTS:
            jobs.kill_at("maintain_tables", point)
        jobs.run("maintain_tables")
        killed = state(jobs.warehouse)
        shutil.rmtree(tmp_path / "archive")
        (tmp_path / "archive").mkdir()
        calm = Jobs(file, pipeline, broker.bootstrap, server.url, tmp_path / "calm")
        calm.run("maintain_tables")
        assert killed == state(calm.warehouse)
        assert len(killed[1]) == len(TABLES)
        assert {
            table: min(
                row["batch_id"] for row in DeltaTable(jobs.warehouse / pipeline.name / table).to_pyarrow_table().to_pylist()
            )
            for table in TABLES
        } == {
            **dict.fromkeys(OUTCOMES, 10),
            **dict.fromkeys(("batch_ledger", "quality_metrics"), 4),
        }
        portions.send()
        for job in JOBS:
            jobs.run(job)
        jobs.run("reconcile")


def _untimed(row):
    return str({name: value for name, value in row.items() if not name.endswith("ed_at") and name != "versions"})
