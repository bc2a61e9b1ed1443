"""What all DAGs of a pipeline have in common: the arguments of their tasks, the pool, whom failures and late runs are told to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from include.airflow.alerts import run_is_late, task_failed
from include.config.pipeline import Pipeline

DEFAULT_ARGS = {
    "owner": "data-engineering",
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(hours=2),
}
# Runs of a DAG that has no intervals to go back to: a backfill would do the same again and again, and the form does not offer it.
NO_BACKFILLS: Any = ("scheduled", "manual", "operator_triggered", "asset_triggered", "asset_materialization")


def dag_settings(pipeline: Pipeline) -> dict[str, Any]:
    """Arguments of a DAG of the pipeline, whichever it is."""
    # The pool has one slot: the writers of a pipeline come one after the other, whichever of its DAGs they are of.
    default_args = DEFAULT_ARGS | {"pool": pipeline.name, "on_failure_callback": task_failed}
    within = timedelta(milliseconds=pipeline.run_deadline_ms)
    late = AsyncCallback(run_is_late, {"deadline": str(within)})
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, within, late)
    return {"start_date": datetime(2026, 1, 1), "catchup": False, "default_args": default_args, "deadline": deadline}
