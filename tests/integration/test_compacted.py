"""A compacted output topic, really compacted by a real broker: judged by the rules of compaction, by the report and by reconcile."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from include.local.broker import create_topics
from spark_jobs import pair_events, publish_compounds, reconcile, replay_interval, report_quality
from spark_jobs.kafka import output_topic
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.quality import delivery, reconcile_scope
from spark_jobs.quality import reconcile as reconciling
from spark_jobs.quality.checks import Finding
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.stages.report import BrokenBatch
from spark_jobs.tables.records import Window
from tests.helpers import stream_clock
from tests.helpers.all_stages import land
from tests.helpers.reading import consume
from tests.helpers.stream_clock import run
from tests.integration.test_quality import metrics_of, page_of
from tests.integration.test_reconcile import one

pytestmark = pytest.mark.integration

begun, send = stream_clock.begun, stream_clock.send
# Whatever is written can be compacted at once, behind the segment that is being written to.
AT_ONCE = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "100", "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "600000",
}  # fmt: skip
CALLS_OF_X = 6


@pytest.fixture
def pipeline(broker, request, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    from tests.conftest import fresh_pipeline

    mine = fresh_pipeline(request.node, clock="stream_time", tolerance_ms=100, gap_ms=200, grace_ms=500)
    create_topics(broker.bootstrap, {mine.left.topic: 1, mine.right.topic: 1}, {"retention.ms": "-1"})
    create_topics(broker.bootstrap, {mine.output_topic: 2}, AT_ONCE)
    return mine


@pytest.fixture
def published(warehouse, send):
    """Six calls of user x, one of y, each an event of either side, published in one batch."""
    times = range(0, CALLS_OF_X * 1_000, 1_000)
    send(" ".join(f"a{at}:x m{at}:x" for at in times) + " a0:y m0:y a9000:tick m9000:tick")
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return warehouse


def compact(broker, topic, there):
    """Writes on until the segments before are closed, and waits until the cleaner has left so many messages."""
    deadline = time.monotonic() + 90
    while True:
        time.sleep(0.2)
        # A key each time the same, so that these are compacted, too.
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition in (0, 1):
            producer.produce(
                topic, key="filler", value="0", headers={"pair-id": "filler", "revision": "0"}, partition=partition
            )
        assert producer.flush(20) == 0
        left = [message for message in consume(broker.bootstrap, topic) if message["pair-id"] != "filler"]
        if len(left) == there:
            return left
        assert time.monotonic() < deadline, f"the cleaner has left {len(left)} messages"
        time.sleep(1)


def alter(broker, topic, **changes):
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in changes.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    # Held, for its answers end with it.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


@pytest.mark.long
def test_what_compaction_removed_is_no_loss(published, broker, pipeline):
    left = compact(broker, pipeline.output_topic, 2)
    assert sorted(message["value"]["user1"] for message in left) == ["x", "y"]
    assert report_quality.main(published)["batches"] == 1
    metrics = metrics_of(published, 1)
    names = ("due_on_topic", "on_topic", "replaced_on_topic", "delivery_difference")
    assert [metrics[name] for name in names] == [CALLS_OF_X + 1, 2, CALLS_OF_X - 1, 0]
    answer = reconcile.main(published)
    assert (answer.offenders, answer.unknowable) == ([], "")
    assert answer.counts["… no longer on it (a later message of the key, on a compacted topic)"] == CALLS_OF_X - 1


@pytest.mark.long
@pytest.mark.parametrize("without_spark", ["0", "250000"])
def test_a_pair_stays_that_takes_the_place_of_an_orphan(
    without_spark, published, send, begun, broker, pipeline, monkeypatch
):
    monkeypatch.setenv(FEW_VARIABLE, without_spark)
    send("m11050:z a13000:tick m13000:tick")
    run(published)
    # Its partner comes late, and lies before it: so the pair has another id and an earlier time than the orphan.
    send("a11000:z a15000:tick m15000:tick")
    run(published)
    assert replay_interval.main(published, Window(begun + 10_000, begun + 12_000))["retracted"] == 1
    publish_compounds.main(published)
    # x, y, z and two of tick.
    left = {message["key"]: message["value"] for message in compact(broker, pipeline.output_topic, 4)}
    assert (left["z-v"]["analytics"], left["z-v"]["metrics"]) == ("a11000:z", "m11050:z")
    report_quality.main(published)
    assert reconcile.main(published).offenders == []


def tombstone(broker, topic, user):
    (message,) = {m["partition"]: m for m in consume(broker.bootstrap, topic) if m["key"] == f"{user}-v"}.values()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    headers = {"pair-id": "stranger", "revision": "0"}
    producer.produce(topic, key=f"{user}-v", value=None, headers=headers, partition=message["partition"])
    assert producer.flush(20) == 0


def lose_the_last_of_y(warehouse, broker, pipeline):
    """As if it had never been sent: a tombstone takes it, and is gone soon after."""
    tombstone(broker, pipeline.output_topic, "y")
    alter(broker, pipeline.output_topic, delete_retention_ms="0")
    left = compact(broker, pipeline.output_topic, 1)
    alter(broker, pipeline.output_topic, delete_retention_ms="600000")
    return left


@pytest.mark.long
def test_a_last_message_that_is_gone_is_a_loss(published, broker, pipeline):
    (left,) = lose_the_last_of_y(published, broker, pipeline)
    assert left["value"]["user1"] == "x"
    with pytest.raises(BrokenBatch, match=r"delivery_difference is 1\.0, allowed 0 to 0"):
        report_quality.main(published)
    (found,) = reconcile.main(published).offenders
    y = one(published, "compound_events", lambda row: row["user1"] == "y")
    assert (found.finding, found.number) == (Finding.NOT_SENT, 1) and found.first[0].startswith(y["pair_id"])


@pytest.mark.long
def test_a_last_message_that_a_tombstone_may_have_taken_is_not_judgeable(published, broker, pipeline):
    lose_the_last_of_y(published, broker, pipeline)
    # By now the published batch is older than tombstones become.
    alter(broker, pipeline.output_topic, delete_retention_ms="1000")
    assert report_quality.main(published)["batches"] == 1
    metrics = metrics_of(published, 1)
    assert metrics["delivery_not_judged"] == NotJudged.TOMBSTONES and "delivery_difference" not in metrics
    assert "not judgeable, because the topic is compacted, and tombstones" in page_of(published, "batch-1")
    answer = reconcile.main(published)
    assert answer.offenders == [] and answer.counts["… not on it, and not judgeable"] == 1
    said = reconciling.report_text(pipeline.name, pipeline.output_topic, answer).splitlines()[-1]
    assert "1 compounds are not judgeable, because" in said and "delete.retention.ms of 1,000" in said


@pytest.mark.long
def test_a_tombstone_that_is_there_explains_what_it_took(published, broker, pipeline):
    tombstone(broker, pipeline.output_topic, "y")
    compact(broker, pipeline.output_topic, 2)
    assert report_quality.main(published)["batches"] == 1
    assert metrics_of(published, 1)["replaced_on_topic"] == CALLS_OF_X
    assert reconcile.main(published).offenders == []


@pytest.mark.long
def test_what_was_never_sent_is_found_on_a_compacted_topic_too(published, broker, pipeline):
    compact(broker, pipeline.output_topic, 2)
    headers = {"pair-id": f"{pipeline.left.topic}-0-99", "revision": "0"}
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(pipeline.output_topic, key="z-v", value="{}", headers=headers)
    assert producer.flush(20) == 0
    assert [found.finding for found in reconcile.main(published).offenders] == [Finding.SENT_UNKNOWN]


def test_what_retention_removed_is_not_judgeable(published, broker, pipeline):
    # The broker lets nobody delete records of a topic whose policy is compaction alone.
    alter(broker, pipeline.output_topic, cleanup_policy="compact,delete")
    places = [TopicPartition(pipeline.output_topic, number, 1) for number in (0, 1)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.delete_records(places).values():
        answer.result(timeout=20)
    assert report_quality.main(published)["batches"] == 1
    assert metrics_of(published, 1)["delivery_not_judged"] == NotJudged.RETENTION
    assert "not judgeable, because the topic&#39;s retention has removed a part of them" in page_of(published, "batch-1")


@pytest.mark.long
def test_without_the_right_to_see_the_policy_it_is_not_judgeable(published, broker, pipeline, monkeypatch):
    compact(broker, pipeline.output_topic, 2)
    for module in (delivery, reconcile_scope):
        monkeypatch.setattr(module, "cleanup_of", lambda *_: output_topic.Cleanup(None))
    assert report_quality.main(published)["batches"] == 1
    assert "the right DescribeConfigs on it" in page_of(published, "batch-1")
    answer = reconcile.main(published)
    assert answer.offenders == [] and f"--operation DescribeConfigs --topic {pipeline.output_topic}" in answer.unknowable
