"""Rejected records on a topic of their own: each once, as it came, whatever is killed, rewound, added or lost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from include.config.pipeline import Pipeline
from include.local.broker import create_topics
from spark_jobs import pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.changes.plan import plan_changes
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.quality.checks import Finding
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.tables.ledger import PUBLISHED_REJECTED, Ledger
from spark_jobs.tables.records import DeadLetterCounts
from tests.helpers import stream_clock
from tests.helpers.all_stages import land, run_all
from tests.helpers.reading import COMMITTED, _wait_for_markers, table_rows
from tests.helpers.tampering import delete_rows
from tests.integration import test_output_topics
from tests.integration.test_input_attack import send_header
from tests.integration.test_lost_positions import forget
from tests.integration.test_quality import metrics_of

pytestmark = pytest.mark.integration

plain, send, begun, publishing = (
    stream_clock.pipeline, stream_clock.send, stream_clock.begun, test_output_topics.publishing,
)  # fmt: skip
PARTITIONS = 3
OURS = ("reason", "topic", "partition", "offset", "timestamp", "batch", "pipeline")


@pytest.fixture
def pipeline(broker, plain) -> Pipeline:
    """That of `stream_clock`, with a topic for rejected records."""
    rejected = f"{plain.name}-rejected"
    create_topics(broker.bootstrap, {rejected: PARTITIONS}, {"retention.ms": "-1"})
    return replace(plain, output_rejected_topic=rejected)


def records(bootstrap, topic):
    """Every committed record of the topic, as the client gives it."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test-reader", "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    partitions = [TopicPartition(topic, number, 0) for number in reader.list_topics(topic, timeout=20).topics[topic].partitions]
    _wait_for_markers(bootstrap, partitions)
    reader.assign(partitions)
    found, at_end = [], 0
    while at_end < len(partitions):
        record = reader.poll(20)
        assert record is not None
        if record.error():
            at_end += 1
        else:
            found.append(record)
    reader.close()
    return found


def letters(warehouse, broker):
    """Place -> (reason, batch), of every dead letter."""
    found = []
    for record in records(broker.bootstrap, warehouse.pipeline.output_rejected_topic):
        ours = {name.removeprefix("__rejected."): value.decode() for name, value in record.headers()[-len(OURS) :]}
        assert tuple(ours) == OURS
        place = f"{ours['topic']}-{ours['partition']}-{ours['offset']}"
        found.append((place, ours["reason"], int(ours["batch"])))
    return sorted(found)


def rejected(warehouse):
    return sorted(
        (f"{row['topic']}-{row['partition']}-{row['offset']}", row["reason"], row["batch_id"])
        for row in table_rows(warehouse, "rejected_events")
    )


def delivered(warehouse, batch_id):
    """What the report with this batch has read back, as numbers."""
    metrics = metrics_of(warehouse, batch_id)
    return tuple(metrics[name] for name in ("dead_letters_due", "dead_letters_on_topic", "dead_letter_difference"))


def send_strange(broker, pipeline, begun):
    """Records that are rejected when they are landed: with and without key, value and headers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    twice = [("trace", b"\x00\xff"), ("trace", b"2"), ("none", None), ("__rejected.reason", b"of before"), ("empty", b"")]
    body = {"user1": "x", "user2": "v", "analytics": 1}
    for key, value, headers in (
        (b"\xfe\x00", b"{nope \xff", twice),
        (None, b"", None),
        (b"", None, [("only", b"1")]),
        (b"no-key", b'{"user1":"x"}', None),
        (None, json.dumps(body | {"timestamp": -1}).encode(), twice),
        (b"future", json.dumps(body | {"timestamp": begun + 10**9}).encode(), None),
    ):
        producer.produce(pipeline.left.topic, key=key, value=value, headers=headers, timestamp=begun + 7)
        assert producer.flush(20) == 0
    send_header(broker.bootstrap, pipeline.left.topic, b"b\xffd", b"\xfe", json.dumps(body | {"timestamp": begun}).encode())


@pytest.mark.parametrize("few", [True, False], ids=["here", "by Spark"])
def test_every_reason_arrives_as_the_record_came(few, warehouse, send, begun, broker, monkeypatch):
    if not few:
        monkeypatch.setenv(FEW_VARIABLE, "0")
    pipeline = warehouse.pipeline
    send_strange(broker, pipeline, begun)
    # An event stays open, and is rejected by the next batch, for another that was sent to a smaller offset of a new partition would be first.
    send("a0:x=1 a0:x=1 a2000:tick m2000:tick")
    run_all(warehouse)
    send("a10:late a4000:tick m4000:tick")
    run_all(warehouse)
    assert Counter(reason for _, reason, _ in letters(warehouse, broker)) == {
        "malformed_json": 3, "missing_key": 1, "bad_timestamp": 1, "future": 1, "bad_header": 1, "duplicate": 1, "late": 1,
    }  # fmt: skip
    assert letters(warehouse, broker) == rejected(warehouse)
    sources = {record.offset(): record for record in records(broker.bootstrap, pipeline.left.topic) if record}
    for letter in records(broker.bootstrap, pipeline.output_rejected_topic):
        ours = dict(letter.headers()[-len(OURS) :])
        source = sources[int(ours["__rejected.offset"])]
        assert (letter.key(), letter.value()) == (source.key(), source.value())
        # Those of a record with a bad header cannot be read.
        kept = [] if ours["__rejected.reason"] == b"bad_header" else source.headers() or []
        assert letter.headers()[: -len(OURS)] == kept
        assert ours["__rejected.timestamp"] == str(source.timestamp()[1]).encode()
        assert ours["__rejected.pipeline"] == pipeline.name.encode()
    assert delivered(warehouse, 1) == (8, 8, 0)
    assert delivered(warehouse, 2) == (1, 1, 0)
    row = next(row for row in Ledger(warehouse).rows(1, 1) if row.step == PUBLISHED_REJECTED)
    assert (row.dead_letters, row.published_to) == (DeadLetterCounts(dead_letters=8), pipeline.output_rejected_topic)
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert (answer.counts["dead letters to be sent"], answer.counts["… on the rejected topic"]) == (9, 9)
