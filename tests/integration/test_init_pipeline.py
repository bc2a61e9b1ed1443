"""From two topics that nobody described to a pipeline file, and on to pairs, with a real broker and real tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from include.config.pipeline_file import load_pipeline
from spark_jobs import pair_events
from spark_jobs.kafka.newest import read_newest
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS
from tests.helpers.all_stages import land
from tests.helpers.timeline import ROOT
from tests.helpers.worlds import APART, WORLDS, Sent, body, records
from tests.unit.test_doc_examples import code_blocks
from tests.unit.test_docs import README

pytestmark = pytest.mark.integration


@pytest.fixture
def produce(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def all_of(topic: str, sent: list[Sent]) -> None:
        for number, each in enumerate(sent):
            value, headers = body(each.value), list(each.headers)
            producer.produce(topic, value, each.key, number % PARTITIONS, timestamp=each.timestamp, headers=headers)
        assert producer.flush(30) == 0

    return all_of


def test_a_written_file_pairs_what_it_says(pipeline, warehouse, produce, broker, tmp_path):
    left, right, truth = records(WORLDS["different names"])
    produce(pipeline.left.topic, left)
    produce(pipeline.right.topic, right)
    file = tmp_path / f"{pipeline.name}.yaml"
    (script,) = (
        text for text in code_blocks(README.read_text().replace("\n   ", "\n"), "bash") if "include.init_pipeline" in text
    )
    names = {
        "analyticsTopic": pipeline.left.topic,
        "metricsTopic": pipeline.right.topic,
        "outputTopic": pipeline.output_topic,
    }
    names |= {".venv/bin/python": sys.executable, "proposed.yaml": str(file), "127.0.0.1:9092": broker.bootstrap}
    for name, mine in names.items():
        script = script.replace(name, mine)
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(file.read_text())
    mine = Warehouse(warehouse.root, load_pipeline(file), warehouse.spark)
    assert land(mine)["landed"] == len(left) + len(right)
    counts = pair_events.main(mine)
    assert counts["pair"] / len(left) == pytest.approx(truth[0], abs=0.01)
    assert f"{counts['pair']} pair" in done.stdout
    rehearse = [
        sys.executable,
        "-m",
        "spark_jobs.rehearse_pairing",
        "--pipeline",
        str(file),
        "--from-topics",
        "--newest",
        "5000",
    ]
    played = subprocess.run(rehearse, cwd=ROOT, capture_output=True, text=True)
    ledger = json.loads(played.stdout.splitlines()[-1])
    assert (ledger["landed"], ledger["pair"]) == (len(left) + len(right), counts["pair"])
    # It read as a member of no group, and committed nothing.
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "event-pairing.landing"}) as consumer:
        places = [
            TopicPartition(topic, number) for topic in (pipeline.left.topic, pipeline.right.topic) for number in range(2)
        ]
        assert {place.offset for place in consumer.committed(places, 20)} == {-1001}
    again = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (2, "") and "is there already; --force overwrites it" in again.stderr


def test_topics_that_share_nothing_are_one_line_and_a_broker_may_be_given_by_its_address(pipeline, produce, broker):
    left, right, _ = records(replace(APART["strangers"], calls=50))
    produce(pipeline.left.topic, left)
    produce(pipeline.right.topic, right)
    topics = ["--left", pipeline.left.topic, "--right", pipeline.right.topic, "--bootstrap", broker.bootstrap]
    environment = {**os.environ, "PAIRING_KAFKA": "{}"}
    ask = [sys.executable, "-m", "include.init_pipeline", *topics]
    done = subprocess.run(ask, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: no field of one topic has values of the other (looked at")


def test_the_newest_records_of_all_partitions_and_no_older_ones(pipeline, produce, broker):
    settings, topic = {"bootstrap.servers": broker.bootstrap}, pipeline.left.topic
    produce(topic, [Sent({"n": number}, 1_000 + number) for number in range(40)])
    _, (newest, empty) = read_newest(settings, [topic, pipeline.right.topic], 10)
    assert sorted(json.loads(value)["n"] for value in newest.records["value"].to_pylist()) == list(range(30, 40))
    assert (newest.is_whole, empty.is_whole, empty.records.num_rows) == (False, True, 0)
    _, (since,) = read_newest(settings, [topic], 1_000, since=1_036)
    assert sorted(since.records["record_timestamp"].to_pylist()) == [1_036, 1_037, 1_038, 1_039]
    _, (none,) = read_newest(settings, [topic], 1_000, since=2_000)
    assert none.records.num_rows == 0


def test_large_records_are_fewer(pipeline, produce, broker, monkeypatch):
    monkeypatch.setattr("spark_jobs.kafka.newest._MOST_BYTES", 100_000)
    topic = pipeline.left.topic
    produce(topic, [Sent({"n": number, "x": "x" * 10_000}, 1_000) for number in range(40)])
    _, (newest,) = read_newest({"bootstrap.servers": broker.bootstrap}, [topic], 32)
    assert sorted(json.loads(value)["n"] for value in newest.records["value"].to_pylist()) == list(range(32, 40))
