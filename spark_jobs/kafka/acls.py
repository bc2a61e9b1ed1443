"""Names the right that the user of the jobs lacks, as the `kafka-acls.sh` command that grants it: the broker only refuses."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from include.config.tokens import connection_of
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, address, admin_settings


class Right(NamedTuple):
    """An operation on a resource, both in the words of `kafka-acls.sh`: `Read` and `--topic analyticsTopic`."""

    operation: str
    resource: str


def on_topic(operation: str, topic: str) -> Right:
    """`Read`, `Write` and others; both include the right to describe the topic."""
    return Right(operation, f"--topic {topic}")


def on_group(group: str) -> Right:
    """To read and to commit the offsets of a consumer group."""
    return Right("Read", f"--group {group}")


def grant_command(settings: Settings, right: Right) -> str:
    """The command that grants the right to the settings' user, without the broker's address."""
    # Which user a client certificate stands for is known to the broker only.
    user = settings.get("sasl.username", "NAME")
    return f"kafka-acls.sh --add --allow-principal User:{user} --operation {right.operation} {right.resource}"


def missing_right(settings: Settings, right: Right) -> NeedsOperator:
    """The problem of a right that the settings' user does not have."""
    return NeedsOperator(
        f"Kafka at {address(settings)} does not allow the user of {connection_of(settings)} what this needs: {grant_command(settings, right)}"
    )


def refused_right(error: KafkaError, topic: str, group: str, operation: str) -> Right | None:
    """The right behind an error of the publisher; None if the error has another cause. `operation`: what it tried on the topic."""
    return {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: on_topic(operation, topic),
        KafkaError.GROUP_AUTHORIZATION_FAILED: on_group(group),
        # All ids of the publisher, one for each output partition.
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Right(
            "Write", f"--transactional-id {group}- --resource-pattern-type prefixed"
        ),
        # Brokers before 2.8 require it of every idempotent producer.
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: Right("IdempotentWrite", "--cluster"),
    }.get(error.code())


def unreadable_topic(settings: Settings, topics: Collection[str]) -> str | None:
    """The first of the cluster's topics that the user may describe, but not read; None if there is none or the broker does not answer."""
    admin = AdminClient(admin_settings(settings))
    wanted = TopicCollection(list(topics))
    # The caller asks because of an error, and reports that one.
    with suppress(KafkaException):
        asked = admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=ANSWER_WITHIN_S)
        for topic, answer in asked.items():
            if AclOperation.READ not in (answer.result().authorized_operations or [AclOperation.READ]):
                return str(topic)
    return None


def may_see_group(settings: Settings, group: str) -> bool:
    """False if the broker refuses to describe the group. A refused consumer keeps asking and only reports a timeout."""
    # In a variable until the answer is here: a client that is deleted before waits for it without end.
    admin = AdminClient(admin_settings(settings))
    try:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_WITHIN_S)
        asked[group].result()
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED)
    return True
