"""The two sides and the output on three Kafka clusters: the whole way, and what is said when one of them is away."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from include.airflow import triggers
from include.airflow.triggers import RecordsWaiting
from include.local.broker import LocalBroker, create_topics
from include.local.process import free_port
from spark_jobs import (
    check_pipelines,
    land_events,
    pair_events,
    publish_compounds,
    reconcile,
    replay_interval,
    report_quality,
)
from spark_jobs.kafka import offsets
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import VARIABLE, BrokerProblem, kafka_settings
from spark_jobs.tables.records import Window
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALLS, METRICS, OUTPUT = "kafka_calls", "kafka_metrics", "kafka_default"


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Two more brokers: of the right side, and of the output."""
    folder = tmp_path_factory.mktemp("clusters")
    with LocalBroker(folder / "right", free_port()) as right, LocalBroker(folder / "output", free_port()) as output:
        yield right, output


@pytest.fixture
def pipeline(pipeline, others, monkeypatch):
    """Its left topic is where it was; its other topics are not there."""
    right, output = others
    left = kafka_settings()
    topics = dict.fromkeys((pipeline.right.topic, pipeline.output_topic), PARTITIONS)
    mine = replace(
        pipeline,
        left=replace(pipeline.left, topic=f"{pipeline.name}-calls", connection=CALLS),
        right=replace(pipeline.right, connection=METRICS),
        consumer_group=f"{pipeline.name}.landed",
    )
    create_topics(left["bootstrap.servers"], {mine.left.topic: PARTITIONS})
    for topic, broker in zip(topics, others, strict=True):
        create_topics(broker.bootstrap, {topic: PARTITIONS})
    clusters = {
        CALLS: left,
        METRICS: {"bootstrap.servers": right.bootstrap},
        OUTPUT: {"bootstrap.servers": output.bootstrap},
    }
    monkeypatch.setenv(VARIABLE, json.dumps(clusters))
    return mine


@pytest.fixture
def send(pipeline):
    """send(side, users, ts)"""

    def send_all(side, users, ts):
        producer = Producer(
            {"bootstrap.servers": kafka_settings(side.connection)["bootstrap.servers"], "partitioner": "murmur2_random"}
        )
        for user in users:
            body = {"user1": user, "user2": "v", "timestamp": ts, side.payload: 1}
            producer.produce(side.topic, key=user, value=json.dumps(body))
        assert producer.flush(20) == 0

    return send_all


def shown(pipeline, side):
    """The offsets that lag tools see on the side's cluster."""
    settings = {
        "bootstrap.servers": kafka_settings(side.connection)["bootstrap.servers"],
        "group.id": pipeline.consumer_group,
    }
    with Consumer(settings) as consumer:
        places = [TopicPartition(side.topic, number) for number in range(PARTITIONS)]
        return sum(max(at.offset, 0) for at in consumer.committed(places, timeout=20))


def test_the_whole_way_over_three_clusters(warehouse, pipeline, send, others, tmp_path, monkeypatch, capsys):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    send(pipeline.left, "abcde", ago)
    send(pipeline.right, "abcd", ago + 50)
    monkeypatch.setattr(triggers, "kafka_settings", kafka_settings)
    watch = RecordsWaiting({side.topic: side.connection for side in pipeline.sides}, pipeline.consumer_group, [])
    assert retry_transient(watch._look)[1] is True
    land_events.main(warehouse, 1_000, ())
    assert retry_transient(watch._look)[1] is False
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["sent"] == 5
    published = consume(others[1].bootstrap, pipeline.output_topic)
    assert sorted(each["pair-id"] for each in published) == sorted(
        row["pair_id"] for row in table_rows(warehouse, "compound_events")
    )
    assert sum(each["kind"] == "pair" for each in published) == 4
    assert (shown(pipeline, pipeline.left), shown(pipeline, pipeline.right)) == (5, 4)
    assert report_quality.main(warehouse)["batches"] == 1
    # One more call of the time before is late; its replay makes a pair of the orphan.
    send(pipeline.right, "e", ago + 60)
    send(pipeline.left, "z", ago + 1_000_000)
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    assert replay_interval.main(warehouse, Window(ago, ago + 1))["changed"] == 1
    publish_compounds.main(warehouse)
    answer = reconcile.main(warehouse)
    messages = consume(others[1].bootstrap, pipeline.output_topic)
    assert not answer.offenders and answer.counts["… on the output topic"] == len(messages)
    assert sum(each["kind"] == "pair" for each in messages) == 5
    # What a file would change is asked of all clusters.
    file = yaml_of(pipeline, tmp_path)
    capsys.readouterr()
    assert check_pipelines.main(warehouse.root, [file], False) == 1
    assert f"topic {pipeline.left.topic} is not on the broker" in capsys.readouterr().err
    text = file.read_text().replace(f"topic: {pipeline.left.topic}", f"topic: {pipeline.left.topic}, connection: {CALLS}")
    file.write_text(
        text.replace(f"topic: {pipeline.right.topic}", f"topic: {pipeline.right.topic}, connection: {METRICS}")
        + f"consumer_group: {pipeline.consumer_group}\n"
    )
    assert check_pipelines.main(warehouse.root, [file], False) == 3
    assert "refused" not in capsys.readouterr().out


@pytest.mark.long
def test_a_cluster_that_is_away_is_named_and_nothing_is_lost(warehouse, pipeline, send, others, monkeypatch):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    send(pipeline.left, "ab", ago)
    send(pipeline.right, "ab", ago + 50)
    right, output = others
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 3.0)
    right.kill()
    with pytest.raises(BrokerProblem, match=rf"no answer from Kafka at {right.bootstrap} .* of {METRICS} right"):
        land_events.main(warehouse, 1_000, ())
    assert table_rows(warehouse, "batch_ledger") == []
    right.start()
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    output.kill()
    with pytest.raises(BrokerProblem, match=rf"no answer from Kafka at {output.bootstrap} .* of {OUTPUT} right"):
        publish_compounds.main(warehouse)
    output.start()
    assert publish_compounds.main(warehouse)["sent"] == 2
    assert not reconcile.main(warehouse).offenders
