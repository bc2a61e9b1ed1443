"""Where the time of a scheduled run goes (`make bench-run`).

    python -m tests.benches.run [--history 720] [--open 100000] [--events 200] [--rounds 10]

Broker, Spark server and Airflow as `make demo` starts them, of their own. The pipeline has thirty days of a run every hour behind it and
so many open events: sessions stay open for four hours. Each round has a run with new events on both topics, and one without any. Airflow's
scheduler runs them; a run takes from its start to its end as Airflow records them, a task from the end of the one before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from confluent_kafka import Producer

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker
from include.local.demo import start_servers
from include.local.machine import say
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.benches.history import PARTITIONS, pipeline_of, with_history
from tests.benches.measuring import scratch
from tests.conftest import yaml_of
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import JOBS

OPEN_FOR_MS = 4 * 3_600_000
SHOWN_FROM_S = 0.05
# What a job does first in the copy of the project. `trace` imports it once more, as a module.
TRACE = """
if __name__ == "__main__":
    from spark_jobs.spans import trace

    trace()
"""
AT_MOST = {"new events": 12.0, "empty": 5.0}
Seconds = dict[str, float]


def make_history(folder: Path, batches: int, bootstrap: str) -> None:
    """In a process of its own, for it has a Spark of its own."""
    from include.local.machine import project_environment
    from spark_jobs.spark.session import spark_session

    os.environ |= project_environment() | {"PAIRING_KAFKA": json.dumps({"bootstrap.servers": bootstrap})}
    spark = spark_session("bench", "bench")
    spark.sparkContext.setLogLevel("ERROR")
    with_history(spark, folder, batches, 10, bootstrap)
    spark.stop()


def send(pipeline: Pipeline, broker: LocalBroker, events: int, sides: tuple[Side, ...], begin_ms: int, what: str) -> None:
    """So many events a side, spread from `begin_ms` until now."""
    producer, now = Producer({"bootstrap.servers": broker.bootstrap}), time.time_ns() // 1_000_000
    for number in range(events):
        ts = begin_ms + (now - begin_ms) * number // events
        for side in sides:
            user = f"{what} {number}"
            body = {"user1": user, "user2": "other", "timestamp": ts, side.payload: {"rating": 4.5, "text": "." * 80}}
            producer.produce(side.topic, json.dumps(body).encode(), partition=crc32(user.encode()) % PARTITIONS)
            producer.poll(0)
    producer.flush(60)


def traced(project: Path) -> None:
    """Has the jobs of this copy of the project write down what they wait for."""
    shutil.copy(Path(__file__).with_name("spans.py"), project / "spark_jobs" / "spans.py")
    first = "from __future__ import annotations\n"
    for job in JOBS:
        program = project / "spark_jobs" / f"{job}.py"
        program.write_text(program.read_text().replace(first, first + TRACE, 1))


@contextmanager
def running(folder: Path, batches: int, database: str | None = None) -> Iterator[tuple[Pipeline, LocalBroker, AirflowOf]]:
    """All servers, and the pipeline with its history. `database`: as of `LocalAirflow`."""
    project = copied(folder / "project")
    traced(project)
    (folder / "spans").mkdir()
    os.environ["PAIRING_SPANS"] = str(folder / "spans")
    with LocalBroker(folder / "broker", free_port()) as broker:
        maker = multiprocessing.get_context("spawn").Process(target=make_history, args=(folder, batches, broker.bootstrap))
        maker.start()
        maker.join()
        if maker.exitcode:
            sys.exit("the history could not be made")
        pipeline = replace(pipeline_of(batches, broker.bootstrap), grace_ms=OPEN_FOR_MS)
        for file in (project / "include" / "pipelines").glob("*.yaml"):
            file.unlink()
        file = yaml_of(pipeline, project / "include" / "pipelines")
        file.write_text(file.read_text() + 'schedule: "0 0 1 1 *"\n')
        spark = LocalSpark(folder / "spark", free_port())
        settings = {"spark": spark.url, "warehouse": str(folder / "warehouse"), "database": database}
        airflow = AirflowOf(project, "", folder / "airflow", free_port(), broker.bootstrap, **settings)
        try:
            start_servers(broker, spark, airflow)
            client = airflow.client()
            client.wait_for_dag(pipeline.name, 90)
            client.pause(pipeline.name, False)
            yield pipeline, broker, airflow
        finally:
            airflow.stop()
            spark.stop()


def one_run(airflow: AirflowOf, dag_id: str, spans: Path) -> dict[str, Seconds]:
    """Task -> part -> seconds of a run, and under "run" the whole."""
    client = airflow.client()
    for file in spans.iterdir():
        file.unlink()
    run_id = client.trigger(dag_id)
    if client.wait_for_run(dag_id, run_id, 600) != "success":
        failed = [name for name, state in client.task_states(dag_id, run_id).items() if state == "failed"]
        sys.exit("\n".join(line for task in failed for line in client.task_log(dag_id, run_id, task)[-20:]))
    # Airflow writes the end of the run a moment after its state.
    run = client.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
    tasks = client.tasks(dag_id, run_id)
    begins = [_moment(run["start_date"]), *(_moment(tasks[job]["end_date"]) for job in JOBS)]
    found = {"run": {"whole": _moment(run["end_date"]) - begins[0]}}
    for job, (before, end) in zip(JOBS, pairwise(begins), strict=True):
        task, marks = tasks[job], [json.loads(line) for line in (spans / job).read_text().splitlines()]
        at = {mark["name"]: mark for mark in marks}
        started, ready = at["process"]["begin"], at["imported"]["begin"]
        parts = {
            "whole": end - before,
            "scheduler": _moment(task["start_date"]) - before,
            "task start": started - _moment(task["start_date"]),
            "imports": ready - started,
            "job": at["end"]["begin"] - ready,
            "task end": end - at["end"]["begin"],
        }
        for mark in marks:
            if mark["end"] > mark["begin"]:
                name = f"  {mark['name']}"
                parts[name] = parts.get(name, 0.0) + mark["end"] - mark["begin"]
        found[job] = parts
    return found


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def show(kind: str, rounds: list[dict[str, Seconds]]) -> None:
    """Medians of the parts of a run."""
    whole = [each["run"]["whole"] for each in rounds]
    limit = AT_MOST[kind]
    verdict = "met" if median(whole) <= limit else "MISSED"
    spread = f"({min(whole):.1f} to {max(whole):.1f})"
    print(f"\n{kind}: {median(whole):.1f} s {spread} a run, median of {len(whole)}; at most {limit:g}: {verdict}")
    parts: dict[str, Mapping[str, Any]] = {}
    for job in JOBS:
        for name in dict.fromkeys(name for each in rounds for name in each[job]):
            parts.setdefault(name, {})[job] = median(each[job].get(name, 0.0) for each in rounds)  # type: ignore[index]
    print(f"  {'s':42}" + "".join(f"{job:>20}" for job in JOBS) + f"{'all':>10}")
    for name, by_job in parts.items():
        if not name.startswith(" ") or max(by_job.values()) >= SHOWN_FROM_S:
            row = [by_job.get(job) for job in JOBS]
            print(f"  {name:42}" + "".join(f"{'' if value is None else f'{value:.2f}':>20}" for value in row), end="")
            print(f"{sum(filter(None, row)):10.2f}")


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--history", type=int, default=720, help="batches before")
    arguments.add_argument("--open", type=int, default=100_000, help="open events")
    arguments.add_argument("--events", type=int, default=200, help="new ones on each topic a run")
    arguments.add_argument("--rounds", type=int, default=10)
    given = arguments.parse_args()
    with scratch() as folder, running(folder, given.history) as (pipeline, broker, airflow):
        now = time.time_ns() // 1_000_000
        send(pipeline, broker, given.open, (pipeline.left,), now - OPEN_FOR_MS, "open")
        measured: dict[str, list[dict[str, Seconds]]] = {kind: [] for kind in AT_MOST}
        # The first round, which brings the open events, is not measured.
        for number in range(given.rounds + 1):
            for kind, found in measured.items():
                if kind == "new events":
                    now = time.time_ns() // 1_000_000
                    send(pipeline, broker, given.events, pipeline.sides, now - 60_000, f"run {number}")
                seconds = one_run(airflow, pipeline.name, folder / "spans")
                say(f"{kind}: {seconds['run']['whole']:.1f} s")
                found += [seconds] if number else []
    for kind, found in measured.items():
        show(kind, found)


if __name__ == "__main__":
    main()
