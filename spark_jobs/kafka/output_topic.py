"""The output topic: its partitions and id, and the settings of the broker that limit what is on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import warn
from spark_jobs.kafka.acls import Right, grant_command, on_topic
from spark_jobs.kafka.offsets import admin_client, partitions_of_topic, topic_ids
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, admin_settings

# librdkafka's default for message.max.bytes.
_CLIENT_LIMIT = 1_000_000
_DAY_MINUTES = 24 * 60


class OutputTopic(NamedTuple):
    """The output topic as it is now."""

    partitions: int
    topic_id: str  # as Kafka's tools print it; a topic that is created again has another one
    largest: int  # bytes of the largest message that it takes, inclusive
    name: str
    compacted: bool | None = None  # None if the user may not see it


def output_topic(settings: Settings, topic: str, operation: str = "Write") -> OutputTopic:
    """Raises NeedsOperator if there is no such topic or the user may not do the operation on it, and BrokerProblem."""
    with admin_client(settings) as admin:
        partitions, topic_id = _partitions_and_id(admin, topic, settings, operation)
        largest, compacted = _limits(admin, topic, settings)
        return OutputTopic(partitions, topic_id, largest, topic, compacted)


def topics_gone(settings: Settings, topics: Iterable[str]) -> list[str]:
    """Those of the topics that the broker does not have, in alphabetical order. Errors as `output_topic`."""
    wanted = sorted(topics)
    if not wanted:
        return []
    with admin_client(settings) as admin:
        there = admin.list_topics(timeout=ANSWER_WITHIN_S).topics
    return [topic for topic in wanted if topic not in there]


def partitions_and_id(settings: Settings, topic: str) -> tuple[int, str]:
    """The number of partitions, and the id; asks nothing that needs another right than publishing. Errors as `output_topic`."""
    with admin_client(settings) as admin:
        return _partitions_and_id(admin, topic, settings, "Write")


def _partitions_and_id(admin: AdminClient, topic: str, settings: Settings, operation: str) -> tuple[int, str]:
    return len(partitions_of_topic(admin, topic, settings, operation)), topic_ids(admin, [topic])[topic]


def _limits(admin: AdminClient, topic: str, settings: Settings) -> tuple[int, bool | None]:
    """The smaller of the topic's and the producer's limit, and whether it is compacted; the client's default and None if the user may not see it."""
    compacted = None
    try:
        configured = _broker_settings(admin, ConfigResource(ConfigResource.Type.TOPIC, topic))
        limit, compacted = int(configured["max.message.bytes"].value), "compact" in configured["cleanup.policy"].value
    except KafkaException as error:
        # A larger message then fails its transaction instead of being left out.
        warn(
            f"the limit of {topic} is not known ({error.args[0].str()}), so it is taken to be {_CLIENT_LIMIT} bytes; for the user "
            f"to see it: {grant_command(settings, on_topic('DescribeConfigs', topic))}"
        )
        limit = _CLIENT_LIMIT
    return min(limit, int(settings.get("message.max.bytes", limit))), compacted


class Cleanup(NamedTuple):
    """How the broker removes records of a topic."""

    compacted: bool | None  # later records of a key replace earlier ones; None if the user may not see it
    # How long a record without a value stays after its cleaning; Kafka's default if not seen.
    tombstones_ms: int = 86_400_000


def cleanup_of(settings: Settings, topic: str) -> Cleanup:
    """Asks the broker; raises BrokerProblem if it does not answer."""
    with admin_client(settings) as admin:
        try:
            configured = _broker_settings(admin, ConfigResource(ConfigResource.Type.TOPIC, topic))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return Cleanup(None)
            raise
    return Cleanup("compact" in configured["cleanup.policy"].value, int(configured["delete.retention.ms"].value))


def positions_kept_minutes(settings: Settings, pipeline: Pipeline) -> int | None:
    """For how many minutes the broker keeps the positions of an idle group; None if the user may not see it.

    Warns where that is less than a day or than `maintenance.time_travel`: a publication that broke off may wait as long for an operator.
    """
    admin = AdminClient(admin_settings(settings))
    try:
        broker = min(admin.list_topics(timeout=ANSWER_WITHIN_S).brokers)
        configured = _broker_settings(admin, ConfigResource(ConfigResource.Type.BROKER, str(broker)))
        minutes = int(configured["offsets.retention.minutes"].value)
    except KafkaException as error:
        remedy = grant_command(settings, Right("DescribeConfigs", "--cluster"))
        warn(
            f"it is not known for how long the broker keeps positions ({error.args[0].str()}); for the user to see it: {remedy}"
        )
        return None
    if minutes < (wanted := max(_DAY_MINUTES, pipeline.maintenance.time_travel_ms // 60_000)):
        warn(
            f"the broker forgets the positions of a publisher after {minutes:,} idle minutes (offsets.retention.minutes), less than the "
            f"{wanted:,} minutes of maintenance.time_travel or a day; after a longer break the publisher reads its positions back from the "
            "topic, which fails if records were removed from it since"
        )
    return minutes


def _broker_settings(admin: AdminClient, resource: ConfigResource) -> Mapping[str, Any]:
    return admin.describe_configs([resource], request_timeout=ANSWER_WITHIN_S)[resource].result()
