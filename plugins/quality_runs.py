"""Which batch a run of a DAG has worked on: a small file a run beside the quality pages, written by its tasks, read by the pages' app.

Airflow knows it, too, from the tasks' XComs; but then every look at a page would ask its database.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)


def note_batch(folder: Path, dag_id: str, run_id: str, task_id: str, batch_id: int) -> None:
    """Called by a task that has done its work. A page less is no reason to fail it."""
    path = _path(folder, dag_id, run_id)
    try:
        known = _read(path) | {task_id: batch_id}
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        draft.write_text(json.dumps({"dag": dag_id, "run": run_id, "batches": known}), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        _log.warning("the quality page of this run will not be found from its page in Airflow: %s", error)


def batch_of(folder: Path, dag_id: str, run_id: str, task_id: str | None = None) -> int | None:
    """The batch of the task; of a run, or a task that has not noted one, the run's own: its tasks may have worked on later ones, too."""
    known = _read(_path(folder, dag_id, run_id))
    return known.get(task_id or "") or min(known.values(), default=None)


def _path(folder: Path, dag_id: str, run_id: str) -> Path:
    # Run ids may hold anything that Airflow is set to allow.
    return folder / "runs" / f"{hashlib.sha256(json.dumps([dag_id, run_id]).encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> dict[str, int]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["batches"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
