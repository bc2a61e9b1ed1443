"""How long a backfill of quiet hours takes, through Airflow (`make bench-backfill`).

    python -m tests.benches.backfill [--hours 24] [--calls 20] [--empty]

Broker, Spark server and Airflow as `make demo` starts them, of their own, with a PostgreSQL if one is installed: Airflow does not create backfills
safely on SQLite while it works. There are two backfills of so many hours: of hours in which no event lies, and of
hours with calls that were all late and replayed before, so that nothing changes any more.
A run takes from its start to its end as Airflow records them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from statistics import median, quantiles
from typing import Any

from include.config.pipeline import REPLAY_SUFFIX
from include.local.airflow_client import RUNS_AT_ONCE, AirflowClient
from include.local.machine import say
from tests.benches.measuring import scratch
from tests.benches.run import one_run, running, send
from tests.helpers.local_postgres import local_postgres, programs

_WARM = timedelta(hours=2)
_EMPTY, _UNCHANGED = "no events", "nothing changes"
# Seconds of an hour's share in the whole.
AT_MOST = {_EMPTY: 6 * 60 / 168, _UNCHANGED: 3.0}


def backfill(client: AirflowClient, dag_id: str, begin: datetime, hours: int) -> list[tuple[float, float]]:
    """Start and end (seconds since 1970) of each run of a backfill of the hours from `begin` on, again if they were replayed before."""
    last = begin + timedelta(hours=hours - 1)
    wanted = {
        "dag_id": dag_id,
        "from_date": begin.isoformat(),
        "to_date": last.isoformat(),
        "reprocess_behavior": "completed",
    }
    client.call("POST", "/backfills", wanted)
    # Airflow finds only now and then that a backfill is complete, and has one at a time.
    while not all(each["completed_at"] for each in client.call("GET", f"/backfills?dag_id={dag_id}")["backfills"]):
        time.sleep(1)
    found = []
    for run in all_runs(client, dag_id):
        if begin <= datetime.fromisoformat(run["logical_date"]) <= last:
            if run["state"] != "success":
                run_id = run["dag_run_id"]
                failed = [name for name, state in client.task_states(dag_id, run_id).items() if state == "failed"]
                sys.exit("\n".join(line for task in failed for line in client.task_log(dag_id, run_id, task)[-20:]))
            found.append((_moment(run["start_date"]), _moment(run["end_date"])))
            say(f"{found[-1][1] - found[-1][0]:.1f} s: {run['note']}")
    assert len(found) == hours, found
    return found


def all_runs(client: AirflowClient, dag_id: str) -> Iterator[dict[str, Any]]:
    """Airflow lists only so many at once."""
    for offset in count(0, RUNS_AT_ONCE):
        yield from (page := client.runs(dag_id, offset=offset))
        if len(page) < RUNS_AT_ONCE:
            return


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def show(what: str, runs: list[tuple[float, float]], load: float) -> None:
    """A line: the whole and an hour's share of it, and how long the runs took."""
    whole = max(end for _, end in runs) - min(begin for begin, _ in runs)
    each = [end - begin for begin, end in runs]
    ends = sorted(end for _, end in runs)
    apart = [later - earlier for earlier, later in pairwise(ends)]
    low, _, high = quantiles(apart, n=4)
    share, limit = whole / len(runs), AT_MOST[what]
    print(
        f"{what}: {len(runs)} hours in {whole:.0f} s, {share:.2f} s an hour (at most {limit:.2f}: {'met' if share <= limit else 'MISSED'}); "
        f"from one run's end to the next {median(apart):.2f} s (middle half {low:.2f} to {high:.2f}); a run from start to end "
        f"{median(each):.1f} s ({min(each):.1f} to {max(each):.1f}); load {load:.1f}",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.backfill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--hours", type=int, default=24, help="of each backfill")
    arguments.add_argument("--calls", type=int, default=20, help="in each hour that has any")
    arguments.add_argument("--empty", action="store_true", help="only the backfill of hours without events")
    given = arguments.parse_args()
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with (
        scratch() as folder,
        local_postgres() if programs() else nullcontext() as database,
        running(folder, 1, database) as (pipeline, broker, airflow),
    ):
        begins = {_EMPTY: day - timedelta(days=40), _UNCHANGED: day - timedelta(hours=given.hours + 12)}
        first = begins[_UNCHANGED] - _WARM
        send(pipeline, broker, given.calls * (given.hours + 20), pipeline.sides, int(first.timestamp() * 1000), "call")
        for _ in range(2):
            one_run(airflow, pipeline.name, folder / "spans")
        client, dag_id = airflow.client(), f"{pipeline.name}{REPLAY_SUFFIX}"
        measured = {}
        for what, begin in [*begins.items()][: 1 if given.empty else 2]:
            # The first one on a new server is not measured, nor the one that pairs the late calls.
            backfill(client, dag_id, begin - _WARM, 2)
            if what == _UNCHANGED:
                backfill(client, dag_id, begin, given.hours)
            load = os.getloadavg()[0]
            measured[what] = backfill(client, dag_id, begin, given.hours), load
    for what, (runs, load) in measured.items():
        show(what, runs, load)


if __name__ == "__main__":
    main()
