"""What the DAGs of a pipeline share: arguments of tasks, pool, alerts, assets, and when the live DAG runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import Asset, AssetWatcher, CronDataIntervalTimetable
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from include.airflow.alerts import run_is_late, task_failed
from include.config.pipeline import ON_DATA, Pipeline

DEFAULT_ARGS = {
    "owner": "data-engineering",
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(hours=2),
}
# Airflow's own, of tasks that name none.
DEFAULT_POOL = "default_pool"
# For DAGs without intervals to go back to: every run of a backfill would do the same, so the form does not offer one.
NO_BACKFILLS: Any = ("scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization")


def dag_settings(pipeline: Pipeline) -> dict[str, Any]:
    """The arguments that all DAGs of the pipeline have."""
    # The pool has one slot, so that the pipeline's writers run one after another, whichever DAG they belong to.
    default_args = DEFAULT_ARGS | {"pool": pipeline.name, "on_failure_callback": task_failed}
    within = timedelta(milliseconds=pipeline.run_deadline_ms)
    late = AsyncCallback(run_is_late, {"deadline": str(within)})
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, within, late)
    return {"start_date": datetime(2026, 1, 1), "catchup": False, "default_args": default_args, "deadline": deadline}


def live_schedule(pipeline: Pipeline) -> Any:
    """The `schedule` of the live DAG: a cron expression, the records that it waits for, or None (only by hand)."""
    if pipeline.schedule == ON_DATA:
        return [_records(pipeline)]
    return CronDataIntervalTimetable(pipeline.schedule, timezone="UTC") if pipeline.schedule else None


def raw_assets(pipeline: Pipeline) -> list[Asset]:
    """The raw tables, changed by live runs. Asset events carry the counts of the job that changed them."""
    return [_asset(pipeline, f"raw_{side.payload}") for side in pipeline.sides]


def compounds_asset(pipeline: Pipeline) -> Asset:
    """The table of compounds, changed by live runs and by replays."""
    return _asset(pipeline, "compound_events")


def topic_assets(pipeline: Pipeline) -> list[Asset]:
    """The topics that it publishes to. A topic may have the name of a table, so its assets are in a folder of their own."""
    return [_asset(pipeline, f"topic/{topic}") for topic in pipeline.output_topics]


def _asset(pipeline: Pipeline, name: str, **settings: Any) -> Asset:
    return Asset(f"{pipeline.name}/{name}", group="event-pairing", **settings)


def _records(pipeline: Pipeline) -> Asset:
    # Imported here, because the process of every task imports this module and needs no trigger.
    from include.airflow.triggers import RecordsWaiting

    closed_after = (pipeline.gap_ms + pipeline.grace_ms) / 1000 + 1
    # With stream_time silence closes nothing. A session stamped ahead of the clock closes later than all others, by up to max_future.
    settle = [closed_after, closed_after + pipeline.max_future_ms / 1000] if pipeline.clock == "lag_aware" else []
    topics = {topic: side.connection for side in pipeline.sides for topic in side.named_topics}
    patterns = {side.topic_pattern: side.connection for side in pipeline.sides if side.topic_pattern is not None}
    waiting = RecordsWaiting(topics, str(pipeline.consumer_group), sorted(set(settle)), patterns)
    watcher = AssetWatcher(f"{pipeline.name}_records", waiting)
    return _asset(pipeline, "records", watchers=[watcher])
