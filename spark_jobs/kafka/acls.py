"""Which right the user of the jobs lacks, as `kafka-acls.sh` grants it: the broker itself only says that something is not allowed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, address, admin_settings


class Right(NamedTuple):
    """An operation on a thing, both in the words of `kafka-acls.sh`: `Read` and `--topic analyticsTopic`."""

    operation: str
    thing: str


def on_topic(operation: str, topic: str) -> Right:
    """`Read`, `Write` and others; both include that the topic can be seen."""
    return Right(operation, f"--topic {topic}")


def on_group(group: str) -> Right:
    """To see and to commit the offsets of a consumer group."""
    return Right("Read", f"--group {group}")


def on_transactions(group: str) -> Right:
    """All transactional ids of a publisher, one for each output partition."""
    return Right("Write", f"--transactional-id {group}- --resource-pattern-type prefixed")


# Brokers before 2.8 want it of every producer of this kind.
_TO_REPEAT = Right("IdempotentWrite", "--cluster")


def granting(settings: Settings, right: Right) -> str:
    """The command that gives the right to the user of kafka_default, less where the broker is."""
    # Whom the broker takes the owner of a certificate for is in its own settings.
    user = settings.get("sasl.username", "NAME")
    return f"kafka-acls.sh --add --allow-principal User:{user} --operation {right.operation} {right.thing}"


def lacking(settings: Settings, right: Right) -> NeedsOperator:
    """The problem of a right that the user of kafka_default does not have."""
    return NeedsOperator(
        f"Kafka at {address(settings)} does not allow the user of kafka_default what this needs: {granting(settings, right)}"
    )


def lacked(error: KafkaError, topic: str, group: str, operation: str) -> Right | None:
    """The right behind an error of the publisher; `operation`: what it tried on the topic. None: the error is of another kind."""
    return {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: on_topic(operation, topic),
        KafkaError.GROUP_AUTHORIZATION_FAILED: on_group(group),
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: on_transactions(group),
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: _TO_REPEAT,
    }.get(error.code())


def is_refusal(error: KafkaError) -> bool:
    """Whether it is for want of a right."""
    return lacked(error, "", "", "") is not None


def unreadable(settings: Settings, topics: Collection[str]) -> str | None:
    """The first of the topics that the user may see, but not read; None if there is none, or the broker does not say."""
    admin = AdminClient(admin_settings(settings))
    wanted = TopicCollection(list(topics))
    try:
        asked = admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=ANSWER_WITHIN_S)
        for topic, answer in asked.items():
            if AclOperation.READ not in (answer.result().authorized_operations or [AclOperation.READ]):
                return str(topic)
    except KafkaException:
        # Whatever is wrong with the broker, the one who asks because of an error has that error to tell.
        return None
    return None


def may_see_group(settings: Settings, group: str) -> bool:
    """False if the broker refuses to tell of the group: a consumer that is refused keeps asking and only says that it took too long."""
    # Kept until the answer is here: a client that ends before it waits for it for ever.
    admin = AdminClient(admin_settings(settings))
    try:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=ANSWER_WITHIN_S)
        asked[group].result()
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED)
    return True
