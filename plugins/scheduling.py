"""What Airflow's scheduler needs of this project: the replay DAGs' timetable, a pool a pipeline, and a note on each run."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from include.airflow import run_notes
from plugins import pool_listener
from plugins.replay_timetable import OnlyBackfills

_TIMETABLES: list[Any] = [OnlyBackfills]
_LISTENERS: list[Any] = [pool_listener, run_notes]


class Scheduling(AirflowPlugin):
    """Registers the timetable and the listeners."""

    name = "event_pairing_scheduling"
    timetables = _TIMETABLES
    listeners = _LISTENERS
