"""What Airflow's scheduler needs: the timetable of the replay DAGs, and a pool with one slot for each pipeline.

plugins/event_pairing.py registers both: the timetable, and this module as the listener that makes missing pools.
"""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any

from airflow.listeners import hookimpl
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from include.config.pipeline import PIPELINES, pipeline_of

_log = logging.getLogger(__name__)
# The pipelines whose pools this process has seen.
_known: set[str] = set()


class OnlyBackfills(CronDataIntervalTimetable):
    """The data intervals of a cron expression, for backfills; the scheduler makes no runs of it.

    A DAG without a schedule could not be backfilled, and one with a schedule would run even with nothing to mend.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # Shown in the list of DAGs; the cron expression's own would say "Every hour".
        self.description = f"Nothing runs by itself; a backfill has a run for each interval of {self._expression}"

    @property
    def summary(self) -> str:
        """What the list of DAGs shows as the schedule."""
        return "backfill, or by hand"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Called by the scheduler without catchup, as the DAG says, and by a backfill with it."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)


@hookimpl
def on_starting(component: Any) -> None:
    """Called when the scheduler, the DAG processor or the triggerer starts, and in a task's process, which has no database."""
    # Compared by name, because importing the class would cost every task time.
    if type(component).__module__ == "airflow.jobs.job":
        make_pools()


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Called in the scheduler when a run begins: its pipeline's file may be newer than the scheduler."""
    name = pipeline_of(dag_run.dag_id)
    if not (PIPELINES / f"{name}.yaml").is_file():
        return
    if (conf := sendable(dag_run.conf)) != dag_run.conf:
        dag_run.conf = conf
    if name not in _known:
        # In a thread, because the scheduler is inside a transaction here, and SQLite has one writer at a time.
        Thread(target=make_pools, name="pools", daemon=True).start()


def sendable(conf: Any) -> Any:
    """The same, with integers beyond 64 bits as text. Airflow cannot send such a number to a task: it would fail without a line in its log, and
    with its callback the DAG processor for good. A parameter with bounds refuses the number earlier; as a text a task can refuse it and say so.

    >>> sendable({"max_records": 10**21, "more": [1, True, -(2**63)]})
    {'max_records': '1000000000000000000000', 'more': [1, True, -9223372036854775808]}
    """
    if isinstance(conf, dict):
        return {name: sendable(value) for name, value in conf.items()}
    if isinstance(conf, list):
        return [sendable(value) for value in conf]
    return str(conf) if isinstance(conf, int) and not -(2**63) <= conf < 2**64 else conf


def make_pools() -> list[str]:
    """Makes the missing pools and returns their names. A pool that exists is left as it is."""
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
