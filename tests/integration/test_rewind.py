"""Rewind: tables and position go back, what was published is corrected, and the pipeline ends where an undisturbed one does."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.corrections.rewind import dry_run
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import job_parser, run_job
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.stages import pair
from spark_jobs.tables.commit import commit_frame, commit_rows
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED
from spark_jobs.tables.one_writer import writer_lock
from spark_jobs.tables.records import CorrectedBatches
from spark_jobs.tables.schemas import METRICS, declared_schema
from tests.conftest import yaml_of
from tests.helpers import ledger_rows, stream_clock
from tests.helpers.reading import consume, table_rows
from tests.helpers.stream_clock import consumed, killed_at, run, stories
from tests.integration.test_publishing import publish_only

pytestmark = pytest.mark.integration

TABLES = ("raw_analytics", "raw_metrics", "open_events", "rejected_events", "compound_events")


pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun


def with_settings(warehouse, **settings):
    return replace(warehouse, pipeline=replace(warehouse.pipeline, **settings))


def compounds(warehouse):
    """What the outbox of a pipeline without a rewind says: pair_id -> (kind, value as it is published)."""
    found = {}
    for row in table_rows(warehouse, "compound_events"):
        payloads = {name: json.loads(row[name]) if row[name] else None for name in ("analytics", "metrics")}
        value = {"user1": row["user1"], "user2": row["user2"], "ts": row["ts"], **payloads}
        assert (row["revision"], row["op"]) == (0, "upsert")
        found[row["pair_id"]] = (row["kind"], json.dumps(value))
    return found


def same_rows(one, other, table):
    def rows(warehouse):
        columns = [name for name in warehouse.read(table).columns if name != "batch_id"]
        return Counter(str([row[name] for name in columns]) for row in table_rows(warehouse, table))

    return rows(one) == rows(other)


def copied(warehouse, tmp_path, name):
    shutil.copytree(warehouse.root, tmp_path / name)
    return replace(warehouse, root=str(tmp_path / name))


def steps(warehouse, batch_id):
    return {row.step: row for row in Ledger(warehouse).rows(batch_id, batch_id)}


def broken(*_):
    raise BrokenInvariant("conservation broken: on purpose")


def test_a_rewound_pipeline_ends_where_an_undisturbed_one_does(warehouse, broker, send, tmp_path, monkeypatch, capsys):
    send("a0:x m50:x a0:y m:bad a10:z=1 a10:z=1 a2000:tick m2000:tick")
    run(warehouse)
    send("a3000:d m3040:d a3900:waits a4000:tick m4000:tick")
    run(warehouse)
    undisturbed = copied(warehouse, tmp_path, "undisturbed")
    # From here on somebody has set the tolerance to 1 ms: pairs fall apart.
    wrong = with_settings(warehouse, tolerance_ms=1)
    send("m3950:waits a5000:e m5050:e m5000:twice=1 m5000:twice=1 a1000:late a: a6000:tick m6000:tick")
    run(wrong)
    publish_compounds.main(wrong)
    # Comes after its session was over; whoever reads it together with the batch before does not find it late.
    send("a5200:behind a7000:f m7050:f a8000:tick m8000:tick")
    run(wrong)
    publish_only(wrong, 0)
    send("a9000:g m9050:g a10000:tick m10000:tick")
    land_events.main(wrong, 1_000_000, ())
    with monkeypatch.context() as patched:
        patched.setattr(pair, "check_conservation", broken)
        with pytest.raises(BrokenInvariant):
            pair_events.main(wrong)
    assert consumed(warehouse, broker) != {} and reconcile.main(warehouse).offenders == []

    before = {table: warehouse.version(table) for table in (*TABLES, "batch_ledger")}
    report = dry_run(warehouse, 2)
    name = warehouse.pipeline.name
    assert [line.split() for line in report.splitlines()] == [
        line.split()
        for line in f"""
            back to batch 2, batches 3 to 5 given up (5 was never paired)
            rows of raw_analytics to remove 9
            rows of raw_metrics to remove 9
            rows of rejected_events to remove 4
            rows of open_events, now        2
            rows of open_events, then       3
            compounds to be corrected that are published            6
            compounds to be corrected that are not published yet    3
            (they go out first, as some of them may be out already; the corrections follow)
            read again:
            {name}-analytics-0:8-17 all on the broker
            {name}-metrics-0:5-14 all on the broker
            nothing was changed; --yes does it""".strip().splitlines()
    ]
    assert {table: warehouse.version(table) for table in before} == before

    # Killed twice, then finished by the next batch, which reads everything since batch 2 with the right settings.
    for point in ("after_planned", "after_compound_events"):
        with killed_at(monkeypatch, point):
            rewind.main(warehouse, 2)
    assert dry_run(warehouse, 2).startswith("rewind 6 to batch 2 was begun and not finished")
    assert reconcile.main(warehouse).offenders == [], "in the middle of a rewind"
    send("a11000:h m11050:h a12000:tick m12000:tick")
    run(warehouse)
    run(undisturbed)
    assert steps(warehouse, 7)[PLANNED].plan.corrected == CorrectedBatches(3, 6)
    publish_compounds.main(warehouse)
    assert consumed(warehouse, broker) == compounds(undisturbed)
    assert all(same_rows(warehouse, undisturbed, table) for table in TABLES[:-1])
    assert report_quality.main(warehouse)["batches"] == 4, "1, 2, the rewind and 7"
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert [answer.counts[name] for name in ("published batches", "rewinds", "void batches")] == [3, 1, 3]
    kinds = Counter(m["op"] for m in consume(broker.bootstrap, warehouse.pipeline.output_topic))
    assert kinds["retract"] == 9
    assert [line.partition(":")[0] for line in stories(warehouse)["e"] if "revision" in line] == [
        "  revision 0, left_only, by batch 3",
        "  revision 1, taken back, by batch 6, a rewind to batch 2",
        "  revision 2, pair, by batch 7",
        "  revision 0, right_only, by batch 3",
        "  revision 1, taken back, by batch 6, a rewind to batch 2",
    ]


@pytest.mark.long
def test_rewinds_behind_a_rewind_and_to_one(warehouse, broker, send, tmp_path):
    send("a0:x m50:x a1900:waits a2000:tick m2000:tick")
    run(warehouse)
    publish_compounds.main(warehouse)
    undisturbed = copied(warehouse, tmp_path, "undisturbed")
    wrong = with_settings(warehouse, tolerance_ms=1)
    send("m1950:waits a3000:d m3040:d a: a4000:tick m4000:tick")
    run(wrong)
    publish_compounds.main(wrong)
    # Batch 3 gives batch 2 up, batch 4 makes the same mistake over again, and is published.
    rewind.main(warehouse, 1)
    send("a5000:e m5050:e a6000:tick m6000:tick")
    run(wrong)
    publish_compounds.main(wrong)
    with pytest.raises(NeedsOperator, match="batch 2 is void, rewind 3 went back to batch 1"):
        rewind.main(warehouse, 2)

    # Behind the rewind, to before it: batch 5.
    rewind.main(warehouse, 1)
    run(warehouse)
    run(undisturbed)
    publish_compounds.main(warehouse)
    assert consumed(warehouse, broker) == compounds(undisturbed)
    assert all(same_rows(warehouse, undisturbed, table) for table in TABLES[:-1])
    # To the rewind itself: batch 7 gives up batch 6 alone, which is found again.
    rewind.main(warehouse, 5)
    publish_compounds.main(warehouse)
    send("a7000:f m7050:f a8000:tick m8000:tick")
    run(warehouse)
    run(undisturbed)
    publish_compounds.main(warehouse)
    assert consumed(warehouse, broker) == compounds(undisturbed)
    assert all(same_rows(warehouse, undisturbed, table) for table in TABLES[:-1])
    report_quality.main(warehouse)
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    # Batches 2, 3, 4 and 6 are void.
    assert [answer.counts[name] for name in ("published batches", "rewinds", "void batches")] == [2, 3, 4]
    stories(warehouse)


@pytest.mark.long
def test_the_way_out_of_a_first_batch_that_cannot_be_paired(warehouse, broker, send, monkeypatch):
    send("a0:x m50:x a1900:waits a2000:tick m2000:tick")
    land_events.main(warehouse, 1_000_000, ())
    # The compounds are written, and it dies again and again before it is paired.
    with killed_at(monkeypatch, "after_compound_events"):
        pair_events.main(warehouse)
    assert len(table_rows(warehouse, "compound_events")) == 1
    written = {table: warehouse.read(table).toArrow() for table in ("raw_analytics", "compound_events")}
    dead = steps(warehouse, 1)[LANDED]
    counts = rewind.main(warehouse, 0)
    assert (counts["batch_id"], counts["compounds"], counts["open_after"]) == (2, 0, 0)
    assert [table_rows(warehouse, table) for table in TABLES] == [[]] * 5
    # Its place in the sequence is taken: what a job of the dead batch would still write comes too late.
    for table, rows in written.items():
        frame = warehouse.spark.createDataFrame(rows, declared_schema(warehouse.pipeline, table))
        commit_frame(warehouse, table, frame, table, 1)
    Ledger(warehouse).append(dead.next_step(PAIRED, dead.started_at, ledger_rows.counts(PAIRED)))
    assert [table_rows(warehouse, table) for table in TABLES] == [[]] * 5
    assert PAIRED not in steps(warehouse, 1)

    assert run(warehouse)["pair"] == 1
    publish_compounds.main(warehouse)
    (message,) = consume(broker.bootstrap, warehouse.pipeline.output_topic)
    assert (message["revision"], message["op"]) == ("0", "upsert")
    report_quality.main(warehouse)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_rows_that_could_not_be_read_again_are_not_given_up_silently(warehouse, broker, send):
    send("a0:x m50:x a1900:waits a2000:tick m2000:tick")
    run(warehouse)
    send("a3000:y m3050:y a3900:waits a4000:tick m4000:tick")
    run(warehouse)
    topic = warehouse.pipeline.left.topic
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for removed in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        removed.result(timeout=20)
    lost = f"{topic}-0:3-5"
    report = dry_run(warehouse, 1)
    assert f"{topic}-0:3-6  the broker no longer has {lost}" in report
    assert f"--yes refuses this without --accept-lost-range '{lost}'" in report
    with pytest.raises(NeedsOperator, match=f"the broker no longer has {lost}, .*--accept-lost-range '{lost}' to lose"):
        rewind.main(warehouse, 1)
    assert len(table_rows(warehouse, "raw_analytics")) == 6

    # The same of the open events as they were: without their files there is no way back.
    for file in Path(warehouse.path("open_events")).glob("*.parquet"):
        if file.name not in {Path(name).name for name in DeltaTable(warehouse.path("open_events")).file_uris()}:
            file.unlink()
    with pytest.raises(NeedsOperator, match=r"open_events as it was after batch 1 \(version 1\) cannot be read any more"):
        rewind.main(warehouse, 1, [lost])
    assert Ledger(warehouse).last_ids()[PLANNED] == 2

    rewind.main(warehouse, 0, [f"{topic}-0:0-5"])
    with pytest.raises(NeedsOperator, match=f"the broker no longer has 5 records that were never landed, {topic}-0:0-5"):
        run(warehouse)


@pytest.mark.long
def test_a_restored_delta_table_remembers_the_transaction_versions(warehouse):
    def write(batch_id):
        row = {"batch_id": batch_id, "judged_at": None, "success": True, "metrics": []}
        commit_rows(warehouse, METRICS, [row], METRICS, batch_id)

    def batches():
        return sorted(row["batch_id"] for row in table_rows(warehouse, METRICS))

    for batch_id in (1, 2, 3):
        write(batch_id)
    DeltaTable(warehouse.path(METRICS)).restore(1)
    assert batches() == [1]
    # Skipped without an error: that is why a batch_id is never used again.
    write(2)
    write(3)
    assert batches() == [1]
    write(4)
    assert batches() == [1, 4]


def test_another_writer_at_work_is_named(pipeline, tmp_path, capsys, monkeypatch):
    # A job ends its process; here that is the tests' own.
    monkeypatch.setattr(os, "_exit", sys.exit)
    arguments = ["--pipeline", str(yaml_of(pipeline, tmp_path)), "--warehouse", str(tmp_path)]
    given = job_parser("rewind", "").parse_args(arguments)
    with writer_lock(str(tmp_path), pipeline.name, "land_events", 1), pytest.raises(SystemExit) as ended:
        run_job("rewind", given, lambda _: pytest.fail("two writers at once"), lock_wait_s=0.3)
    assert ended.value.code == 1
    assert f"{pipeline.name}/writer.lock is held by land_events (process" in capsys.readouterr().err
