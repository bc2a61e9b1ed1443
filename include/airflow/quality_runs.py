"""Which batch a run of a DAG has worked on: a small file a run beside the quality pages, written by its tasks, read by the pages' app.

Airflow knows it, too, from the tasks' XComs; but then every look at a page would ask its database.
"""

from __future__ import annotations

import hashlib
import json
import logging

from include.config.store import Store, read_text, write_text

_log = logging.getLogger(__name__)


def note_batch(pages: Store, dag_id: str, run_id: str, task_id: str, batch_id: int) -> None:
    """Called by a task that has done its work. A page less is no reason to fail it."""
    name = _name(dag_id, run_id)
    try:
        known = _read(pages, name) | {task_id: batch_id}
        write_text(pages, name, json.dumps({"dag": dag_id, "run": run_id, "batches": known}))
    except Exception as error:
        _log.warning(
            "the quality page of this run will not be found from its page in Airflow: %s", str(error).partition("\n")[0]
        )


def batch_of(pages: Store, dag_id: str, run_id: str, task_id: str | None = None) -> int | None:
    """The batch of the task; of a run, or a task that has not noted one, the run's own: its tasks may have worked on later ones, too."""
    known = _read(pages, _name(dag_id, run_id))
    return known.get(task_id or "") or min(known.values(), default=None)


def _name(dag_id: str, run_id: str) -> str:
    # Run ids may hold anything that Airflow is set to allow.
    return f"runs/{hashlib.sha256(json.dumps([dag_id, run_id]).encode()).hexdigest()[:32]}.json"


def _read(pages: Store, name: str) -> dict[str, int]:
    try:
        return dict(json.loads(read_text(pages, name) or "")["batches"])
    except (ValueError, KeyError, TypeError):
        return {}
