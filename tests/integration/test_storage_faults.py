"""A full disk, a folder that must not be written, damaged and missing tables: one line each, and after the mend the counts add up."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs import land_events, pair_events, publish_compounds, report_quality
from spark_jobs.job.run import errors_in_one_line
from spark_jobs.stages import land, pair, report
from spark_jobs.stages.pair import decide_batch
from spark_jobs.tables import delta_log, ledger
from spark_jobs.tables.commit import commit, commit_rows
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.one_writer import writer_lock
from spark_jobs.tables.schemas import LEDGER, raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALLS = 6
JOBS = (
    lambda warehouse: land_events.main(warehouse, 1_000, ()),
    pair_events.main,
    publish_compounds.main,
    report_quality.main,
)
LAND, PAIR, PUBLISH, REPORT = JOBS


class SmallDisk:
    """A disk of a few megabytes, mounted where the warehouse of the test is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filler = folder / "filler"

    def fill(self) -> None:
        try:
            with self.filler.open("ab", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
        except OSError:
            return

    def mend(self) -> None:
        self.filler.unlink(missing_ok=True)

    def mounted_or_skipped(self) -> None:
        self.folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.folder]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"only root can mount a disk that may be filled: {error}")

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """Before `warehouse`, whose tables are then on it."""
    small = SmallDisk(tmp_path / "warehouse")
    small.mounted_or_skipped()
    yield small
    small.unmount()


@pytest.fixture
def told(capsys):
    """told(warehouse, job): the line with which the job ends, as a process of its own, which has opened no table yet."""

    def line_of(warehouse, job):
        capsys.readouterr()
        delta_log._cache.clear()
        with (
            pytest.raises(SystemExit) as ended,
            errors_in_one_line(),
            translate_file_errors(f"{warehouse.root}/{warehouse.pipeline.name}"),
        ):
            job(warehouse)
        assert ended.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    return line_of


@pytest.fixture
def pipeline(pipeline):
    """With sessions that are over in no time."""
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100, max_future_ms=7_200_000)


@pytest.fixture
def traffic(send):
    """traffic(): pairs, an orphan, an open event and one that is no JSON: every table gets rows."""

    def send_some():
        now = time.time_ns() // 1_000_000
        for number in range(CALLS):
            send("a", f"u{number}", now, number)
            send("m", f"u{number}", now + 20, number)
        send("a", "alone", now, "x")
        send("m", "young", now + 3_600_000, "y")
        send("m", value=b"{nope")
        # Longer than gap and grace: what was sent is over when it is landed.
        time.sleep(0.3)

    return send_some


def run_all(warehouse):
    for job in JOBS:
        job(warehouse)


def assert_everything_once(warehouse, broker, batches):
    """Read by delta-rs and a plain consumer: what `traffic` sent, `batches` times."""
    raw = table_rows(warehouse, "raw_analytics") + table_rows(warehouse, "raw_metrics")
    assert len({(row["topic"], row["partition"], row["offset"]) for row in raw}) == len(raw) == batches * (2 * CALLS + 3)
    compounds = table_rows(warehouse, "compound_events")
    assert Counter(row["kind"] for row in compounds) == {"pair": batches * CALLS, "left_only": batches}
    assert [row["reason"] for row in table_rows(warehouse, "rejected_events")] == ["malformed_json"] * batches
    assert [row["user1"] for row in table_rows(warehouse, "open_events")] == ["young"] * batches
    published = Counter(message["pair-id"] for message in consume(broker.bootstrap, warehouse.pipeline.output_topic))
    assert published == Counter(row["pair_id"] for row in compounds) and set(published.values()) == {1}
    steps = Counter((row["batch_id"], row["step"]) for row in table_rows(warehouse, LEDGER))
    assert set(steps.values()) == {1} and len(steps) == batches * 6


def without_begun(warehouse, table):
    """The rows, without those of publications that were begun, which the ledger gets before it is known how they end."""
    return [row for row in table_rows(warehouse, table) if row.get("step") != "publishing"]


RAW, AT_ONCE = ["raw_analytics", "raw_metrics"], ["compound_events", "rejected_events", "open_events"]
WRITES = {
    LAND: {
        "planned": [LEDGER],
        "files of raw_analytics": RAW,
        "raw_analytics": RAW,
        "raw_metrics": RAW,
        "landed": [LEDGER],
    },
    PAIR: {
        "decided": ["compound_events", "open_events"],
        "compound_events": AT_ONCE,
        "rejected_events": AT_ONCE,
        "open_events": AT_ONCE,
        "paired": [LEDGER],
    },
    PUBLISH: {"publishing": [LEDGER], "published": [LEDGER]},
    REPORT: {"quality_metrics": ["quality_metrics"], "reported": [LEDGER]},
}


def test_the_disk_fills_up_before_every_write(disk, warehouse, traffic, told, broker, monkeypatch):
    full_before = None

    def when_full(write):
        def written(target, table, rows, step, *others, **more):
            if step == full_before:
                disk.fill()
            write(target, table, rows, step, *others, **more)

        return written

    for module in (land, pair):
        monkeypatch.setattr(module, "commit", when_full(commit))

    def append_when_full(target, planned, ranges, side):
        left, right = map(raw_table, target.pipeline.sides)
        if full_before == f"files of {left}":
            disk.fill()
        # Else the other side might be landed before the disk is full, and not be written when its turn has come.
        if raw_table(side) == right and str(full_before).endswith(left):
            return
        append_raw(target, planned, ranges, side)

    append_raw = land.append_raw
    monkeypatch.setattr(land, "append_raw", append_when_full)

    def deciding_when_full(*given):
        if full_before == "decided":
            disk.fill()
        return decide_batch(*given)

    monkeypatch.setattr(pair, "decide_batch", deciding_when_full)
    for module in (report, ledger):
        monkeypatch.setattr(module, "commit_rows", when_full(commit_rows))
    for job, writes in WRITES.items():
        if job is LAND:
            traffic()
        for step, tables in writes.items():
            full_before = step
            mine = table if (table := step.removeprefix("files of ")) in tables else LEDGER
            rows = without_begun(warehouse, mine) if mine != "raw_analytics" else []
            # Of the tables that are written at once any may be the one that says it.
            assert told(warehouse, job) in [
                f"{warehouse.path(table)} cannot be written (No space left on device): free space there; completed steps are "
                "kept; the next run resumes"
                for table in tables
            ]
            assert without_begun(warehouse, mine) == rows
            disk.mend()
        full_before = None
        if job is LAND:
            traffic()
        job(warehouse)
    assert_everything_once(warehouse, broker, batches=2)


@pytest.mark.long
def test_the_disk_is_full_when_the_page_is_written(disk, warehouse, traffic, told, broker, monkeypatch):
    traffic()
    for job in (LAND, PAIR, PUBLISH):
        job(warehouse)

    def write_pages_when_full(*arguments):
        disk.fill()
        return write_pages(*arguments)

    write_pages = report.write_pages
    with monkeypatch.context() as patched:
        patched.setattr(report, "write_pages", write_pages_when_full)
        assert "cannot be written (No space left on device)" in told(warehouse, REPORT)
    disk.mend()
    REPORT(warehouse)
    assert_everything_once(warehouse, broker, batches=1)
    assert "batch-1" in (pages_folder(warehouse.root, warehouse.pipeline.name) / "index.html").read_text()


def test_the_warehouse_must_not_be_written(disk, warehouse, traffic, told, broker):
    traffic()

    def locked(job):
        def work(warehouse):
            with writer_lock(warehouse.root, warehouse.pipeline.name, "test", 1):
                job(warehouse)

        return work

    disk.remount("ro")
    folder = f"{warehouse.root}/{warehouse.pipeline.name}"
    assert told(warehouse, locked(LAND)).startswith(
        f"{folder}/writer.lock cannot be written (Read-only file system): make it"
    )
    assert told(warehouse, LAND).startswith(f"{warehouse.path(LEDGER)} cannot be written (Read-only file system): make it")
    disk.remount("rw")
    locked(LAND)(warehouse)
    disk.remount("ro")
    assert told(warehouse, PAIR).startswith(f"{warehouse.path('compound_events')} cannot be written (Read-only file system)")
    disk.remount("rw")
    for job in JOBS[1:]:
        job(warehouse)
    assert_everything_once(warehouse, broker, batches=1)


def test_something_else_is_where_the_warehouse_should_be(pipeline, spark, tmp_path, told):
    (tmp_path / "taken").write_text("a file")
    mine = Warehouse(str(tmp_path / "taken"), pipeline, spark)
    assert told(mine, create_missing).startswith(f"{tmp_path}/taken")
    with (
        pytest.raises(SystemExit),
        errors_in_one_line(),
        translate_file_errors(mine.root),
        writer_lock(mine.root, "calls", "test", 1),
    ):
        pytest.fail("there is no folder for the lock")


def log_files(warehouse, table):
    return sorted(Path(warehouse.path(table), "_delta_log").glob("*.json"))


def remove(file):
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def cut(file):
    text = file.read_bytes()
    file.write_bytes(text[: len(text) // 2])


def empty(file):
    file.write_bytes(b"")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def from_backup(warehouse, backup):
    """As the runbook says: all tables of the pipeline, of one moment."""
    folder = Path(warehouse.root, warehouse.pipeline.name)
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


@pytest.fixture
def reported(warehouse, traffic, tmp_path):
    """One batch is reported, and `backup` is what the warehouse was then; a second one is sent."""
    traffic()
    run_all(warehouse)
    backup = tmp_path / "backup"
    shutil.copytree(Path(warehouse.root, warehouse.pipeline.name), backup)
    traffic()
    return backup


def test_log_files_are_missing_cut_off_or_empty(reported, warehouse, told, broker):
    backup = "; put all tables of the pipeline back from one backup"
    for tables in (Path(warehouse.root, warehouse.pipeline.name), reported):
        # What a checkpoint holds is not missed.
        for checkpoint in (tables / LEDGER / "_delta_log").glob("*checkpoint*"):
            checkpoint.unlink()
    for table, which, damage, what in (
        ("compound_events", 0, remove, "is missing: the table is damaged, put all"),
        ("raw_analytics", -1, cut, "is cut off or overwritten: the table is damaged, put all"),
        ("batch_ledger", 2, remove, "is missing: the table is damaged, put all"),
        ("batch_ledger", -1, cut, "is cut off or overwritten: the table is damaged, put all"),
        ("open_events", -1, empty, "is empty: the table is damaged, put all"),
        ("rejected_events", -1, remove, None),
    ):
        file = log_files(warehouse, table)[which]
        damage(file)
        line = told(warehouse, LAND)
        if what:
            assert line.startswith(f"{file} {what}"), line
        else:
            assert line.startswith(
                f"{warehouse.path(table)} is at version 0, but batch_ledger knows of version 1: it was put"
            ), line
            assert line.endswith(backup)
        from_backup(warehouse, reported)
    run_all(warehouse)
    assert_everything_once(warehouse, broker, batches=2)


@pytest.mark.long
@pytest.mark.parametrize("ends_at", ["planned", "reported"])
def test_the_ledger_has_lost_its_last_rows(ends_at, reported, warehouse, told, broker):
    """Its batch_id would be given out again, and what is landed under it skipped."""
    LAND(warehouse)
    # Of the second batch the rows `planned` and `landed` are lost, or only the second of them.
    for file in log_files(warehouse, LEDGER)[-2 if ends_at == "reported" else -1 :]:
        remove(file)
    if ends_at == "reported":
        line = told(warehouse, LAND)
        assert line.startswith(
            f"{warehouse.path('raw_analytics')} has rows of batch 2, but batch_ledger ends at batch 1: the ledger"
        )
        from_backup(warehouse, reported)
    run_all(warehouse)
    batches = {row["batch_id"] for row in table_rows(warehouse, LEDGER)}
    assert batches == ({1, 2} if ends_at == "reported" else {1, 2, 3})
    raw = table_rows(warehouse, "raw_analytics") + table_rows(warehouse, "raw_metrics")
    assert len({(row["topic"], row["partition"], row["offset"]) for row in raw}) == len(raw) == 2 * (2 * CALLS + 3)


TABLES = ["raw_metrics", "open_events", "compound_events", "rejected_events", "quality_metrics", "batch_ledger"]


@pytest.mark.long
def test_tables_are_deleted_under_a_running_pipeline(reported, warehouse, told, broker, monkeypatch, tmp_path):
    assert_each_is_missed(warehouse, told, LAND, reported, " has been written to, but ")
    assert_deleted_in_the_middle(warehouse, told, monkeypatch)
    from_backup(warehouse, reported)
    LAND(warehouse)
    shutil.copytree(Path(warehouse.root, warehouse.pipeline.name), tmp_path / "landed")
    assert_each_is_missed(warehouse, told, PAIR, tmp_path / "landed", "there is no table ")
    for job in JOBS[1:]:
        job(warehouse)
    assert_everything_once(warehouse, broker, batches=2)


def assert_each_is_missed(warehouse, told, job, backup, without_ledger):
    for table in TABLES:
        path = warehouse.path(table)
        shutil.rmtree(path)
        line = told(warehouse, job)
        gone = f"{path} is gone, but {warehouse.path(LEDGER)} is there: put all tables"
        assert (without_ledger if table == LEDGER else gone) in line
        assert not os.path.exists(path), "it must not come back with the rows of one batch"
        from_backup(warehouse, backup)


def assert_deleted_in_the_middle(warehouse, told, monkeypatch):
    def commit_after_deletion(target, table, files, step, *others, **more):
        if step == "raw_metrics":
            shutil.rmtree(target.path(table))
        commit(target, table, files, step, *others, **more)

    with monkeypatch.context() as patched:
        patched.setattr(land, "commit", commit_after_deletion)
        assert told(warehouse, LAND).startswith(f"{warehouse.path('raw_metrics')} is gone, but ")
    assert not os.path.exists(warehouse.path("raw_metrics"))


@pytest.mark.long
def test_an_older_copy_of_one_table(reported, warehouse, told, broker):
    LAND(warehouse)
    PAIR(warehouse)
    compounds = warehouse.path("compound_events")
    shutil.move(compounds, f"{compounds}.newer")
    shutil.copytree(reported / "compound_events", compounds)
    topic = warehouse.pipeline.output_topic
    before = Counter(map(str, consume(broker.bootstrap, topic)))
    for job in (PUBLISH, LAND):
        assert told(warehouse, job).startswith(
            f"{compounds} is at version 1, but batch_ledger knows of version 2: it was put back"
        )
    assert Counter(map(str, consume(broker.bootstrap, topic))) == before
    shutil.rmtree(compounds)
    shutil.move(f"{compounds}.newer", compounds)
    PUBLISH(warehouse)
    REPORT(warehouse)
    assert_everything_once(warehouse, broker, batches=2)
