"""Whether an input topic is the one that was read so far: offsets name the same records only as long as the topic is the same.

Kafka gives every topic an id that no other topic ever has. A plan keeps those of both input topics.
"""

from __future__ import annotations

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.tables.records import TopicIds


def check_ids(pipeline: Pipeline, known: TopicIds | None, now: TopicsNow) -> TopicIds:
    """Returns the ids that both topics have now; raises NeedsOperator if `known` (None: nothing is) has another one."""
    ids = TopicIds(*(now.ids[side.topic] for side in pipeline.sides))
    for side, old, new in zip(pipeline.sides, known or ids, ids, strict=True):
        if old != new:
            raise NeedsOperator(
                f"input topic {side.topic} was deleted and created again (id {old}, now {new}): its "
                "offsets name other records now, and what the old one held and was never landed is lost; a pipeline continues only on the "
                "topic it began with, so start a new one under another name"
            )
    return ids
