"""Alerts about failed tasks, late runs, silent topics and parts that are down: a line in Airflow's log, a POST to PAIRING_ALERT_URL if that is
set, and a message on the channels that the pipeline's `alerts` name.

The body of the POST is JSON: `text`, one line for people, and its parts, where they are known: `dag`, `run`, `task`, `reason`, `batch`, `runbook`, `part`, and
`severity` if it is no failure. Chat systems accept such a message as it is. An alert that cannot be sent fails nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import urllib.request
from typing import Any

from include.airflow.notifiers import notify
from include.airflow.pages import runbook

URL_VARIABLE = "PAIRING_ALERT_URL"
_TIMEOUT_S = 10.0
_ENDED = ("failed", "success")

_log = logging.getLogger(__name__)


def task_failed(context: Any) -> None:
    """Airflow calls this in the task's process when no try is left."""
    task, reason = context["ti"], str(context.get("exception") or "the task was ended from outside")
    alert(
        f"{task.dag_id}: {task.task_id} failed: {reason}",
        dag=task.dag_id,
        run=task.run_id,
        task=task.task_id,
        reason=reason,
        batch=getattr(context.get("task"), "batch_id", None),
        runbook=runbook(reason),
    )


async def run_is_late(deadline: str, context: Any = None) -> None:
    """Airflow's triggerer calls this when a run has not succeeded by its deadline: also one that failed before, which has had its alert."""
    run = (context or {}).get("dag_run") or {}
    dag, run_id = run.get("dag_id", "a DAG"), run.get("dag_run_id") or run.get("run_id")
    if run.get("state") in _ENDED:
        _log.info("%s: run %s has ended (%s) before its deadline", dag, run_id, run["state"])
        return
    text = f"{dag}: run {run_id} has not ended {deadline} after it was queued"
    # In a thread: all triggers share the event loop.
    await asyncio.to_thread(alert, text, dag=dag, run=run_id)


def alert(text: str, is_over: bool = False, **parts: Any) -> None:
    """Logs the line and sends it with those of its parts that are not None. `is_over`: it says that something has ended."""
    _log.error(text)
    known = {name: value for name, value in parts.items() if value is not None}
    _post({"text": text} | known)
    notify(text, known, is_over)


def _post(body: dict[str, Any]) -> None:
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return
    # The log never has the address, which may hold a secret.
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
    except ValueError:
        _log.warning("%s does not take alerts: it is no address", URL_VARIABLE)
    except OSError as error:
        _log.warning("%s does not take alerts: %s", URL_VARIABLE, error)
