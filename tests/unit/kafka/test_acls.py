"""What a missing right is called: as the documents give it, and as kafka-acls.sh takes it."""

import pytest
from confluent_kafka import KafkaError

from spark_jobs.kafka.acls import Right, grant_command, missing_right, on_group, on_topic, refused_right
from tests.helpers.kafka_rights import documented
from tests.helpers.timeline import CALLS

TOPIC, GROUP = CALLS.output_topic, "calls.publisher"
CODES = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "--operation Write --topic outputTopic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "--operation Read --group calls.publisher",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "--operation Write --transactional-id calls.publisher- --resource-pattern-type prefixed"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "--operation IdempotentWrite --cluster",
}


@pytest.mark.parametrize("code", CODES)
def test_a_refusal_leads_to_the_right_behind_it(code):
    right = refused_right(KafkaError(code), TOPIC, GROUP, "Write")
    assert f"--operation {right.operation} {right.resource}" == CODES[code]


def test_other_errors_are_no_matter_of_rights():
    assert refused_right(KafkaError(KafkaError._TIMED_OUT), TOPIC, GROUP, "Write") is None


def test_the_documents_have_every_right_that_the_jobs_can_miss_and_no_other():
    named = [on_topic("Read", side.topic) for side in CALLS.sides]
    named += [on_topic(operation, TOPIC) for operation in ("Write", "Read", "DescribeConfigs")] + [on_group("none")]
    named.append(Right("DescribeConfigs", "--cluster"))
    texts = {f"--operation {right.operation} {right.resource}" for right in named} | set(CODES.values())
    assert set(documented()) == texts - {CODES[KafkaError.CLUSTER_AUTHORIZATION_FAILED]}


def test_the_user_is_named_where_the_settings_know_him():
    settings = {"bootstrap.servers": "b:1", "sasl.username": "pairing"}
    command = "kafka-acls.sh --add --allow-principal User:pairing --operation Read --topic t"
    assert grant_command(settings, on_topic("Read", "t")) == command
    assert str(missing_right(settings, on_topic("Read", "t"))).endswith(f"what this needs: {command}")
    assert "--allow-principal User:NAME " in grant_command({"bootstrap.servers": "b:1"}, on_topic("Read", "t"))
