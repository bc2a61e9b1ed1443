"""When a replay DAG runs: never by itself, only by backfills and by hand. Registered by plugins/scheduling.py."""

from __future__ import annotations

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class OnlyBackfills(CronDataIntervalTimetable):
    """The data intervals of a cron expression, for backfills; the scheduler makes no runs of it.

    A DAG without a schedule could not be backfilled, and one with a schedule would run whether there is something to mend or not.
    """

    description = "Only by backfill or by hand"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Called by the scheduler without catchup, as the DAG says, and by a backfill with it."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)
