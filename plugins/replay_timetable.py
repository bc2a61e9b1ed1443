"""When a replay DAG runs: never by itself, only by backfills and by hand. Registered by plugins/scheduling.py."""

from __future__ import annotations

from typing import Any

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class OnlyBackfills(CronDataIntervalTimetable):
    """The data intervals of a cron expression, for backfills; the scheduler makes no runs of it.

    A DAG without a schedule could not be backfilled, and one with a schedule would run whether there is something to mend or not.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # In Airflow's list of DAGs; that of the cron expression would say "Every hour".
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
