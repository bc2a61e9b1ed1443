"""Makes the one-slot pool of every pipeline when a part of Airflow that has the database starts: the scheduler before all. Registered by plugins/scheduling.py.

    python -m plugins.pool_listener

does the same at once, for a pipeline file that came while the scheduler was running. A pool that is there is left as it is.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from airflow.listeners import hookimpl

PIPELINES = Path(__file__).resolve().parents[1] / "include" / "pipelines"

_log = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """Called when the scheduler, the DAG processor or the triggerer starts, and in a task's process, which has no database."""
    # Not by its class, whose import would cost every task time.
    if type(component).__module__ == "airflow.jobs.job":
        make_pools()


def make_pools() -> list[str]:
    """Makes the missing ones; gives their names."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy.exc import IntegrityError

    made = []
    for name in sorted(file.stem for file in PIPELINES.glob("*.yaml")):
        try:
            with create_session() as session:
                if Pool.get_pool(name, session=session) is None:
                    description = f"The writers of pipeline {name}, live and replay, one after the other"
                    session.add(Pool(pool=name, slots=1, description=description, include_deferred=False))
                    made.append(name)
        except IntegrityError:
            # Another part was quicker.
            continue
    _log.info("pools made: %s", ", ".join(made) or "none, all are there")
    return made


if __name__ == "__main__":
    print(f"pools made: {', '.join(make_pools()) or 'none, all are there'}")
    sys.exit(0)
