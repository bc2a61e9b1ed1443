"""How the jobs scale on a cluster (`make bench-scaling`): a model from one and two workers with one core each, and what it says of larger rates.

    python -m tests.benches.scaling [--events 500000 2000000 5000000 20000000] [--every-s 60]

Each size is landed, paired and published once by each cluster, tables on an S3 server of this machine. The model of a job is
`seconds = start + events / workers * cost`, by least squares of the relative errors; the cost has the broker and the store on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from include.config.store import OPTIONS_VARIABLE
from include.local.broker import LocalBroker
from include.local.cluster import LocalCluster
from include.local.machine import project_environment
from include.local.process import free_port
from include.local.spark import LocalSpark
from include.local.store import LocalS3
from spark_jobs.tables.schemas import schemas
from tests.benches.cluster import EXECUTOR_MEMORY, MEMORY, jobs_on, timed
from tests.benches.landing import delete_topics, on_topics
from tests.benches.measuring import scratch
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.stores import table_of

SIZES = (500_000, 2_000_000, 5_000_000, 20_000_000)
RATES = (10_000, 1_000_000, 10_000_000)
WORKERS = (1, 2)
STAGES = JOBS[:3]
# Of the time between two runs; the rest is for what comes late, for replays and for maintenance.
_BUSY = 0.5
_DAY_S = 86_400


class Measured(NamedTuple):
    """Of one batch."""

    events: int
    workers: int
    seconds: Mapping[str, float]  # by job
    stored: int  # bytes of all files that the batch added to the tables
    files: int


class Model(NamedTuple):
    """Seconds = start + events / workers * cost."""

    start: float  # s
    cost: float  # s for an event on one core
    error: float  # largest relative error of what was measured

    def workers(self, events: float, within_s: float) -> float:
        """Cores with which a batch of so many events takes at most so many seconds."""
        return events * self.cost / max(within_s - self.start, 1e-9)


def fit(points: Sequence[tuple[int, int, float]]) -> Model:
    """The model of the points (events, workers, seconds).

    >>> start, cost, error = fit([(1000, 1, 3.0), (1000, 2, 2.0), (4000, 2, 5.0)])
    >>> round(start, 6), round(cost, 6), round(error, 6)
    (1.0, 0.002, 0.0)
    """
    seconds = np.array([took for _, _, took in points])
    columns = np.array([[1.0, events / workers] for events, workers, _ in points])
    # Divided by the seconds, for the largest batch would decide alone.
    (start, cost), *_ = np.linalg.lstsq(columns / seconds[:, None], np.ones(len(points)), rcond=None)
    error = np.abs(columns @ (start, cost) / seconds - 1).max()
    return Model(max(float(start), 0.0), float(cost), float(error))


@contextmanager
def server_on(folder: Path, workers: int) -> Iterator[LocalSpark]:
    """A warm Spark server on a cluster of so many workers, with an event log."""
    log = folder / "events"
    log.mkdir(parents=True)
    settings = {
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": EXECUTOR_MEMORY,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with (
        LocalCluster(folder / "cluster", free_port(), ("127.0.0.1",) * workers) as cluster,
        LocalSpark(folder / "spark", free_port(), cluster.master, settings) as server,
    ):
        server.warm_up()
        yield server


def shuffled(folder: Path) -> int:
    """Bytes that tasks have written for shuffles so far, by the event log."""
    total = 0
    for file in (folder / "events").rglob("*"):
        if file.is_file() and not file.name.startswith("appstatus"):
            for line in file.read_text().splitlines():
                if '"SparkListenerTaskEnd"' in line:
                    metrics = json.loads(line).get("Task Metrics") or {}
                    total += metrics.get("Shuffle Write Metrics", {}).get("Shuffle Bytes Written", 0)
    return total


def added(jobs: Jobs) -> Counter[str]:
    """Bytes and number of all files of the pipeline's tables."""
    found: Counter[str] = Counter()
    for table in schemas(jobs.pipeline):
        actions = pa.table(table_of(jobs.warehouse, jobs.pipeline, table).get_add_actions())
        sizes = actions["size_bytes"].to_pylist()
        found.update(stored=sum(sizes), files=len(sizes))
    return found


def measure(broker: LocalBroker, folder: Path, sizes: Sequence[int]) -> tuple[list[Measured], float]:
    """All sizes on all clusters, and the shuffled bytes of an event."""
    measured, shuffles, events_of_all = [], 0, 0
    for workers in WORKERS:
        place = folder / str(workers)
        with server_on(place, workers) as server:
            warm = 0
            # The first is not measured: the compilers of the JVMs work beside it.
            for number, events in enumerate([sizes[0], *sizes]):
                pipeline = replace(on_topics(broker, events), max_records_per_batch=events)
                jobs = jobs_on(server, f"{pipeline.name}w{workers}n{number}", pipeline, broker, place)
                seconds, tables = timed(jobs, STAGES), added(jobs)
                delete_topics(broker, pipeline)
                if not number:
                    warm = shuffled(place)
                    continue
                measured.append(Measured(events, workers, seconds, tables["stored"], tables["files"]))
                took = ", ".join(f"{job} {seconds[job]:.1f} s" for job in STAGES)
                each = f"{tables['stored'] / events:.0f} bytes an event in {tables['files']} files"
                print(f"  {workers} workers, {events:,} events: {took}; {each}", flush=True)
                events_of_all += events
            shuffles += shuffled(place) - warm
    return measured, shuffles / events_of_all


def show(measured: Sequence[Measured], shuffle: float, every_s: float) -> None:
    """The models, and what they say of RATES when a batch is taken every so many seconds."""
    models = {job: fit([(each.events, each.workers, each.seconds[job]) for each in measured]) for job in STAGES}
    print("\nseconds = start + events / cores * cost")
    for job, model in models.items():
        print(f"  {job:20}{model.start:6.2f} s {model.cost * 1e6:8.2f} µs   within {model.error:.0%}")
    # The jobs of a batch run one after the other.
    whole = Model(sum(model.start for model in models.values()), sum(model.cost for model in models.values()), 0)
    stored = max(measured, key=lambda each: each.events)
    print(f"\na batch every {every_s:.0f} s, done in half of that; {shuffle:.0f} bytes an event shuffled")
    print("   events/s   events a batch      cores   shuffled a batch   stored a day")
    for rate in RATES:
        events = rate * every_s
        cores = max(1, int(np.ceil(whole.workers(events, every_s * _BUSY))))
        day = rate * _DAY_S * stored.stored / stored.events
        print(f"{rate:11,} {events:16,.0f} {cores:10,} {shuffle * events / 1e9:15.1f} GB {day / 1e12:11.2f} TB", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--events", type=int, nargs="+", default=list(SIZES))
    arguments.add_argument("--every-s", type=float, default=60.0, help="seconds between two batches")
    given = arguments.parse_args()
    os.environ["PATH"] = project_environment()["PATH"]
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalS3(folder / "s3", free_port()) as store,
    ):
        os.environ[OPTIONS_VARIABLE] = json.dumps(store.options)
        show(*measure(broker, folder, given.events), given.every_s)


if __name__ == "__main__":
    main()
