"""Replays, backfills and maintenance beside the live runs, one of them every few minutes, and what became of all runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

from include.config.pipeline import MAINTENANCE_SUFFIX, REPLAY_SUFFIX
from include.local.airflow_client import AirflowClient, AirflowError
from tests.load.seen import Run
from tests.load.servers import PIPELINE

REPLAY, MAINTENANCE = f"{PIPELINE}{REPLAY_SUFFIX}", f"{PIPELINE}{MAINTENANCE_SUFFIX}"
# Of a replay by hand; a backfill has the two intervals of five minutes before it.
REPLAYED = timedelta(minutes=2)
# Older than this an interval is closed: gap and grace, a batch that waits for its turn, and the longest session that may begin in it.
CLOSED_AFTER = timedelta(minutes=9)
INTERVAL = timedelta(minutes=5)


class Beside:
    """Starts one kind after the other; nothing is replayed from before the traffic began."""

    def __init__(self, client: AirflowClient, every_s: float) -> None:
        self.client, self.every_s = client, every_s
        self.began = datetime.now(UTC)
        self.next = time.monotonic()
        self.turn = cycle((self._maintain, self._replay, self._backfill))

    def start_what_is_due(self) -> str:
        """Called again and again; starts the next one if it is time, and returns what it is. Empty: nothing was started."""
        if time.monotonic() < self.next:
            return ""
        self.next = time.monotonic() + self.every_s
        try:
            return next(self.turn)()
        except AirflowError:
            # Its database is locked, or the backfill before is not over yet.
            return ""

    def stop(self) -> None:
        """Starts nothing until it resumes."""
        self.next = float("inf")

    def resume(self) -> None:
        """Starts the next one at once."""
        self.next = time.monotonic()

    def _maintain(self) -> str:
        self.client.trigger(MAINTENANCE)
        return "maintenance"

    def _replay(self) -> str:
        end = datetime.now(UTC) - CLOSED_AFTER
        if end - REPLAYED < self.began:
            return ""
        self.client.trigger(REPLAY, {"window_start": (end - REPLAYED).isoformat(), "window_end": end.isoformat()})
        return "replay"

    def _backfill(self) -> str:
        """Airflow has one backfill of a DAG at a time; the intervals of earlier ones are done again."""
        last = _floor(datetime.now(UTC) - CLOSED_AFTER) - INTERVAL
        first = max(last - INTERVAL, _ceiling(self.began))
        if first > last:
            return ""
        body = {"dag_id": REPLAY, "from_date": first.isoformat(), "to_date": last.isoformat(), "max_active_runs": 2}
        self.client.call("POST", "/backfills", body | {"reprocess_behavior": "completed"})
        return "backfill"


def runs(client: AirflowClient, began: datetime) -> dict[str, Run]:
    """The newest hundred runs of each DAG by their ids, their times in seconds since `began`. Raises AirflowError."""
    return {
        f"{dag_id} {run['dag_run_id']}": Run(
            dag_id, run["run_type"], run["state"], *(_seconds(run, field, began) for field in ("start_date", "end_date"))
        )
        for dag_id in (PIPELINE, REPLAY, MAINTENANCE)
        for run in client.runs(dag_id)
    }


def _seconds(run: dict[str, Any], field: str, began: datetime) -> float | None:
    return (datetime.fromisoformat(run[field]) - began).total_seconds() if run[field] else None


def _floor(moment: datetime) -> datetime:
    return moment - timedelta(minutes=moment.minute % 5, seconds=moment.second, microseconds=moment.microsecond)


def _ceiling(moment: datetime) -> datetime:
    return _floor(moment + INTERVAL)
