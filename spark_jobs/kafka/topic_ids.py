"""Whether an input topic is the one that was read so far: only of the same topic do offsets say where to go on.

Kafka gives every topic an id that no other topic ever has. A plan keeps those of both input topics in its counts, each as two
halves (`left_topic_high` and `left_topic_low`, the same of the right side).
"""

from __future__ import annotations

from collections.abc import Mapping

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow, topic_id

_HALVES = tuple((f"{side}_topic_high", f"{side}_topic_low") for side in ("left", "right"))


def known_ids(counts: Mapping[str, int]) -> dict[str, int]:
    """The ids among the counts of a plan, for the counts of the next one."""
    return {name: counts[name] for halves in _HALVES for name in halves if name in counts}


def checked_ids(pipeline: Pipeline, known: Mapping[str, int], now: TopicsNow) -> dict[str, int]:
    """The ids of both topics now, for the counts of a plan. `known`: the counts of the plan before, empty before the first plan.

    Raises NeedsOperator if a topic has another id than in `known`.
    """
    ids: dict[str, int] = {}
    for side, (high, low) in zip(pipeline.sides, _HALVES, strict=True):
        new = now.ids[side.topic]
        if high in known and (known[high], known[low]) != new:
            raise NeedsOperator(
                f"input topic {side.topic} was deleted and created again (id {topic_id(known[high], known[low])}, now {topic_id(*new)}): its "
                "offsets name other records now, and what the old one held and was never landed is lost; a pipeline continues only on the "
                "topic it began with, so start a new one under another name"
            )
        ids |= zip((high, low), new, strict=True)
    return ids
