"""Airflow as teams have it: Postgres, Redis, two schedulers, two Celery workers, by docker-compose.yaml as processes.

Spark is a server that stays up instead of the file's cluster, because the tests on it run two dozen tasks.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from include.airflow.alerts import URL_VARIABLE
from include.local.airflow_client import AirflowClient
from include.local.demo import pause_when_idle
from include.local.process import free_port, processes_of
from include.local.spark import LocalSpark
from include.sample import outcome as sample_outcome
from include.sample import truth as sample_truth
from include.sample.calls import generate, send
from include.sample.truth import Verdict
from tests.helpers.alert_listener import listening
from tests.helpers.comparing import commits
from tests.helpers.compose_images import require_servers
from tests.helpers.composed import Composed
from tests.helpers.job_processes import Faults, wait_for
from tests.helpers.stores import table_of
from tests.helpers.timeline import CALLS

FAULTS_VARIABLE = "PAIRING_FAULT_DIR"
WORKERS = ("airflow-worker-1", "airflow-worker-2")
SCHEDULERS = ("airflow-scheduler", "airflow-scheduler-2")
# A dozen processes start programs of Java and Python, for which a small machine may take its time.
WITHIN_S = 900
# A second pipeline. The triggerer's look at the topics starts its runs, and each is late after a second.
TRIPS = """
left:   {topic: trips.begun, payload: from}
right:  {topic: trips.ended, payload: to}
output: {topic: trips.made}
key: [car]
timestamp: at
tolerance: 10m
gap: 10m
grace: 1m
schedule: on_data
consumer_group: trips.landed
run_deadline: 1s
"""


class Team(NamedTuple):
    """`heard`: the alerts so far. `truths`: the folder with a file for each portion of calls that was sent."""

    compose: Composed
    client: AirflowClient
    faults: Faults
    heard: list[dict[str, Any]]
    truths: Path

    @property
    def kafka(self) -> dict[str, str]:
        return {"bootstrap.servers": self.compose.bootstrap}

    def run_of(self, calls: int) -> str:
        """Sends so many new calls and triggers a run that lands them; its id."""
        # A run that is still active could plan a batch with a part of them, for which the truth does not hold.
        pause_when_idle(self.client, CALLS.name)
        number = len([*self.truths.iterdir()])
        late_before = sample_outcome.last_clock(self.compose.warehouse, CALLS)
        sample = generate(CALLS, calls, 5 + number, time.time_ns() // 1_000_000, late_before)
        sample.write_truth(self.truths / f"{number}.jsonl")
        send(sample.records, self.kafka)
        self.client.pause(CALLS.name, False)
        return self.client.trigger(CALLS.name)

    def ended_well(self, run_id: str) -> dict[str, int]:
        """Task -> its tries, when the run has ended, and well."""
        state = self.client.wait_for_run(CALLS.name, run_id, WITHIN_S)
        tasks = self.client.tasks(CALLS.name, run_id)
        assert state == "success", {name: self.client.task_log(CALLS.name, run_id, name)[-15:] for name in tasks}
        return {name: task["try_number"] for name, task in tasks.items()}

    def equal(self) -> Verdict:
        """Compares every message and event with the truth, and finds each step of each batch once."""
        pause_when_idle(self.client, CALLS.name)
        warehouse = self.compose.warehouse
        clock = sample_truth.ledger_clock(warehouse, CALLS)
        verdict = sample_truth.check([*self.truths.iterdir()], CALLS, self.kafka, warehouse, clock)
        assert verdict.differences == []
        rows = table_of(warehouse, CALLS, "batch_ledger").to_pyarrow_table().to_pylist()
        steps = [(row["batch_id"], row["step"]) for row in rows]
        # planned, landed, paired, publishing, published, reported.
        assert len(set(steps)) == len(steps) == 6 * max(batch_id for batch_id, _ in steps)
        assert max(commits(warehouse, CALLS, "compound_events").values()) == 1
        return verdict

    def stands_at(self, point: str, job: str) -> str:
        """The service that runs the job, when the job, or its work on the Spark server, has come to the armed point and stands there."""
        wait_for(lambda: self.faults.is_reached(point), f"a job to come to {point}", WITHIN_S)
        self.faults.disarm(point)
        (service,) = [
            name for name in WORKERS if any(_runs(each, job) for each in processes_of(self.compose.places.own(name)))
        ]
        return service

    def restart(self, service: str) -> None:
        """Starts a service that was killed, as Docker would."""
        self.compose.start(service)
        self.compose.wait_until_healthy(service)

    def page(self, path: str) -> str:
        """A page of Airflow's API server, for a user who has logged in."""
        headers = {"Authorization": f"Bearer {self.client._token}"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.compose.url}{path}", headers=headers), timeout=20
        ) as answer:
            return answer.read().decode()


@contextmanager
def celery_team(folder: Path) -> Iterator[Team]:
    """All of it, while the block runs; the DAG `calls` runs only when it is triggered."""
    require_servers()
    faults, truths = Faults(folder / "faults"), folder / "truths"
    for each in (faults.folder, truths):
        each.mkdir()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as until_then:
        # What a job does on the Spark server stops there, too.
        patch.setenv(FAULTS_VARIABLE, str(faults.folder))
        spark = until_then.enter_context(LocalSpark(folder / "spark", free_port()))
        address, heard = until_then.enter_context(listening())
        # A lost worker is noticed in seconds; a slow machine is none.
        times = {
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # A DAG that waits for records does so from the first look at its file after it was unpaused.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        }
        connection = json.dumps({"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark.port})
        more = times | {FAULTS_VARIABLE: str(faults.folder), "AIRFLOW_CONN_SPARK_DEFAULT": connection}
        variables = {"AIRFLOW_EXECUTOR": "CeleryExecutor", URL_VARIABLE: address}
        compose = Composed(["celery"], variables, more, without=("spark",))
        _change(compose.places.project / "include/pipelines/calls.yaml", 'schedule: "*/5 * * * *"', "schedule: null")
        _change(compose.places.project / "include/airflow/dag_settings.py", "timedelta(seconds=30)", "timedelta(seconds=2)")
        (compose.places.project / "include/pipelines/trips.yaml").write_text(TRIPS)
        with compose:
            client = compose.client()
            for dag_id in (CALLS.name, "trips", f"{CALLS.name}_maintenance"):
                client.wait_for_dag(dag_id, WITHIN_S)
            yield Team(compose, client, faults, heard, truths)


def _runs(process: psutil.Process, job: str) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and f"spark_jobs.{job}" in " ".join(process.cmdline())
    return False


def _change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
