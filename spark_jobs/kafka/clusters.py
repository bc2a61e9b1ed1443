"""The Kafka clusters of a pipeline: the two sides and the output may be on different ones."""

from __future__ import annotations

from collections.abc import Iterable

from include.config.pipeline import Pipeline
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.settings import Settings, kafka_settings


def settings_of(pipeline: Pipeline, topic: str) -> Settings:
    """Those of the cluster that has the topic. Raises NeedsOperator if they cannot be used."""
    return kafka_settings(pipeline.connection(topic))


def by_cluster(pipeline: Pipeline, topics: Iterable[str]) -> list[tuple[Settings, list[str]]]:
    """The settings of each cluster that has some of the topics, and these. Raises NeedsOperator."""
    found: dict[str, list[str]] = {}
    for topic in topics:
        found.setdefault(pipeline.connection(topic), []).append(topic)
    return [(kafka_settings(connection), mine) for connection, mine in found.items()]


def ask_topics(pipeline: Pipeline, topics: Iterable[str]) -> TopicsNow:
    """What the clusters have of the topics, with the time before the first was asked. Errors as `ask_broker`."""
    first, *others = [ask_broker(settings, mine) for settings, mine in by_cluster(pipeline, topics)]
    for other in others:
        first = first._replace(
            earliest={**first.earliest, **other.earliest},
            end={**first.end, **other.end},
            ids={**first.ids, **other.ids},
            epochs={**first.epochs, **other.epochs},
            written={**first.written, **other.written},
        )
    return first
