"""Reconcile is green while the pipeline goes on, and names whatever is missing, twice or different."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from include.config.pipeline import Side
from include.local.broker import create_topics
from include.local.machine import project_environment
from spark_jobs import land_events, pair_events, publish_compounds, reconcile
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.quality.checks import Finding
from spark_jobs.quality.reconcile import fail_if_any, report_text
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import yaml_of
from tests.helpers.reading import consume, table_rows
from tests.helpers.tampering import append_frame, change_rows, delete_rows, update_rows
from tests.helpers.timeline import CALLS, ROOT
from tests.integration.test_publishing import publish_only

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pipeline(broker):
    mine = replace(
        CALLS,
        name="reconciled",
        left=Side("reconciled.analytics", "analytics"),
        right=Side("reconciled.metrics", "metrics"),
        output_topic="reconciled.output",
        tolerance_ms=50,
        gap_ms=50,
        grace_ms=100,
    )
    topics = dict.fromkeys((mine.left.topic, mine.right.topic, mine.output_topic), 2)
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
        yield mine


@pytest.fixture(scope="module")
def producer(broker):
    return Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})


@pytest.fixture(scope="module")
def original(spark, pipeline, producer, tmp_path_factory):
    """Two published batches, and a third of which one output partition has its share, and the ledger knows nothing."""
    warehouse = Warehouse(str(tmp_path_factory.mktemp("original")), pipeline, spark)
    for batch in (1, 2, 3):
        send_a_batch(producer, pipeline, batch)
        land_events.main(warehouse, 1_000_000, ())
        pair_events.main(warehouse)
        if batch < 3:
            publish_compounds.main(warehouse)
    publish_only(warehouse, 0)
    return warehouse


def send_a_batch(producer, pipeline, batch):
    """Eight pairs, an orphan, one sent twice, one late (after the first batch), one still open, and one that is no JSON."""
    now = time.time_ns() // 1_000_000
    left, right = pipeline.left.topic, pipeline.right.topic

    def send(topic, user, ts):
        payload = "analytics" if topic == left else "metrics"
        body = {"user1": user, "user2": "v", "timestamp": ts, payload: {"batch": batch}}
        producer.produce(topic, value=json.dumps(body), key=f"{user}-v")

    for number in range(8):
        send(left, f"u{number}", now)
        send(right, f"u{number}", now + 20)
    for topic, user, ts in (
        (left, "alone", now), (right, "twice", now), (right, "twice", now), (left, "old", now - 3_600_000), (left, "young", now + 250_000)
    ):  # fmt: skip
        send(topic, f"{user}{batch}", ts)
    producer.produce(right, value=b"{nope", key=f"bad{batch}")
    assert producer.flush(20) == 0
    # Longer than gap and grace: what was sent is over when it is landed.
    time.sleep(0.3)


@pytest.fixture
def copy(original, tmp_path):
    """The same tables (by their ids) in another folder, for a test to damage."""
    shutil.copytree(original.root, tmp_path / "copy")
    return Warehouse(str(tmp_path / "copy"), original.pipeline, original.spark)


def found(warehouse):
    return {offenders.finding: offenders.first for offenders in reconcile.main(warehouse).offenders}


def one(warehouse, table, condition):
    rows = [row for row in table_rows(warehouse, table) if condition(row)]
    return sorted(rows, key=str)[0]


def place(row):
    return f"{row['topic']}-{row['partition']}-{row['offset']}"


def delete(warehouse, table, row):
    where = f'topic = \'{row["topic"]}\' AND "partition" = {row["partition"]} AND "offset" = {row["offset"]}'
    delete_rows(warehouse, table, where)


def test_a_healthy_pipeline_in_the_middle_of_its_third_batch(original, broker):
    answer = reconcile.main(original)
    assert answer.offenders == []
    counts = {name.removeprefix("… "): count for name, count in answer.counts.items()}
    later = [
        m for m in consume(broker.bootstrap, "reconciled.output") if m["value"] and '"batch": 3' in json.dumps(m["value"])
    ]
    # 22 records a batch. The first batch's old event was not late, so it is a compound; both batches' young ones are open.
    assert {name: count for name, count in counts.items() if count} == {
        "published batches": 2, "offsets planned": 44, "records landed": 44, "in compound_events": 37, "in rejected_events": 5,
        "in open_events": 2, "compounds to be published": 21, "on the output topic": 21, "messages of later batches": len(later),
    }  # fmt: skip
    assert 0 < len(later) < 10
    report = report_text("reconciled", "reconciled.output", answer)
    assert report.splitlines()[-1] == (
        "reconciled: all 44 records of 2 batches have exactly one outcome, and all 21 compounds that reconciled.output can still "
        "have are on it exactly once."
    )
    fail_if_any("reconciled", answer.offenders)


def test_a_raw_row_is_missing(copy):
    row = one(copy, "raw_analytics", lambda row: row["problem"] is None and row["batch_id"] == 1)
    delete(copy, "raw_analytics", row)
    assert found(copy) == {
        Finding.ROWS_NOT_COUNTED: ["batch 1: 22 offsets planned, 0 of them gaps, 21 raw rows"],
        Finding.NOT_LANDED: [place(row)],
        Finding.NEVER_LANDED: [place(row)],
    }


@pytest.mark.long
def test_a_raw_row_is_there_twice_and_another_was_changed(copy):
    twice, changed = sorted(
        (row for row in table_rows(copy, "raw_metrics") if row["batch_id"] == 2 and row["problem"] is None), key=place
    )[:2]
    where = f"partition = {twice['partition']} AND offset = {twice['offset']}"
    append_frame(copy, "raw_metrics", copy.read("raw_metrics").where(where))

    def change(row):
        if place(row) == place(changed):
            row["value"] = b""

    change_rows(copy, "raw_metrics", change)
    assert found(copy) == {
        Finding.ROWS_NOT_COUNTED: ["batch 2: 22 offsets planned, 0 of them gaps, 23 raw rows"],
        Finding.LANDED_TWICE: [place(twice)],
        Finding.LANDED_OTHERWISE: [place(changed)],
    }


def test_a_rejected_row_and_an_open_event_were_swallowed(copy):
    row = one(copy, "rejected_events", lambda row: row["reason"] == "malformed_json" and row["batch_id"] == 2)
    late = one(copy, "rejected_events", lambda row: row["reason"] == "late" and row["batch_id"] == 2)
    waiting = one(copy, "open_events", lambda row: row["user1"] == "young1")
    delete(copy, "rejected_events", row)
    delete(copy, "rejected_events", late)
    # As if the batch itself had written open_events without it.
    delete(copy, "open_events", waiting)
    delete_rows(copy, "open_events", "user1 = 'young3'")

    def change(row):
        if row["step"] == "paired":
            row["versions"] = [("open_events", copy.version("open_events"))]

    change_rows(copy, "batch_ledger", change)
    assert found(copy) == {Finding.NOT_REJECTED: [place(row)], Finding.NO_OUTCOME: sorted([place(late), place(waiting)])}


@pytest.mark.long
def test_a_record_has_two_outcomes(copy):
    row = one(copy, "rejected_events", lambda row: row["reason"] == "duplicate" and row["batch_id"] == 1)
    rows = copy.read("rejected_events").where(f"topic = '{row['topic']}' AND partition = {row['partition']}")
    append_frame(copy, "rejected_events", rows.where(f"offset = {row['offset']}"))
    assert found(copy) == {Finding.TWO_OUTCOMES: [f"{place(row)} in 2 x rejected_events"]}


def shift_second_plan(warehouse, by):
    """The second batch begins that much further on, in every partition."""

    def change(row):
        if (row["batch_id"], row["step"]) == (2, "planned"):
            for at in row["offsets"]:
                at["from_offset"] += by

    change_rows(warehouse, "batch_ledger", change)


@pytest.mark.long
def test_a_batch_is_missing_in_the_ledger(copy):
    rows = [row for row in table_rows(copy, "batch_ledger") if row["batch_id"] in (1, 2) and row["step"] == "planned"]
    first, second = (row["offsets"] for row in sorted(rows, key=lambda row: row["batch_id"]))
    update_rows(copy, "batch_ledger", {"batch_id": "0"}, "batch_id = 1 AND step = 'landed'")
    shift_second_plan(copy, 1)
    answer = found(copy)
    skipped = [
        f"{one['topic']}-{one['partition']}:{one['until_offset']}-{two['from_offset'] + 1} before batch 2"
        for one, two in zip(first, second, strict=True)
    ]
    assert answer[Finding.OFFSETS_SKIPPED] == sorted(skipped)
    assert answer[Finding.STEP_MISSING] == ["batch 1 landed"]
    assert len(answer[Finding.ROWS_NOT_PLANNED]) == len(skipped)


def test_offsets_and_a_step_are_in_the_ledger_twice_and_a_compound_in_its_table(copy):
    rows = [row for row in table_rows(copy, "batch_ledger") if row["step"] == "planned" and row["batch_id"] < 3]
    first, second = (row["offsets"] for row in sorted(rows, key=lambda row: row["batch_id"]))
    ledger, compounds = copy.read("batch_ledger"), copy.read("compound_events")
    append_frame(copy, "batch_ledger", ledger.where("batch_id = 1 AND step = 'published'"))
    # The second batch planned one offset of each partition again that the first had.
    shift_second_plan(copy, -1)
    row = one(copy, "compound_events", lambda row: row["user1"] == "alone2")
    twice = compounds.where(f"pair_id = '{row['pair_id']}'")
    append_frame(copy, "compound_events", twice)
    answer = found(copy)
    again = [
        f"{one['topic']}-{one['partition']}:{one['until_offset']}-{two['from_offset'] - 1} before batch 2"
        for one, two in zip(first, second, strict=True)
    ]
    assert answer.pop(Finding.ROWS_NOT_COUNTED) == [
        f"batch 2: {22 + len(again)} offsets planned, 0 of them gaps, 22 raw rows"
    ]
    assert answer == {
        Finding.OFFSETS_TWICE: sorted(again),
        Finding.STEP_TWICE: ["batch 1 published"],
        Finding.TWO_OUTCOMES: [f"{place(left_source(row))} in 2 x compound_events"],
        Finding.COMPOUND_TWICE: [f"{row['pair_id']} revision 0 of batch 2"],
    }


def left_source(compound):
    return {name: compound[f"left_{name}"] for name in ("topic", "partition", "offset")}


@pytest.mark.long
def test_the_command_fails_by_its_status(copy, pipeline, broker, tmp_path):
    environment = project_environment() | {VARIABLE: json.dumps({"bootstrap.servers": broker.bootstrap})}
    command = [
        sys.executable,
        "-m",
        "spark_jobs.reconcile",
        "--pipeline",
        str(yaml_of(pipeline, tmp_path)),
        "--warehouse",
        copy.root,
    ]

    delete_rows(copy, "rejected_events", "batch_id = 1")
    damaged = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert damaged.returncode == 1
    assert damaged.stderr.splitlines()[-1].startswith(
        "error: pipeline reconciled does not add up: 1 accepted records in neither compound_events nor rejected_events nor "
        "open_events; 1 records with a problem that are not in rejected_events"
    )


def test_what_the_topics_no_longer_have_is_told_and_not_counted_as_lost(copy, broker, pipeline):
    # The others before have read these topics whole.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [TopicPartition(pipeline.left.topic, 0, 3), TopicPartition(pipeline.output_topic, 1, 2)]
    for removed in admin.delete_records(places).values():
        removed.result(timeout=20)
    answer = reconcile.main(copy)
    assert answer.offenders == []
    assert answer.counts["… no longer on the input topics"] == 3
    assert answer.counts["… no longer on it (retention, or another topic)"] == 2


def test_compounds_missing_doubled_changed_misplaced_and_unknown_on_the_topic(copy, broker, pipeline, producer):
    published = [m for m in consume(broker.bootstrap, pipeline.output_topic) if m["value"]["user1"].startswith("u")]
    batch_of = {row["pair_id"]: row["batch_id"] for row in table_rows(copy, "compound_events")}
    doubled, changed = sorted((m for m in published if batch_of[m["pair-id"]] == 2), key=lambda m: m["pair-id"])[:2]

    def send(message, pair_id, value, partition):
        headers = {"pair-id": pair_id, "revision": "0", "kind": "pair", "op": "upsert"}
        producer.produce(pipeline.output_topic, key=message["key"], value=value, headers=headers, partition=partition)

    text = json.dumps(doubled["value"], separators=(",", ":"), ensure_ascii=False)
    send(doubled, doubled["pair-id"], text.replace('{"batch":2}', '{"batch": 2}'), 1 - doubled["partition"])
    send(changed, changed["pair-id"], b"{}", changed["partition"])
    send(doubled, "reconciled.metrics-9-9", text, 0)
    send(doubled, "reconciledXmetrics-0-1", text, 0)
    producer.flush(20)
    missing = "reconciled.metrics-7-7"
    rows = table_rows(copy, "compound_events")
    added = {**rows[0], **dict.fromkeys(("left_offset", "right_offset")), "pair_id": missing, "batch_id": 2}
    schema = copy.read("compound_events").schema
    frame = copy.spark.createDataFrame([tuple(added[name] for name in schema.names)], schema)
    append_frame(copy, "compound_events", frame)

    answer = reconcile.main(copy)
    assert {offenders.finding: offenders.first for offenders in answer.offenders} == {
        Finding.NOT_SENT: [f"{missing} revision 0 of batch 2"],
        Finding.SENT_TWICE: sorted(f"{m['pair-id']} revision 0 of batch 2" for m in (doubled, changed)),
        Finding.SENT_ELSEWHERE: [f"{doubled['pair-id']} revision 0 of batch 2"],
        Finding.SENT_OTHERWISE: [f"{changed['pair-id']} revision 0 of batch 2"],
        Finding.SENT_UNKNOWN: ["reconciled.metrics-9-9 revision 0"],
    }
    assert answer.counts["messages of others"] == 1
    with pytest.raises(
        NeedsOperator, match=r"1 compounds that are not on the output topic; 2 compounds that are on the output"
    ):
        fail_if_any(pipeline.name, answer.offenders)
    report = report_text(pipeline.name, pipeline.output_topic, answer)
    assert missing in report and Counter(report.split())["exactly"] == 0
