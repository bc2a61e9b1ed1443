"""Who is told when a task has failed for good, a run is late, or a side falls silent and sends again: Airflow's log, and what listens at PAIRING_ALERT_URL.

That gets a POST of JSON: `text`, one line for people, and what it is made of (`dag`, `run`, `task`, `reason`, `batch`, `runbook`, `severity` of
what is no failure, those that are known). Chat systems take such a message as it is. Nothing fails because nobody listens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.request
from typing import Any

from include.airflow.runbooks import runbook

URL_VARIABLE = "PAIRING_ALERT_URL"
_WITHIN_S = 10.0

_log = logging.getLogger(__name__)


def task_failed(context: Any) -> None:
    """Called by Airflow in the task's process, once there is no other try."""
    task, reason = context["ti"], str(context.get("exception") or "the task was ended from outside")
    tell(
        f"{task.dag_id}: {task.task_id} failed: {reason}",
        dag=task.dag_id,
        run=task.run_id,
        task=task.task_id,
        reason=reason,
        batch=getattr(context.get("task"), "batch_id", None),
        runbook=runbook(reason),
    )


async def run_is_late(deadline: str, context: Any = None) -> None:
    """Called by Airflow's triggerer when a run has not ended by its deadline."""
    run = (context or {}).get("dag_run") or {}
    dag, run_id = run.get("dag_id", "a DAG"), run.get("dag_run_id") or run.get("run_id")
    text = f"{dag}: run {run_id} has not ended {deadline} after it was queued"
    # Not in the loop in which all triggers run.
    await asyncio.to_thread(tell, text, dag=dag, run=run_id)


def tell(text: str, **known: Any) -> None:
    """Writes the line to the log and sends it, if anybody is to get it."""
    _log.error(text)
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return
    body = {"text": text} | {name: value for name, value in known.items() if value is not None}
    # Never with the address, which may hold a secret.
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_WITHIN_S):
            pass
    except ValueError:
        _log.warning("%s does not take alerts: it is no address", URL_VARIABLE)
    except OSError as error:
        _log.warning("%s does not take alerts: %s", URL_VARIABLE, error)
