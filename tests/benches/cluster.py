"""A Spark cluster of two workers with one core each against one process with two cores (`make bench-cluster`).

    python -m tests.benches.cluster [--events 2000000 10000000] [--rounds 3] [--small-rounds 7]

As the DAG runs them: each job is a process of its own, on a warm Spark server; tables on an S3 server of this machine. Large: everything on the
topics is landed, paired and published, each time into tables of its own. Small: batches of 100 calls (200 events) by all four jobs. The two take
turns, so that load from elsewhere meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from include.config.pipeline import Pipeline
from include.config.store import OPTIONS_VARIABLE
from include.local.broker import LocalBroker
from include.local.cluster import LocalCluster
from include.local.machine import project_environment
from include.local.process import free_port
from include.local.spark import LOCAL_MASTER, LocalSpark
from include.local.store import BUCKET, LocalS3
from tests.benches.history import pipeline_of, some_calls
from tests.benches.landing import delete_topics, on_topics
from tests.benches.measuring import Times, scratch, show_ratio
from tests.conftest import yaml_of
from tests.helpers.job_processes import JOBS, Jobs

ONE, CLUSTER = "one process", "cluster"
AT_MOST_LARGE, AT_MOST_SMALL = 1.2, 1.5
CALLS = 100
# The same for a server's only JVM and for an executor.
MEMORY, EXECUTOR_MEMORY = "2g", "1800m"
Seconds = Mapping[str, float]


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, LocalSpark]]:
    """Warm Spark servers by name: one that does all work itself, and one whose executors are on a cluster."""
    memory = {"spark.driver.memory": MEMORY, "spark.executor.memory": EXECUTOR_MEMORY}
    with (
        LocalCluster(folder / "executors", free_port()) as cluster,
        LocalSpark(folder / ONE, free_port(), LOCAL_MASTER, memory) as one,
        LocalSpark(folder / CLUSTER, free_port(), cluster.master, memory) as other,
    ):
        for server in (one, other):
            server.warm_up()
        yield {ONE: one, CLUSTER: other}


def timed(jobs: Jobs, names: tuple[str, ...]) -> Seconds:
    """Runs the jobs, and returns the seconds of each, its process's start included."""
    seconds = {}
    for job in names:
        begin = time.perf_counter()
        jobs.run(job)
        seconds[job] = time.perf_counter() - begin
    return seconds


def jobs_on(server: LocalSpark, name: str, pipeline: Pipeline, broker: LocalBroker, folder: Path) -> Jobs:
    """The jobs of the pipeline under this name, in tables of its own."""
    place = folder / name
    place.mkdir()
    mine = replace(pipeline, name=name)
    return Jobs(yaml_of(mine, place), mine, broker.bootstrap, server.url, f"s3://{BUCKET}/{name}")


def large(on: Mapping[str, LocalSpark], broker: LocalBroker, folder: Path, events: int, rounds: int) -> None:
    """Prints what landing, pairing and publishing of so many events takes on each."""
    pipeline = replace(on_topics(broker, events), max_records_per_batch=events)
    seconds: dict[str, list[Seconds]] = {each: [] for each in on}
    # The first is not measured.
    for number in range(rounds + 1):
        for each, server in on.items():
            jobs = jobs_on(server, f"{pipeline.name}r{number}{each[:3]}", pipeline, broker, folder)
            took = timed(jobs, JOBS[:3])
            seconds[each] += [took] if number else []
    delete_topics(broker, pipeline)
    show(f"{events:,} events", seconds, JOBS[:3], AT_MOST_LARGE)


def small(on: Mapping[str, LocalSpark], broker: LocalBroker, folder: Path, rounds: int) -> None:
    """Prints what a small batch takes on each."""
    pipelines = {each: pipeline_of(CALLS, broker.bootstrap, f"_{each[:3]}") for each in on}
    jobs = {each: jobs_on(on[each], pipelines[each].name, pipelines[each], broker, folder) for each in on}
    seconds: dict[str, list[Seconds]] = {each: [] for each in on}
    for number in range(rounds + 1):
        for each, pipeline in pipelines.items():
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for topic, partition, value in some_calls(pipeline, CALLS, number):
                producer.produce(topic, value, partition=partition)
            producer.flush(20)
            took = timed(jobs[each], JOBS)
            seconds[each] += [took] if number else []
    show(f"{2 * CALLS} events", seconds, JOBS, AT_MOST_SMALL)


def show(title: str, seconds: Mapping[str, list[Seconds]], jobs: tuple[str, ...], at_most: float) -> None:
    """Medians by job, and the ratio of all jobs together."""
    rounds = len(next(iter(seconds.values())))
    print(f"\n{title}, medians of {rounds} rounds, s{'':12}" + "".join(f"{job:>20}" for job in (*jobs, "all")))
    for each, measured in seconds.items():
        medians = [median(took[job] for took in measured) for job in jobs]
        total = median(sum(took.values()) for took in measured)
        print(f"  {each:44}" + "".join(f"{value:20.2f}" for value in (*medians, total)))
    times = {each: Times([sum(took.values()) for took in measured]) for each, measured in seconds.items()}
    show_ratio(times, CLUSTER, ONE, at_most)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--events", type=int, nargs="*", default=[2_000_000, 10_000_000], help="large batches")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--small-rounds", type=int, default=7, help="0: no small batches")
    given = arguments.parse_args()
    os.environ["PATH"] = project_environment()["PATH"]
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalS3(folder / "s3", free_port()) as store,
        servers(folder) as on,
    ):
        os.environ[OPTIONS_VARIABLE] = json.dumps(store.options)
        if given.small_rounds:
            small(on, broker, folder, given.small_rounds)
        for events in given.events:
            large(on, broker, folder, events, given.rounds)


if __name__ == "__main__":
    main()
