"""Turns a pipeline's settings into the arguments of the rules; the other rules, and the workers, do without the configuration."""

from __future__ import annotations

from include.config.pipeline import Pipeline, Side
from spark_jobs.rules.parsing import BodyFields
from spark_jobs.rules.rules import Rules


def body_fields(pipeline: Pipeline, side: Side) -> BodyFields:
    """The fields to read from messages of this side."""
    return BodyFields(pipeline.key, pipeline.timestamp, side.payload)


def latest_ts(pipeline: Pipeline, wall_time: int) -> int:
    """The largest timestamp, inclusive, that is not in the future at wall time W (epoch ms)."""
    return wall_time + pipeline.max_future_ms


def batch_rules(pipeline: Pipeline, clock: int | None, previous_clock: int | None) -> Rules:
    """The rules of one batch. `clock`: its own, `previous_clock`: that of the batch before; both epoch ms, None: minus infinity."""
    return Rules(
        key=pipeline.key,
        tolerance_ms=pipeline.tolerance_ms,
        gap_ms=pipeline.gap_ms,
        grace_ms=pipeline.grace_ms,
        max_session_ms=pipeline.max_session_ms,
        matching=pipeline.matching,
        drop_duplicates=pipeline.drop_duplicates,
        left_topic_first=pipeline.left.topic < pipeline.right.topic,
        clock=clock,
        previous_clock=previous_clock,
    )
