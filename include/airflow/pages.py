"""From a run to the quality page of its batch, and from an error to the runbook that says what to do."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path

from include.config.project import ROOT
from include.config.store import Store, read_text, write_text

_RUNBOOKS = ROOT / "docs" / "runbooks"
_ROW = re.compile(r"\| `(.+?)`.*? \| \[.*\]\((.+\.md)\) \|")

_log = logging.getLogger(__name__)


def note_batch(pages: Store, dag_id: str, run_id: str, task_id: str, batch_id: int) -> None:
    """Notes in a file of the run, beside the quality pages, on which batch a task has worked. Never raises: the task has done its work.

    Airflow's XComs have it, too, but then every visit to a page would query the metadata database.
    """
    name = _file_of(dag_id, run_id)
    try:
        batches = _batches(pages, name) | {task_id: batch_id}
        write_text(pages, name, json.dumps({"dag": dag_id, "run": run_id, "batches": batches}))
    except Exception as error:
        _log.warning(
            "the quality page of this run will not be found from its page in Airflow: %s", str(error).partition("\n")[0]
        )


def batch_of(pages: Store, dag_id: str, run_id: str, task_id: str | None = None) -> int | None:
    """The batch of the task. Without a task, or a note of it, the run's first batch: its tasks may also work on later ones."""
    batches = _batches(pages, _file_of(dag_id, run_id))
    return batches.get(task_id or "") or min(batches.values(), default=None)


def _file_of(dag_id: str, run_id: str) -> str:
    # A hash, because a run id may hold any characters.
    return f"runs/{hashlib.sha256(json.dumps([dag_id, run_id]).encode()).hexdigest()[:32]}.json"


def _batches(pages: Store, name: str) -> dict[str, int]:
    try:
        return dict(json.loads(read_text(pages, name) or "")["batches"])
    except (ValueError, KeyError, TypeError):
        return {}


def runbook(line: str, folder: Path = _RUNBOOKS) -> str | None:
    """The runbook for an error, as a path in the project: of the starts in the index that fit the line, the longest counts. None: none fits."""
    index = folder / "README.md"
    rows = [row.groups() for row in map(_ROW.match, index.read_text("utf-8").splitlines() if index.is_file() else []) if row]
    fitting = [(start.replace("…", ""), page) for start, page in rows if _fits(start, line)]
    return f"docs/runbooks/{max(fitting, key=lambda row: len(row[0]))[1]}" if fitting else None


def _fits(start: str, line: str) -> bool:
    """Whether the line begins so; an ellipsis stands for any text."""
    first, *others = start.split("…")
    if not line.startswith(first):
        return False
    at = len(first)
    for part in others:
        # The first match leaves most of the line for the other parts, so no search is repeated.
        place = line.find(part, at)
        if place < 0:
            return False
        at = place + len(part)
    return True
