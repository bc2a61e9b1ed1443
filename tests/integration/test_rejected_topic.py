"""Rejected records on a topic of their own: each once, as it came, whatever is killed, rewound, added or lost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from include.config.pipeline import Pipeline
from include.local.broker import create_topics
from spark_jobs import pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.changes.plan import plan_changes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.quality.checks import Finding
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.stages import send as send_stage
from spark_jobs.stages.report import BrokenBatch
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLISHED_REJECTED
from spark_jobs.tables.records import DeadLetterCounts
from tests.helpers import stream_clock
from tests.helpers.all_stages import land, run_all
from tests.helpers.reading import table_rows, wait_for_markers
from tests.helpers.tampering import append_frame, delete_rows
from tests.integration import test_output_topics
from tests.integration.test_input_attack import send_header
from tests.integration.test_lost_positions import forget
from tests.integration.test_quality import metrics_of

pytestmark = pytest.mark.integration

plain, send, begun, publishing = (
    stream_clock.pipeline, stream_clock.send, stream_clock.begun, test_output_topics.publishing,
)  # fmt: skip
OF_ONE_TOPIC = test_output_topics.OF_ONE_TOPIC
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
    partitions = [
        TopicPartition(topic, number, 0) for number in reader.list_topics(topic, timeout=20).topics[topic].partitions
    ]
    wait_for_markers(bootstrap, partitions)
    reader.assign(partitions)
    found, at_end = [], set()
    while len(at_end) < len(partitions):
        record = reader.poll(20)
        assert record is not None
        if record.error():
            at_end.add(record.partition())
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
        producer.produce(pipeline.left.topic, key=key, value=value, headers=headers, timestamp=begun + 7, partition=0)
        assert producer.flush(20) == 0
    send_header(broker.bootstrap, pipeline.left.topic, b"b\xffd", b"\xfe", json.dumps(body | {"timestamp": begun}).encode())


@pytest.fixture
def of_two(broker, pipeline, begun, send):
    """of_two("1d1900 0d1900"): left events of a topic that has two partitions, of user d at 1900 ms, to partition 1, and 0; with a header."""
    grow(AdminClient({"bootstrap.servers": broker.bootstrap}), pipeline.left.topic, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send_words(words):
        for word in words.split():
            body = {"user1": word[1], "user2": "v", "timestamp": begun + int(word[2:]), "analytics": 1}
            headers, key = [("from", word.encode())], f"{word[1]}-v"
            producer.produce(pipeline.left.topic, json.dumps(body), key, int(word[0]), headers=headers)
            assert producer.flush(20) == 0

    return send_words


def grow(admin, topic, partitions):
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(timeout=20)


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.long)], ids=["here", "by Spark"])
def test_every_reason_arrives_as_the_record_came(few, warehouse, send, of_two, begun, broker, monkeypatch):
    if not few:
        monkeypatch.setenv(FEW_VARIABLE, "0")
    pipeline = warehouse.pipeline
    send_strange(broker, pipeline, begun)
    of_two("0x0 0x0 1d1900 0t2000 1r2000")
    send("m2000:t")
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    # The first of d is open still. This one comes before it, for its partition does.
    of_two("0d1900 0l10 0u4000 1w4000")
    send("m4000:u")
    run_all(warehouse)
    assert Counter(reason for _, reason, _ in letters(warehouse, broker)) == {
        "malformed_json": 3, "missing_key": 1, "bad_timestamp": 1, "future": 1, "bad_header": 1, "duplicate": 2, "late": 1,
    }  # fmt: skip
    assert letters(warehouse, broker) == rejected(warehouse)
    sources = {(str(each.partition()), str(each.offset())): each for each in records(broker.bootstrap, pipeline.left.topic)}
    for letter in records(broker.bootstrap, pipeline.output_rejected_topic):
        headers = letter.headers()
        ours = {name.removeprefix("__rejected."): value.decode() for name, value in headers[-len(OURS) :]}
        source = sources[ours["partition"], ours["offset"]]
        assert (letter.key(), letter.value()) == (source.key(), source.value())
        # Those of a record with a bad header cannot be read.
        assert headers[: -len(OURS)] == ([] if ours["reason"] == "bad_header" else source.headers() or [])
        assert (ours["timestamp"], ours["pipeline"]) == (str(source.timestamp()[1]), pipeline.name)
    # Both batches.
    assert delivered(warehouse, 2) == (10, 10, 0)
    assert [steps.dead_letters for steps in Ledger(warehouse).rows(1, 2) if steps.step == PUBLISHED_REJECTED] == [
        DeadLetterCounts(dead_letters=8), DeadLetterCounts(dead_letters=2),
    ]  # fmt: skip
    answer = reconcile.main(warehouse)
    assert answer.offenders == []
    assert (answer.counts["dead letters to be sent"], answer.counts["… on the rejected topic"]) == (10, 10)


def pair(warehouse):
    land(warehouse)
    pair_events.main(warehouse)


def set_of_rejected(broker, pipeline, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.output_rejected_topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


@pytest.mark.long
def test_what_the_topic_does_not_take_is_named_and_a_compacted_topic_refused(warehouse, send, broker, pipeline):
    send("a:x m:y")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    # A header may be as large as a value.
    producer.produce(pipeline.left.topic, b"{nope", headers=[("large", b"x" * 3000)])
    assert producer.flush(20) == 0
    pair(warehouse)
    set_of_rejected(broker, pipeline, "cleanup.policy", "compact")
    refusal = f"the rejected topic {pipeline.output_rejected_topic} is compacted"
    with pytest.raises(NeedsOperator, match=refusal):
        publish_compounds.main(warehouse)
    with pytest.raises(NeedsOperator, match=refusal):
        plan_changes(warehouse.root, pipeline)
    set_of_rejected(broker, pipeline, "cleanup.policy", "delete")
    set_of_rejected(broker, pipeline, "max.message.bytes", "3000")
    with pytest.raises(
        NeedsOperator,
        match=rf"too large for {pipeline.output_rejected_topic} .*\(dead letters: 1\): {pipeline.left.topic}-0-1;",
    ):
        publish_compounds.main(warehouse)
    assert [place for place, *_ in letters(warehouse, broker)] == [
        f"{pipeline.left.topic}-0-0",
        f"{pipeline.right.topic}-0-0",
    ]
    report_quality.main(warehouse)
    assert delivered(warehouse, 1) == (2, 2, 0)


@pytest.mark.long
def test_a_topic_for_rejected_records_that_comes_later_and_goes_again(warehouse, send, broker):
    before = replace(warehouse, pipeline=replace(warehouse.pipeline, output_rejected_topic=None))
    send("a:x a2000:t m2000:t")
    run_all(before)
    (change,) = plan_changes(warehouse.root, warehouse.pipeline).changes
    assert (change.change.setting, change.since[:19]) == ("output.rejected_topic", "from the next batch")
    send("a:y")
    # A batch that is planned with the old settings is published by these.
    land(before)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    assert letters(warehouse, broker) == []
    report_quality.main(warehouse)
    assert "dead_letters_due" not in metrics_of(warehouse, 2)
    send("a:z")
    run_all(warehouse)
    assert delivered(warehouse, 3) == (1, 1, 0)
    send("a:z")
    run_all(before)
    send("a:z")
    run_all(warehouse)
    assert delivered(warehouse, 5) == (1, 1, 0)
    assert [batch for *_, batch in letters(warehouse, broker)] == [3, 5]
    # A record that only looks like a dead letter of this pipeline.
    producer, topic = Producer({"bootstrap.servers": broker.bootstrap}), warehouse.pipeline.output_rejected_topic
    strange = [("__rejected.pipeline", warehouse.pipeline.name.encode()), ("__rejected.batch", b"six")]
    producer.produce(topic, b"strange", headers=strange)
    assert producer.flush(20) == 0
    send("a:z")
    run_all(warehouse)
    assert delivered(warehouse, 6) == (1, 1, 0)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_a_topic_that_is_deleted_before_the_report_is_not_judged(warehouse, send, broker):
    before = replace(warehouse, pipeline=replace(warehouse.pipeline, output_rejected_topic=None))
    send("a:x")
    pair(warehouse)
    publish_compounds.main(warehouse)
    admin, topic = AdminClient({"bootstrap.servers": broker.bootstrap}), warehouse.pipeline.output_rejected_topic
    admin.delete_topics([topic])[topic].result(timeout=20)
    send("a:y")
    pair(before)
    publish_compounds.main(before)
    report_quality.main(before)
    assert metrics_of(warehouse, 2)["dead_letters_not_judged"] == NotJudged.GONE
    assert "dead_letter_difference" not in metrics_of(warehouse, 2)


@pytest.fixture
def half_sent(warehouse, broker, send, monkeypatch):
    """A second batch, whose compounds are sent, and of whose dead letters those of one partition; what was sent by then."""
    waiting(warehouse, send, 0)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    waiting(warehouse, send, 1)
    through = send_stage.publish_partition

    def die_behind_the_first(settings, run, partition, *others):
        if run.step == PUBLISHED_REJECTED and partition > 0:
            raise stream_clock.Killed
        return through(settings, run, partition, *others)

    with monkeypatch.context() as patched:
        patched.setattr(send_stage, "publish_partition", die_behind_the_first)
        with pytest.raises(stream_clock.Killed):
            publish_compounds.main(warehouse)
    sent = letters(warehouse, broker)
    assert 12 < len(sent) < 24
    return sent


def kill_until_compounds_are_sent(warehouse, broker, publishing, number):
    while len(records(broker.bootstrap, warehouse.pipeline.output_topic)) < number:
        publishing("transaction_committed")


def waiting(warehouse, send, number):
    """A batch that waits to be published, with 12 rejected records; returns how many compounds there are with it."""
    send(f"{test_output_topics.traffic(number * 3000)} {' '.join(f'a:u{user}' for user in range(12))}")
    pair(warehouse)
    return len(table_rows(warehouse, "compound_events"))


@pytest.mark.long
def test_publishing_is_killed_at_every_step_of_the_rejected_topic(warehouse, send, broker, publishing):
    waiting(warehouse, send, 0)
    publish_compounds.main(warehouse)
    for number, point in enumerate(OF_ONE_TOPIC, 1):
        compounds = waiting(warehouse, send, number)
        kill_until_compounds_are_sent(warehouse, broker, publishing, compounds)
        # Once: several partitions are sent at a time, so all may be through by the first kill.
        publishing(point)
        publishing()
        assert letters(warehouse, broker) == rejected(warehouse), point
    for point in ("before_publishing", "after_publishing", "before_published", "after_published"):
        number += 1
        waiting(warehouse, send, number)
        publishing(point)
        publishing()
    assert letters(warehouse, broker) == rejected(warehouse)
    assert len(rejected(warehouse)) == 12 * (number + 1)
    report_quality.main(warehouse)
    assert delivered(warehouse, number + 1) == (12 * (number + 1), 12 * (number + 1), 0)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True], ids=["half sent", "and its positions forgotten"])
def test_of_a_batch_that_is_given_up_half_sent_nothing_more_is_sent(lost, warehouse, half_sent, send, broker, pipeline):
    if lost:
        forget(AdminClient({"bootstrap.servers": broker.bootstrap}), pipeline)
    rewind.main(warehouse, 1)
    publish_compounds.main(warehouse)
    assert letters(warehouse, broker) == half_sent
    run_all(warehouse)
    # Those that were sent come again, with the number of the batch that reads them again.
    again = [each for each in letters(warehouse, broker) if each not in half_sent]
    assert {batch for *_, batch in again} == {4}
    assert sorted([*again, *(each for each in half_sent if each[2] == 1)]) == rejected(warehouse)
    assert delivered(warehouse, 4) == (12, 12, 0)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_positions_that_were_forgotten_are_read_from_the_dead_letters(warehouse, half_sent, broker, pipeline):
    forget(AdminClient({"bootstrap.servers": broker.bootstrap}), pipeline)
    publish_compounds.main(warehouse)
    assert letters(warehouse, broker) == rejected(warehouse)
    report_quality.main(warehouse)
    assert delivered(warehouse, 2) == (12, 12, 0)


@pytest.mark.long
def test_what_is_missing_or_there_twice_is_found(warehouse, send, broker, pipeline):
    send("a:x a:y")
    pair(warehouse)
    kept = table_rows(warehouse, "rejected_events")
    delete_rows(warehouse, "rejected_events")
    with pytest.raises(
        BrokenInvariant, match="batch 1: 2 records were rejected, but 0 are in rejected_events: nothing was sent"
    ):
        publish_compounds.main(warehouse)
    append_frame(
        warehouse, "rejected_events", warehouse.spark.createDataFrame(kept, warehouse.read("rejected_events").schema)
    )
    publish_compounds.main(warehouse)
    first, _ = records(broker.bootstrap, pipeline.output_rejected_topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(
        pipeline.output_rejected_topic, first.value(), first.key(), headers=first.headers(), partition=first.partition()
    )
    # Another pipeline may share the topic.
    others = [*first.headers()[:-1], ("__rejected.pipeline", b"other")]
    producer.produce(pipeline.output_rejected_topic, first.value(), first.key(), headers=others)
    assert producer.flush(20) == 0
    send("a:z")
    pair(warehouse)
    publish_compounds.main(warehouse)
    with pytest.raises(
        BrokenBatch, match="every rejected record was read back from the rejected topic once: dead_letter_difference is -1"
    ):
        report_quality.main(warehouse)
    found = {each.finding: each.first for each in reconcile.main(warehouse).offenders}
    assert found == {Finding.LETTERS_TWICE: ["batch 1: 3 dead letters of 2 records"]}
    append_frame(
        warehouse, "rejected_events", warehouse.spark.createDataFrame(kept[:1], warehouse.read("rejected_events").schema)
    )
    found = {each.finding: each.first for each in reconcile.main(warehouse).offenders}
    assert found[Finding.LETTERS_OTHERWISE] == ["batch 1: 3 dead letters were due, 2 are there"]
