"""Makes the one-slot pool of every pipeline, when Airflow starts and when a run of a new pipeline does. Registered by plugins/scheduling.py.

A pool that is there is left as it is.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any

from airflow.listeners import hookimpl

from include.config.pipeline import PIPELINES, pipeline_of

_log = logging.getLogger(__name__)
# The pipelines whose pools this process knows to be there.
_known: set[str] = set()


@hookimpl
def on_starting(component: Any) -> None:
    """Called when the scheduler, the DAG processor or the triggerer starts, and in a task's process, which has no database."""
    # Not by its class, whose import would cost every task time.
    if type(component).__module__ == "airflow.jobs.job":
        make_pools()


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Called in the scheduler when a run begins: its pipeline's file may have come after the scheduler's start."""
    name = pipeline_of(dag_run.dag_id)
    if name not in _known and (PIPELINES / f"{name}.yaml").is_file():
        # Not here, where the scheduler is in the midst of a transaction: SQLite has one writer at a time.
        Thread(target=make_pools, name="pools", daemon=True).start()


def make_pools() -> list[str]:
    """Makes the missing ones; gives their names."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy.exc import IntegrityError

    made = []
    for name in sorted(file.stem for file in PIPELINES.glob("*.yaml")):
        try:
            with create_session() as session:
                if missing := Pool.get_pool(name, session=session) is None:
                    description = f"The writers of pipeline {name}, live, replay and maintenance, one after the other"
                    session.add(Pool(pool=name, slots=1, description=description, include_deferred=False))
        except IntegrityError:
            _log.info("pool %s was made by another part of Airflow at the same moment", name)
        else:
            made += [name] if missing else []
        _known.add(name)
    _log.info("pools made: %s", ", ".join(made) or "none, all are there")
    return made
