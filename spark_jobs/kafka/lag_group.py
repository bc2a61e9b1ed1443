"""The landed offsets as those of a consumer group, so that ordinary lag tools see the pipeline, and `schedule: on_data` what waits.

Where a batch begins is in the ledger, never here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_jobs.kafka.acls import granting, on_group
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, admin_settings
from spark_jobs.tables.ledger import OffsetRange


def show_landed(settings: Settings, group: str, landed: Iterable[OffsetRange]) -> None:
    """Commits the ends of the ranges for the group. Called after they are on the ledger as landed; a failure only warns."""
    places = [TopicPartition(known.topic, known.partition, known.until_offset) for known in landed]
    try:
        admin = AdminClient(admin_settings(settings))
        request = ConsumerGroupTopicPartitions(group, places)
        (answer,) = admin.alter_consumer_group_offsets([request], request_timeout=ANSWER_WITHIN_S).values()
        refused = [place.error for place in answer.result().topic_partitions if place.error is not None]
    except KafkaException as error:
        refused = [error.args[0]]
    if refused:
        remedy = (
            f": {granting(settings, on_group(group))}" if refused[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else ""
        )
        print(
            f"warning: consumer group {group} does not show what was landed ({refused[0].str()}); the batch is landed all the same{remedy}",
            file=sys.stderr,
        )
