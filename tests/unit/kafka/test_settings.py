"""Client settings."""

import json

import pytest

from include.config.tokens import connection_of
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import (
    VARIABLE,
    admin_settings,
    consumer_settings,
    delivery_timeout_s,
    kafka_settings,
    producer_settings,
)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"bootstrap.servers": 5}'])
def test_unusable(text, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(NeedsOperator, match=r"bootstrap\.servers|not JSON"):
        kafka_settings()


def test_each_cluster_has_the_settings_of_its_connection(monkeypatch):
    calls, default = {"bootstrap.servers": "calls:1"}, {"bootstrap.servers": "b:1"}
    monkeypatch.setenv(VARIABLE, json.dumps({"kafka_calls": calls, "kafka_default": default}))
    assert kafka_settings() == default
    mine = kafka_settings("kafka_calls")
    assert connection_of(mine) == "kafka_calls" and connection_of(kafka_settings()) == "kafka_default"
    # For messages only: no client knows it.
    assert set(consumer_settings(mine, "g")) == set(consumer_settings(calls, "g"))
    with pytest.raises(NeedsOperator, match=r"the connection other needs it in its extra; by hand give .*\"other\": "):
        kafka_settings("other")
    monkeypatch.setenv(VARIABLE, json.dumps(default))
    with pytest.raises(NeedsOperator, match="the connection kafka_calls needs it"):
        kafka_settings("kafka_calls")
    monkeypatch.setenv(VARIABLE, json.dumps({"kafka_calls": calls | {"acks": "1"}}))
    with pytest.raises(NeedsOperator, match="setting acks=1 of kafka_calls is refused"):
        kafka_settings("kafka_calls")


def test_the_promise_cannot_be_set_away():
    producer = producer_settings(
        {"bootstrap.servers": "b:1", "acks": "1", "enable.idempotence": False, "partitioner": "random"}, "id"
    )
    assert (producer["acks"], producer["enable.idempotence"], producer["partitioner"]) == ("all", True, "murmur2_random")
    consumer = consumer_settings(
        {"bootstrap.servers": "b:1", "enable.auto.commit": True, "isolation.level": "read_uncommitted"}, "g"
    )
    assert (consumer["enable.auto.commit"], consumer["isolation.level"]) == (False, "read_committed")


@pytest.mark.parametrize(
    ("given", "seconds"), [({}, 20), ({"delivery.timeout.ms": "60000"}, 61), ({"message.timeout.ms": 5000}, 6)]
)
def test_delivery_is_waited_for_as_long_as_the_client_tries(given, seconds):
    assert delivery_timeout_s(given) == seconds


def test_other_settings_stay():
    assert producer_settings({"bootstrap.servers": "b:1", "linger.ms": 5, "group.id": "g"}, "id")["linger.ms"] == 5
    assert "group.id" not in producer_settings({"bootstrap.servers": "b:1", "group.id": "g"}, "id")


@pytest.mark.parametrize("of_client", [admin_settings, consumer_settings, lambda given: producer_settings(given, "id")])
def test_a_new_client_waits_little_unless_it_is_told_to(of_client):
    given = {"bootstrap.servers": "b:1"}
    assert of_client(given)["reconnect.backoff.ms"] == 20
    assert of_client(given | {"reconnect.backoff.ms": 100})["reconnect.backoff.ms"] == 100
