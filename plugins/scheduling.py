"""What Airflow's scheduler needs of this project: the replay DAGs' timetable, and a pool a pipeline."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from plugins import pool_listener
from plugins.replay_timetable import OnlyBackfills

_TIMETABLES: list[Any] = [OnlyBackfills]
_LISTENERS: list[Any] = [pool_listener]


class Scheduling(AirflowPlugin):
    """Registers the timetable and the listener."""

    name = "event_pairing_scheduling"
    timetables = _TIMETABLES
    listeners = _LISTENERS
