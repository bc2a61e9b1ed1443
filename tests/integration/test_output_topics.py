"""Orphans on a topic of their own: each topic is right by itself, whatever is corrected, killed, added or lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from include.config.pipeline import Pipeline
from include.local.broker import create_topics
from include.local.machine import ROOT
from spark_jobs import pair_events, publish_compounds, reconcile, replay_interval, report_quality, rewind
from spark_jobs.changes.plan import plan_changes
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.quality.checks import Finding
from spark_jobs.quality.reconcile import report_text
from spark_jobs.story.from_tables import explain
from spark_jobs.tables import schemas
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLISHED, PUBLISHED_ORPHANS
from spark_jobs.tables.records import Window
from tests.helpers import stream_clock
from tests.helpers.all_stages import land, run_all
from tests.helpers.job_processes import Faults, wait_for
from tests.helpers.reading import consume, table_rows
from tests.helpers.tampering import append_frame
from tests.integration.test_quality import metrics_of

pytestmark = pytest.mark.integration

plain, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
# Of few messages, publishing needs Spark only to parse the declarations of the tables.
PUBLISHING = """
import json, sys
from pyspark.sql.types import StructType
from include.config.pipeline import Pipeline
from spark_jobs.stages.publish import publish_batches
from spark_jobs.tables import schemas
from spark_jobs.tables.warehouse import Warehouse

root, pipeline, columns = sys.argv[1], Pipeline.from_json(sys.argv[2]), json.loads(sys.argv[3])
schemas._columns = lambda declaration: StructType.fromJson(json.loads(columns[declaration]))
publish_batches(Warehouse(root, pipeline, None))
"""
OF_ONE_TOPIC = [point for point in FAULT_POINTS["publish_compounds"] if point.startswith(("publisher", "transaction"))]


@pytest.fixture
def pipeline(broker, plain) -> Pipeline:
    """That of `stream_clock`, with a topic for orphans that has another number of partitions."""
    orphans = f"{plain.name}-orphans"
    create_topics(broker.bootstrap, {orphans: 3}, {"retention.ms": "-1"})
    return replace(plain, output_orphans_topic=orphans)


@pytest.fixture
def state(warehouse, broker):
    """What a consumer of one topic has, in words: `pair a0:x m50:x`, sorted. The largest revision of a pair_id holds."""

    def on(topic):
        newest = {}
        for message in consume(broker.bootstrap, topic):
            revision = int(message["revision"])
            assert revision > newest.get(message["pair-id"], (-1,))[0], message
            assert (message["op"] == "retract") == (message["value"] is None)
            newest[message["pair-id"]] = revision, message
        there = [message for _, message in newest.values() if message["op"] == "upsert"]
        words = ((each["kind"], each["value"]["analytics"], each["value"]["metrics"]) for each in there)
        return sorted(" ".join(filter(None, said)) for said in words)

    return lambda: (on(warehouse.pipeline.output_topic), on(warehouse.pipeline.output_orphans_topic))


def delivery(warehouse, batch_id):
    """What the report with this batch has read back, as numbers."""
    metrics = metrics_of(warehouse, batch_id)
    return tuple(metrics[name] for name in ("due_on_topic", "on_topic", "delivery_difference"))


@pytest.mark.long
def test_each_topic_is_right_when_orphans_become_pairs_and_the_other_way_round(warehouse, send, begun, broker, state):
    # x and z lack the right side, y the left one; their partners come late.
    send("a0:x m300:y a600:z a900:p m910:p a2000:tick m2000:tick")
    run_all(warehouse)
    assert delivery(warehouse, 1) == (4, 4, 0)
    assert state() == (["pair a900:p m910:p"], ["left_only a0:x", "left_only a600:z", "right_only m300:y"])
    send("m50:x a350:y a4000:tick m4000:tick")
    run_all(warehouse)
    pairs = ["pair a2000:tick m2000:tick", "pair a900:p m910:p"]
    assert state() == (pairs, ["left_only a0:x", "left_only a600:z", "right_only m300:y"])

    replay_interval.main(warehouse, Window(begun, begun + 1000))
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    # Two upserts and a retraction in the table, and a retraction more because x has moved.
    assert delivery(warehouse, 3) == (4, 4, 0)
    assert state() == (sorted([*pairs, "pair a0:x m50:x", "pair a350:y m300:y"]), ["left_only a600:z"])
    steps = {row.step: row for row in Ledger(warehouse).rows(3, 3)}
    counts = [steps[step].published.flat() for step in (PUBLISHED, PUBLISHED_ORPHANS)]
    assert counts == [{"compounds": 2}, {"compounds": 1, "withdrawn": 1}]
    x = [m for m in consume(broker.bootstrap, warehouse.pipeline.output_orphans_topic) if m["key"] == "x-v"]
    assert [(m["revision"], m["kind"], m["op"], m["value"] is None) for m in x] == [
        ("0", "left_only", "upsert", False), ("1", "left_only", "retract", True)
    ]  # fmt: skip

    # Back to before the partners were known.
    rewind.main(warehouse, 1)
    publish_compounds.main(warehouse)
    assert state() == (["pair a900:p m910:p"], ["left_only a0:x", "left_only a600:z", "right_only m300:y"])
    run_all(warehouse)
    assert delivery(warehouse, 5)[2] == 0
    assert state()[0] == pairs
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert report_text("p", "out", answer).endswith(
        f"that out and {warehouse.pipeline.output_orphans_topic} can still have are on them exactly once."
    )
    told = "\n".join(explain(warehouse, ("x", "v")))
    assert "not on" not in told
    output, orphans = warehouse.pipeline.output_topics
    (moved,) = (line for line in told.splitlines() if line.startswith("  revision 1, pair"))
    assert f"on {output}-" in moved and f" and on {orphans}-" in moved


@pytest.mark.long
def test_a_topic_for_orphans_that_comes_later(warehouse, send, begun, broker, state):
    now = warehouse
    before = replace(now, pipeline=replace(now.pipeline, output_orphans_topic=None))
    send("a0:x m300:y a900:p m910:p a2000:tick m2000:tick")
    run_all(before)
    (change,) = plan_changes(now.root, now.pipeline).changes
    assert (change.change.setting, change.since[:19]) == ("output.orphans_topic", "from the next batch")
    send("m50:x a350:y a3000:w a5000:tick m5000:tick")
    # A batch that is planned with the old settings is published by these.
    land(before)
    pair_events.main(now)
    publish_compounds.main(now)
    assert not consume(broker.bootstrap, now.pipeline.output_orphans_topic)
    assert "left_only a0:x" in state()[0]
    send("a6000:u a9000:tick m9000:tick")
    run_all(now)
    assert delivery(now, 3)[2] == 0
    output = ["left_only a0:x", "left_only a3000:w", "right_only m300:y"]
    pairs = ["pair a2000:tick m2000:tick", "pair a5000:tick m5000:tick", "pair a900:p m910:p"]
    assert state() == (sorted([*output, *pairs]), ["left_only a6000:u"])

    # What became a pair is taken back where it was, which is the output topic.
    replay_interval.main(now, Window(begun, begun + 1000))
    assert publish_compounds.main(now)["sent"] == 3
    assert state() == (
        sorted(["left_only a3000:w", "pair a0:x m50:x", "pair a350:y m300:y", *pairs]),
        ["left_only a6000:u"],
    )
    # One of the old orphans, taken back: it moves, for its kind is at home on the other topic now.
    rewind.main(now, 1)
    publish_compounds.main(now)
    assert state() == (["pair a900:p m910:p"], ["left_only a0:x", "right_only m300:y"])
    assert reconcile.main(now).offenders == []

    # And without it again: its orphans stay there.
    send("a12000:tick m12000:tick")
    run_all(before)
    assert state()[1] == ["left_only a0:x", "right_only m300:y"]
    run_all(now)
    send("a15000:tick m15000:tick")
    run_all(now)
    assert reconcile.main(now).offenders == []
    assert "left_only a6000:u" in state()[0]


@pytest.mark.long
def test_reconcile_finds_what_is_missing_or_too_much_on_each_topic(warehouse, send, broker):
    send("a0:x a300:y m310:y a2000:tick m2000:tick")
    run_all(warehouse)
    producer, topics = Producer({"bootstrap.servers": broker.bootstrap}), warehouse.pipeline.output_topics
    source = f"{warehouse.pipeline.left.topic}-0"
    for topic, user, offset in zip(topics, "yx", (1, 0), strict=True):
        for pair_id in (f"{source}-{offset}", f"{source}-99"):
            headers = {"pair-id": pair_id, "revision": "0", "kind": "pair", "op": "upsert"}
            producer.produce(topic, key=f"{user}-v", value=b"{}", headers=headers)
    assert producer.flush(20) == 0
    rows = table_rows(warehouse, "compound_events")
    for row, at in zip(sorted(rows, key=lambda row: row["kind"]), (50, 51), strict=False):
        copy = warehouse.spark.createDataFrame(
            [row | {"pair_id": f"{source}-{at}"}], warehouse.read("compound_events").schema
        )
        append_frame(warehouse, "compound_events", copy)
    found = {each.finding: each.first for each in reconcile.main(warehouse).offenders}
    orphans = f" ({topics[1]})"
    assert found[Finding.NOT_SENT] == [f"{source}-50 revision 0 of batch 1{orphans}", f"{source}-51 revision 0 of batch 1"]
    assert found[Finding.SENT_TWICE] == [f"{source}-0 revision 0 of batch 1{orphans}", f"{source}-1 revision 0 of batch 1"]
    assert found[Finding.SENT_UNKNOWN] == [f"{source}-99 revision 0", f"{source}-99 revision 0{orphans}"]


def test_a_topic_that_is_not_there_is_named(warehouse, send):
    elsewhere = replace(warehouse, pipeline=replace(warehouse.pipeline, output_orphans_topic="nowhere"))
    send("a0:x a2000:tick m2000:tick")
    land(elsewhere)
    pair_events.main(elsewhere)
    for job in (publish_compounds.main, lambda each: plan_changes(each.root, each.pipeline)):
        with pytest.raises(NeedsOperator, match="topic nowhere is not on the broker"):
            job(elsewhere)


@pytest.fixture
def publishing(warehouse, tmp_path):
    """publishing(point) publishes in a process of its own, and kills it at the point; without one it has to come to its end."""
    (tmp_path / "faults").mkdir()
    faults = Faults(tmp_path / "faults")
    columns = {text: schemas._columns(text).json() for text in schemas.schemas(warehouse.pipeline).values()}
    command = [sys.executable, "-c", PUBLISHING, warehouse.root, warehouse.pipeline.to_json(), json.dumps(columns)]
    environment = os.environ | {"PAIRING_FAULT_DIR": str(faults.folder)}

    def run(point=None):
        if point:
            faults.arm(point)
        with (tmp_path / "log").open("w+") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            if point:
                wait_for(lambda: faults.is_reached(point) or process.poll() is not None, point)
                assert faults.is_reached(point), (tmp_path / "log").read_text()
                process.send_signal(signal.SIGKILL)
                faults.disarm(point)
            assert process.wait(120) == (-signal.SIGKILL if point else 0), (tmp_path / "log").read_text()

    return run


def traffic(at, users=12):
    """As many pairs as orphans."""
    pairs = " ".join(f"a{at}:p{number} m{at}:p{number}" for number in range(users))
    return f"{pairs} {' '.join(f'a{at}:o{number}' for number in range(users))} a{at + 3000}:tick m{at + 3000}:tick"


def check_published(warehouse, broker, pairs, orphans):
    for topic, kind, number in zip(warehouse.pipeline.output_topics, ("pair", "left_only"), (pairs, orphans), strict=True):
        messages = Counter((m["pair-id"], m["kind"]) for m in consume(broker.bootstrap, topic))
        assert (len(messages), messages.total(), {kind for _, kind in messages}) == (number, number, {kind}), topic
    assert reconcile.main(warehouse).offenders == []


def kill_until_pairs_are_sent(warehouse, broker, publishing, pairs):
    """Nothing of the orphans is sent then: a publisher that stands at a partition of the output topic does not go on to them."""
    while len(consume(broker.bootstrap, warehouse.pipeline.output_topic)) < pairs:
        publishing("transaction_committed")


def paired(warehouse, send, number):
    """A batch that waits to be published; returns how many pairs there are with it."""
    send(traffic(number * 3000))
    land(warehouse)
    pair_events.main(warehouse)
    return 12 * (number + 1) + number


@pytest.mark.long
def test_publishing_to_two_topics_is_killed(warehouse, send, broker, publishing):
    paired(warehouse, send, 0)
    # Then every partition has a position.
    publish_compounds.main(warehouse)
    pairs = paired(warehouse, send, 1)
    output, orphans = warehouse.pipeline.output_topics
    kill_until_pairs_are_sent(warehouse, broker, publishing, pairs)
    assert len(consume(broker.bootstrap, orphans)) == 12
    publishing("transaction_committed")
    assert len(consume(broker.bootstrap, output)) == pairs
    assert len(consume(broker.bootstrap, orphans)) > 12
    publishing("before_published")
    publishing()
    check_published(warehouse, broker, pairs, 24)


@pytest.mark.long
def test_publishing_is_killed_at_every_step_of_each_topic(warehouse, send, broker, publishing):
    paired(warehouse, send, 0)
    publish_compounds.main(warehouse)
    for number, point in enumerate(OF_ONE_TOPIC, 1):
        pairs = paired(warehouse, send, number)
        publishing(point)
        kill_until_pairs_are_sent(warehouse, broker, publishing, pairs)
        publishing(point)
        publishing()
    for point in ("before_publishing", "after_publishing", "before_published", "after_published"):
        number += 1
        pairs = paired(warehouse, send, number)
        publishing(point)
        publishing()
    check_published(warehouse, broker, pairs, 12 * (number + 1))
