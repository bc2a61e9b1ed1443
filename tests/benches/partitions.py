"""A batch over many partitions (`make bench-partitions`): what plan, clock, ledger row and driver take.

    python -m tests.benches.partitions [--partitions 2x2 100x32 1000x256] [--events 100000]

1000x256: two input topics with 1,000 partitions each, an output topic with 256. The same events each time, by the four jobs, each a process of its
own without a warm server, so that the memory is the driver's. Then an empty batch.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa

from include.config.pipeline import Side
from include.local.broker import LocalBroker, create_topics
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.benches.measuring import scratch
from tests.benches.traffic import send, slots
from tests.conftest import yaml_of
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.stores import table_of
from tests.helpers.timeline import CALLS

EVENTS = 100_000
SHAPES = ("2x2", "100x32", "1000x256")
_EVERY_S = 0.05


class Taken(NamedTuple):
    """Of one job: its seconds, and the largest resident memory of its Python process, MB."""

    seconds: float
    driver_mb: float


def run(jobs: Jobs, job: str) -> Taken:
    """Runs the job to its good end."""
    begin, over, largest = time.perf_counter(), threading.Event(), 0.0
    running = jobs.start(job)

    def look() -> None:
        nonlocal largest
        process = psutil.Process(running.process.pid)
        while not over.wait(_EVERY_S):
            try:
                largest = max(largest, process.memory_info().rss / 1e6)
            except psutil.Error:
                return

    watch = threading.Thread(target=look)
    watch.start()
    status = running.wait(600)
    over.set()
    watch.join()
    if status:
        raise SystemExit(f"{job} failed: {running.told()}")
    return Taken(time.perf_counter() - begin, largest)


def batch(jobs: Jobs) -> None:
    """Runs the four jobs and prints a line for each."""
    for job in JOBS:
        taken = run(jobs, job)
        print(f"    {job:20}{taken.seconds:8.1f} s {taken.driver_mb:8.0f} MB", flush=True)


def measure(broker: LocalBroker, server: LocalSpark, folder: Path, inputs: int, outputs: int, events: int) -> None:
    """Prints what a batch of the events over so many partitions takes, and what the ledger keeps of it."""
    name = f"p{inputs}x{outputs}"
    left, right, output = (f"{name}-{side}" for side in ("analytics", "metrics", "output"))
    create_topics(broker.bootstrap, {left: inputs, right: inputs, output: outputs}, {"retention.ms": "-1"})
    pipeline = replace(
        CALLS, name=name, left=Side(left, "analytics"), right=Side(right, "metrics"), output_topic=output,
        max_records_per_batch=10 * events,
    )  # fmt: skip
    send(broker.bootstrap, pipeline, slots(events, time.time_ns() // 1_000_000))
    place = folder / name
    place.mkdir()
    jobs = Jobs(yaml_of(pipeline, place), pipeline, broker.bootstrap, server.url, place / "warehouse")
    print(f"\n2 x {inputs:,} input partitions, {outputs} output partitions, {events:,} events", flush=True)
    batch(jobs)
    print("  an empty batch", flush=True)
    batch(jobs)
    table = table_of(jobs.warehouse, pipeline, "batch_ledger")
    rows = table.to_pyarrow_table().to_pylist()
    print("  the ledger's rows, characters as JSON: ", end="")
    sizes = {row["step"]: len(json.dumps(row, default=str)) for row in rows if row["batch_id"] == 1}
    print(", ".join(f"{step} {size:,}" for step, size in sizes.items()), end="")
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    print(f"; its {len(files)} files have {sum(each['size_bytes'] for each in files):,} bytes", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.partitions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--partitions", nargs="+", default=list(SHAPES), metavar="INPUTxOUTPUT")
    arguments.add_argument("--events", type=int, default=EVENTS)
    given = arguments.parse_args()
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalSpark(folder / "spark", free_port()) as server,
    ):
        server.warm_up()
        for shape in given.partitions:
            inputs, outputs = map(int, shape.split("x"))
            measure(broker, server, folder, inputs, outputs, given.events)


if __name__ == "__main__":
    main()
