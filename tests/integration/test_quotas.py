"""A broker that throttles its clients for a quota makes the jobs slow, and nothing else: they fail no more, lose nothing and double nothing."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections import Counter

import pytest
from confluent_kafka import Producer

from include.local.broker import LocalBroker
from include.local.machine import JARS, java
from include.local.process import free_port
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.kafka import offsets, records, transaction
from spark_jobs.kafka.records import Share, Span, read_shares
from spark_jobs.kafka.settings import VARIABLE, kafka_settings
from tests.conftest import PARTITIONS
from tests.helpers.reading import consume, table_rows
from tests.integration.test_publishing import assert_all_once, pair_made_up, publish_only

pytestmark = [pytest.mark.integration, pytest.mark.long]


class SwiftBroker(LocalBroker):
    """Judges a quota by the last two seconds, not ten, so that little is let through before it throttles."""

    def _configure(self):
        super()._configure()
        with (self.folder / "server.properties").open("a") as settings:
            settings.write("quota.window.num=3\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of these tests' own, with quotas of theirs."""
    with SwiftBroker(tmp_path_factory.mktemp("broker"), free_port()) as running:
        yield running


@pytest.fixture
def throttled(broker, monkeypatch):
    """throttled(bytes_a_second): all clients of the jobs together write and read no more; those of the test itself may."""

    def alter(*change):
        tool = [java(), "-cp", f"{JARS}/broker/*", "kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap]
        of_whom = ["--alter", "--entity-type", "clients", "--entity-name", "jobs"]
        subprocess.run([*tool, *of_whom, *change], check=True, capture_output=True)

    def throttle(bytes_a_second):
        alter("--add-config", f"producer_byte_rate={bytes_a_second},consumer_byte_rate={bytes_a_second}")
        # Uncompressed, and in small requests: both are counted as they are sent.
        settings = {"bootstrap.servers": broker.bootstrap, "client.id": "jobs", "compression.type": "none"}
        monkeypatch.setenv(VARIABLE, json.dumps(settings | {"batch.size": 20_000, "max.partition.fetch.bytes": 20_000}))

    yield throttle
    alter("--delete-config", "producer_byte_rate,consumer_byte_rate")


@pytest.fixture
def calls(broker, pipeline):
    """calls(number, bytes): both sides of so many calls that are long over, with a payload of that size each."""
    # Kafka never hands over a record batch that is larger than a quota's whole window.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "batch.size": 4_000})

    def send(number, size):
        ago = time.time_ns() // 1_000_000 - 3_600_000
        for user in range(number):
            for of in pipeline.sides:
                body = {"user1": f"u{user}", "user2": "v", "timestamp": ago, of.payload: secrets.token_hex(size // 2)}
                producer.produce(of.topic, json.dumps(body), f"u{user}-v")
        assert producer.flush(20) == 0

    return send


def timed(work):
    begun = time.monotonic()
    answer = work()
    return answer, time.monotonic() - begun


def test_quotas_slow_all_jobs_and_end_none(throttled, warehouse, broker, pipeline, calls):
    calls(400, 1_000)
    throttled(20_000)
    landed, landing_s = timed(lambda: land_events.main(warehouse, 1_000_000, ()))
    pair_events.main(warehouse)
    published, publishing_s = timed(lambda: publish_compounds.main(warehouse))
    assert (landed["landed"], published["sent"]) == (800, 400)
    # 400 KB of each side, and 800 KB of compounds.
    assert landing_s > 20 and publishing_s > 20
    assert report_quality.main(warehouse)["batches"] == 1
    assert not reconcile.main(warehouse).offenders
    sent = Counter(message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic))
    assert sent == Counter(row["pair_id"] for row in table_rows(warehouse, "compound_events"))
    assert set(sent.values()) == {1} and len(sent) == 400


def test_a_reader_waits_as_long_as_it_is_throttled(throttled, pipeline, calls, monkeypatch, capsys):
    calls(60, 1_000)
    throttled(8_000)
    monkeypatch.setattr(records, "ANSWER_WITHIN_S", 1.0)
    topic = pipeline.left.topic
    ends = offsets.ask_broker(kafka_settings(), [topic]).end
    read, seconds = timed(
        lambda: [
            sum(each.num_rows for each in read_shares(kafka_settings(), [Share(*place, Span(0, end))]))
            for place, end in ends.items()
        ]
    )
    assert read == list(ends.values()) and sum(read) == 60 and seconds > 2
    assert "throttles this client for a quota" in capsys.readouterr().err


def test_a_publisher_waits_as_long_as_it_is_throttled(throttled, warehouse, broker, monkeypatch):
    pair_made_up(warehouse, 1, dict.fromkeys(range(20), 1_000))
    # A request of 20,000 bytes is followed by a pause of eight seconds.
    throttled(2_000)
    monkeypatch.setattr(transaction, "delivery_timeout_s", lambda _: 3.0)
    _, seconds = timed(lambda: publish_only(warehouse, *range(PARTITIONS)))
    assert seconds > 6
    assert publish_compounds.main(warehouse)["sent"] == 0
    assert_all_once(warehouse, broker)
