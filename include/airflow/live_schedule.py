"""When a live DAG runs: by its cron expression, when there is data, or only by hand."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetWatcher, CronDataIntervalTimetable

from include.airflow.assets import GROUP
from include.config.pipeline import ON_DATA, Pipeline


def live_schedule(pipeline: Pipeline) -> Any:
    """The `schedule` of the DAG."""
    if pipeline.schedule == ON_DATA:
        return [_records(pipeline)]
    return CronDataIntervalTimetable(pipeline.schedule, timezone="UTC") if pipeline.schedule else None


def _records(pipeline: Pipeline) -> Asset:
    # Only here: every task's process would load it, too.
    from include.airflow.record_watch import RecordsWaiting

    if pipeline.consumer_group is None:
        raise TypeError("a pipeline file without consumer_group is not accepted")
    closed_after = (pipeline.gap_ms + pipeline.grace_ms) / 1000 + 1
    # With stream_time silence closes nothing. An event stamped ahead is over later than all others.
    settle = [closed_after, closed_after + pipeline.max_future_ms / 1000] if pipeline.clock == "lag_aware" else []
    watch = RecordsWaiting([side.topic for side in pipeline.sides], pipeline.consumer_group, sorted(set(settle)))
    return Asset(
        f"{pipeline.name}/records", group=GROUP, watchers=[AssetWatcher(name=f"{pipeline.name}_records", trigger=watch)]
    )
