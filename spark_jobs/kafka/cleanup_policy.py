"""How the broker cleans a topic up: whether later records of a key replace earlier ones, and for how long tombstones stay."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from spark_jobs.kafka.acls import granting, on_topic
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, address, admin_settings


class Cleanup(NamedTuple):
    """`compacted`: None where the user may not see it. `tombstones_ms`: how long a record without a value stays once it was cleaned; where
    the user may not see that, Kafka's default.
    """

    compacted: bool | None
    tombstones_ms: int = 86_400_000


def cleanup_of(settings: Settings, topic: str) -> Cleanup:
    """Asks the broker; raises BrokerProblem if it does not answer."""
    admin, resource = AdminClient(admin_settings(settings)), ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        configured = admin.describe_configs([resource], request_timeout=ANSWER_WITHIN_S)[resource].result()
    except KafkaException as error:
        problem = error.args[0]
        if problem.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return Cleanup(None)
        raise BrokerProblem(
            f"no answer from Kafka at {address(settings)} to how {topic} is cleaned up: {problem.str()} ({problem.name()})"
        ) from None
    return Cleanup("compact" in configured["cleanup.policy"].value, int(configured["delete.retention.ms"].value))


def to_see_cleanup(settings: Settings, topic: str) -> str:
    """The command that lets the user of kafka_default see it."""
    return granting(settings, on_topic("DescribeConfigs", topic))
