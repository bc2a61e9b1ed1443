"""Maintenance: files go, rows stay; whatever needs an old version or an old row finds it, or is refused with a line that says why."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from include.config.pipeline import Maintenance
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs import (
    land_events,
    maintain_tables,
    pair_events,
    publish_compounds,
    reconcile,
    replay_interval,
    report_quality,
    rewind,
)
from spark_jobs.corrections import replay
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.maintenance import upkeep
from spark_jobs.maintenance.upkeep import needed_since
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables import delta_log
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, REMOVED_RAW
from spark_jobs.tables.records import Window
from tests.helpers import comparing, stream_clock
from tests.helpers.all_stages import run_all
from tests.helpers.job_processes import JOBS, Faults, Jobs
from tests.helpers.reading import table_rows
from tests.helpers.stream_clock import consumed, killed_at, run
from tests.helpers.timeless_traffic import Portions, timeless

# Two minutes and more each.
pytestmark = [pytest.mark.integration, pytest.mark.long]

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
APPENDED = ("raw_analytics", "raw_metrics", "compound_events", "batch_ledger", "quality_metrics")
DAY_MS = 86_400_000


@pytest.fixture
def maintain(monkeypatch):
    """Runs the job as if a week had passed since all that is not needed any more."""

    def run_job(warehouse):
        monkeypatch.setattr(upkeep, "_KEPT_MS", 0)
        monkeypatch.setattr(upkeep, "_MARGIN_MS", 0)
        needed = needed_since(Ledger(warehouse)) or 0
        for table in Path(warehouse.root, warehouse.pipeline.name).glob("*/_delta_log"):
            for file in table.iterdir():
                week_ago = file.stat().st_mtime - 9 * DAY_MS / 1000
                if file.suffix == ".json":
                    file.write_text("\n".join(map(partial(aged, needed), file.read_text().splitlines())))
                os.utime(file, (week_ago, week_ago))
        # A job is a process of its own.
        delta_log._cache.clear()
        care = replace(warehouse.pipeline.maintenance, time_travel_ms=1)
        return maintain_tables.main(replace(warehouse, pipeline=replace(warehouse.pipeline, maintenance=care)))

    return run_job


def aged(needed, line):
    """A line of a log; what left the table before the moment from which on it is needed left it more than a week earlier."""
    action = json.loads(line)
    if "remove" in action and action["remove"]["deletionTimestamp"] < needed:
        action["remove"]["deletionTimestamp"] -= 9 * DAY_MS
    return json.dumps(action)


def rows(warehouse):
    tables = (*APPENDED, "open_events", "rejected_events")
    return {table: Counter(map(str, table_rows(warehouse, table))) for table in tables}


def files(warehouse, table):
    """Of the table's newest version, and in its folder."""
    folder = Path(warehouse.path(table))
    return len(DeltaTable(folder).file_uris()), len(list(folder.glob("*.parquet")))


def log_begins(warehouse, table):
    """The first version of which the log has the commit."""
    return min(int(file.stem) for file in Path(warehouse.path(table), "_delta_log").glob("*.json"))


def test_rows_stay_and_what_needs_the_past_finds_it(warehouse, broker, send, maintain, monkeypatch):
    for number in range(3):
        at = number * 2_000
        send(f"a{at}:x m{at + 50}:x a{at + 1900}:waits{number} a{at + 2000}:tick m{at + 2000}:tick")
        run(warehouse)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    # A batch that dies after it has written the next open events: its plan names those of before.
    send("a6500:x m6550:x a7900:waits3 a8000:tick m8000:tick")
    land_events.main(warehouse, 1_000_000)
    with killed_at(monkeypatch, "after_open_events"):
        pair_events.main(warehouse)
    before = rows(warehouse)
    assert maintain(warehouse)["files_put_together"] >= 6
    assert rows(warehouse) == before
    for table in APPENDED:
        assert files(warehouse, table) == (1, 1), table
    assert pair_events.main(warehouse)["pair"] == 2
    publish_compounds.main(warehouse)
    assert report_quality.main(warehouse)["batches"] == 1

    # Batch 3 is what batch 4 began with, and batch 2 what was reported with it; those before are gone.
    with pytest.raises(NeedsOperator, match=r"open_events as it was after batch 1 .* cannot be read any more"):
        rewind.main(warehouse, 1)
    assert Ledger(warehouse).last_ids()[PLANNED] == 4
    rewind.main(warehouse, 3)
    run_all(warehouse)
    assert reconcile.main(warehouse).offenders == []
    assert len(consumed(warehouse, broker)) == len({row["pair_id"] for row in table_rows(warehouse, "compound_events")})

    maintain(warehouse)
    # The log goes back to an earlier checkpoint, so what is left of it can be read.
    for table in (*APPENDED, "open_events"):
        assert log_begins(warehouse, table) >= 3, table
    assert reconcile.main(warehouse).offenders == []


def test_raw_rows_go_by_age_and_the_ledger_knows(warehouse, send, begun, monkeypatch, tmp_path):
    for number in range(3):
        at = number * 2_000
        send(f"a{at}:x m{at + 50}:x m:bad a{at + 2000}:tick m{at + 2000}:tick")
        run_all(warehouse)
    warehouse = replace(warehouse, pipeline=replace(warehouse.pipeline, maintenance=Maintenance(None, DAY_MS, DAY_MS)))
    ledger = Ledger(warehouse)
    # The ticks of batch 2 were open until batch 3; those of batch 3 still are.
    planned = {row.batch_id: row for row in ledger.rows(1) if row.step == PLANNED}
    monkeypatch.setattr(upkeep, "_now", lambda: planned[2].wall_time + DAY_MS + 1)
    untouched = shutil.copytree(warehouse.root, tmp_path / "untouched")

    with killed_at(monkeypatch, "after_removed_raw"):
        maintain_tables.main(warehouse)
    assert reconcile.main(warehouse).offenders == []
    with killed_at(monkeypatch, "after_removed_raw_left"):
        maintain_tables.main(warehouse)
    assert {row["batch_id"] for row in table_rows(warehouse, "raw_metrics")} == {1, 2, 3}
    assert reconcile.main(warehouse).offenders == []
    assert maintain_tables.main(warehouse)[REMOVED_RAW] == 0
    assert [{row["batch_id"] for row in table_rows(warehouse, f"raw_{side}")} for side in ("analytics", "metrics")] == [
        {3},
        {3},
    ]
    (removal,) = (row for row in ledger.rows(1) if row.step == REMOVED_RAW)
    landed = sum(row.landed.landed for row in ledger.rows(1, 2) if row.step == LANDED)
    assert (removal.batch_id, removal.removed.removed, removal.removed.removed_until) == (2, landed, begun + 4_000)

    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert answer.counts["records removed from the raw tables for their age"] == landed == 10
    assert answer.counts["records landed"] == 5
    # An outcome that is lost is seen without the raw row, too.
    DeltaTable(warehouse.path("rejected_events")).delete("batch_id = 1")
    assert [(str(found.finding), found.number) for found in reconcile.main(warehouse).offenders] == [
        ("accepted records in neither compound_events nor rejected_events nor open_events", 1)
    ]
    DeltaTable(warehouse.path("rejected_events")).restore(DeltaTable(warehouse.path("rejected_events")).version() - 1)

    with pytest.raises(NeedsOperator, match=r"cannot be replayed: raw rows with events up to .* were removed for their age"):
        replay_interval.main(warehouse, Window(begun, begun + 100))
    with pytest.raises(NeedsOperator, match=r"so nothing can go on from batch 1: name batch 2 or a later one"):
        rewind.main(warehouse, 1)
    # A tick of batch 2 would be open again.
    with pytest.raises(NeedsOperator, match=r"2 events that batch 2 left open are no longer in the raw tables"):
        rewind.main(warehouse, 2)
    send("a6500:x m6550:x a8000:tick m8000:tick")
    run_all(warehouse)
    assert replay_interval.main(warehouse, Window(begun + 6_400, begun + 6_600))["unchanged"] == 1
    assert reconcile.main(warehouse).offenders == []

    # Evidence is not removed.
    other = replace(warehouse, root=str(untouched))
    DeltaTable(other.path("raw_metrics")).delete("batch_id = 1 AND problem IS NULL")
    with pytest.raises(
        BrokenInvariant,
        match=r"rows of the batches 1 to 2 are not removed from raw_analytics and raw_metrics: there are 8 of them, the ledger counts 10",
    ):
        maintain_tables.main(other)


def test_a_chain_that_comes_from_where_raw_rows_were_removed_is_not_replayed(warehouse, send, begun, monkeypatch):
    send("a1800:x m3900:tick a3900:tick")
    run_all(warehouse)
    # Late, and within the gap of an event that goes.
    send("m1950:x a6000:tick m6000:tick")
    run_all(warehouse)
    warehouse = replace(warehouse, pipeline=replace(warehouse.pipeline, maintenance=Maintenance(None, DAY_MS, DAY_MS)))
    first = Ledger(warehouse).rows(1, 1)[0]
    monkeypatch.setattr(upkeep, "_now", lambda: first.wall_time + DAY_MS + 1)
    maintain_tables.main(warehouse)
    removal = Ledger(warehouse).removals()[REMOVED_RAW]
    assert removal.batch_id == 1
    # As if the ticks had not been among what was removed.
    monkeypatch.setattr("spark_jobs.corrections.replay._removed_until", lambda ledger, window: None)
    last = Ledger(warehouse).last_batch()[PAIRED]
    planned = replay.plan_replay(warehouse, Ledger(warehouse), last, Window(begun + 1_900, begun + 2_000))
    planned = replace(planned, plan=replace(planned.replay, removed_until=begun + 1_800))
    with (
        pytest.raises(NeedsOperator, match="cannot be replayed: sessions reach into it from before"),
        replay.difference(warehouse, planned),
    ):
        pass
    planned = replace(planned, plan=replace(planned.replay, removed_until=begun + 1_749))
    with replay.difference(warehouse, planned) as found:
        assert found.corrections == 1


def test_maintenance_is_killed_at_every_point_and_nothing_differs(broker, tmp_path, monkeypatch):
    (tmp_path / "faults").mkdir()
    faults = Faults(tmp_path / "faults")
    monkeypatch.setenv("PAIRING_FAULT_DIR", str(faults.folder))
    with LocalSpark(tmp_path / "spark-server", free_port()) as server:
        (killed, killed_file), (calm, calm_file) = (timeless(name, "kept", tmp_path / "jobs") for name in ("killed", "calm"))
        warehouse = tmp_path / "warehouse"
        attacked = Jobs(killed_file, killed, broker.bootstrap, server.url, warehouse, faults)
        undisturbed = Jobs(calm_file, calm, broker.bootstrap, server.url, warehouse)
        portions = Portions(broker, killed, calm)
        points = [point for point in FAULT_POINTS["maintain_tables"] if "removed" not in point and "archived" not in point]
        for point in [None, *points]:
            portions.send()
            for jobs in (attacked, undisturbed):
                if point and jobs is attacked:
                    jobs.kill_at("maintain_tables", point)
                for job in JOBS:
                    jobs.run(job)
        attacked.run("maintain_tables")
        # The ledgers' versions differ, and what commits say they are.
        for table in (
            "raw_analytics",
            "raw_metrics",
            "open_events",
            "rejected_events",
            "compound_events",
            "quality_metrics",
        ):
            assert comparing.rows(warehouse, killed, table) == comparing.rows(warehouse, calm, table), table
        sent = (comparing.records(broker.bootstrap, each.output_topic) for each in (killed, calm))
        assert next(sent) == next(sent)
