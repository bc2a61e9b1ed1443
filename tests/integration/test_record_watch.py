"""What `schedule: on_data` sees on a real broker: whether there is more than the consumer group shows as landed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from include.airflow import triggers
from include.airflow.triggers import RecordsWaiting
from include.local.broker import create_topics
from spark_jobs.kafka.offsets import wait_for_markers
from tests.helpers.job_processes import wait_for

pytestmark = pytest.mark.integration


def test_what_waits_to_be_landed(broker, monkeypatch):
    settings = {"bootstrap.servers": broker.bootstrap}
    topics, group = ["watched-left", "watched-right"], "watched.landed"
    create_topics(broker.bootstrap, dict.fromkeys(topics, 2))
    monkeypatch.setattr(triggers, "kafka_settings", lambda _: settings)
    watched = dict.fromkeys(topics, "kafka_default")
    watch = RecordsWaiting(watched, group, [])
    places = [(topic, number) for topic in topics for number in range(2)]

    def is_heard():
        # A broker that has just started does not know its groups yet; the trigger looks again after a while.
        with suppress(KafkaException):
            return watch._look()
        return None

    wait_for(is_heard, "the group's coordinator", 30)
    # Of one that is not there yet nothing waits.
    assert (
        RecordsWaiting({**watched, "not-there": "kafka_default"}, group, [])._look()
        == watch._look()
        == (dict.fromkeys(places, 0), False)
    )

    # Those of a pattern are found each time, and a topic that is named, too, counts once.
    matched = RecordsWaiting({topics[0]: "kafka_default"}, group, [], {"watched-(left|right)": "kafka_default"})
    assert matched._look() == watch._look()
    assert matched.serialize()[1]["patterns"] == matched.patterns

    # It has to live as long as its answer is waited for.
    admin = AdminClient(settings)

    def land(ends):
        landed = [TopicPartition(*place, end) for place, end in ends.items()]
        asked = [ConsumerGroupTopicPartitions(group, landed)]
        (answer,) = admin.alter_consumer_group_offsets(asked).values()
        answer.result(timeout=20)

    producer = Producer(settings | {"transactional.id": "watched"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topics[1], b"x", partition=1)
    producer.flush(20)
    # What is not committed would not be landed either.
    assert watch._look()[1] is False
    producer.commit_transaction(20)
    wait_for_markers(settings, topics[1])
    ends, waits = watch._look()
    # The record, and the marker of its transaction.
    assert ends == dict.fromkeys(places, 0) | {(topics[1], 1): 2} and waits
    land(ends | {(topics[1], 1): 1})
    assert watch._look() == (ends, True)
    land(ends)
    assert watch._look() == (ends, False)
    # More was landed than there is: the log was cut.
    land(ends | {(topics[1], 1): 3})
    assert watch._look() == (ends, True)
