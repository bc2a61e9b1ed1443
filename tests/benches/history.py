"""What a small batch costs after 1, 1,000 and 5,000 batches that were maintained as scheduled (`make bench-history`).

    python -m tests.benches.history [--batches 1 1000 5000] [--calls 10] [--rounds 7]

The four jobs in one process on a warm Spark session of the project's own settings; the pipelines take turns, a batch each a round, so that load from
elsewhere meets all of them. Each has its own topics, whose records are those that its history says it has read. How the histories are made says
tests/benches/long_history.py.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from zlib import crc32

from confluent_kafka import Producer

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker, create_topics
from include.local.machine import project_environment, say
from include.local.process import free_port
from spark_jobs import land_events, pair_events, publish_compounds, report_quality
from spark_jobs.tables.delta_log import trust_cache
from spark_jobs.tables.schemas import schemas
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.long_history import LongHistory
from tests.benches.measuring import Times, scratch, show_ratio
from tests.helpers.job_processes import JOBS
from tests.helpers.timeline import CALLS

PARTITIONS = 2
TARGET = 1.2
Record = tuple[str, int, bytes]


def pipeline_of(batches: int, bootstrap: str, suffix: str = "") -> Pipeline:
    """A pipeline on topics of its own."""
    name = f"after_{batches}{suffix}"
    left, right, output = (f"{name}-{side}" for side in ("analytics", "metrics", "output"))
    create_topics(bootstrap, dict.fromkeys((left, right, output), PARTITIONS), {"retention.ms": "-1"})
    return replace(CALLS, name=name, left=Side(left, "analytics"), right=Side(right, "metrics"), output_topic=output)


def some_calls(pipeline: Pipeline, calls: int, number: int) -> list[Record]:
    """An hour old, both sides of each; one that is still open, one without its right side, one event twice and one that is no JSON."""
    ago, now = time.time_ns() // 1_000_000 - 3_600_000, time.time_ns() // 1_000_000
    found: list[Record] = []

    def event(side: Side, user: str, ts: int) -> None:
        body = {"user1": user, "user2": f"of {number}", "timestamp": ts, side.payload: {"rating": 4.5}}
        found.append((side.topic, crc32(user.encode()) % PARTITIONS, json.dumps(body).encode()))

    for call in range(calls):
        for side in pipeline.sides[: 1 if call == 0 else 2]:
            event(side, f"user {call}", ago + call)
    event(pipeline.left, "user 1", ago + 1)
    event(pipeline.left, "waits", now)
    return [*found, (pipeline.right.topic, 0, b"{nope")]


def batch(
    warehouse: Warehouse, calls: int, number: int, bootstrap: str, job_ends: Callable[[str], None] = lambda job: None
) -> dict[str, float]:
    """Job -> seconds, of one batch of new calls. `job_ends` is called after each job, and not measured."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for topic, partition, value in some_calls(warehouse.pipeline, calls, number):
        producer.produce(topic, value, partition=partition)
    producer.flush(20)
    work = {
        "land_events": lambda: land_events.main(warehouse, 1_000_000),
        "pair_events": lambda: pair_events.main(warehouse),
        "publish_compounds": lambda: publish_compounds.main(warehouse),
        "report_quality": lambda: report_quality.main(warehouse),
    }
    seconds = {}
    for job in JOBS:
        begin = time.perf_counter()
        with trust_cache():
            work[job]()
        seconds[job] = time.perf_counter() - begin
        job_ends(job)
    return seconds


def with_history(spark: object, folder: Path, batches: int, calls: int, bootstrap: str, suffix: str = "") -> Warehouse:
    """A warehouse after so many batches."""
    warehouse = Warehouse(str(folder / "warehouse"), pipeline_of(batches, bootstrap, suffix), spark)  # type: ignore[arg-type]
    producer, records = Producer({"bootstrap.servers": bootstrap}), some_calls(warehouse.pipeline, calls, 0)
    for topic, partition, value in records:
        producer.produce(topic, value, partition=partition)
    producer.flush(20)
    land_events.main(warehouse, 1_000_000)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    begin = time.perf_counter()
    LongHistory(warehouse, records, bootstrap).grow(batches, say)
    say(f"{batches:,} batches made in {time.perf_counter() - begin:.0f} s: {', '.join(_files(warehouse))}")
    return warehouse


def _files(warehouse: Warehouse) -> list[str]:
    """Data files and log files of each table, as they lie there."""
    found = []
    for table in schemas(warehouse.pipeline):
        folder = Path(warehouse.path(table))
        found.append(f"{table} {len(list(folder.glob('*.parquet')))} + {len(list((folder / '_delta_log').iterdir()))}")
    return found


def measure(folder: Path, sizes: list[int], calls: int, rounds: int) -> None:
    """Makes the histories, then measures; prints medians by job, and the ratio to the shortest history."""
    environment = project_environment()
    os.environ.update({name: environment[name] for name in ("PATH", "SPARK_CONF_DIR", "PYTHONPATH", "SPARK_LOCAL_IP")})
    from spark_jobs.spark.session import spark_session

    spark = spark_session("bench", "bench")
    spark.sparkContext.setLogLevel("ERROR")
    with LocalBroker(folder / "broker", free_port()) as broker:
        os.environ["PAIRING_KAFKA"] = json.dumps({"bootstrap.servers": broker.bootstrap})
        warehouses = {size: with_history(spark, folder, size, calls, broker.bootstrap) for size in sizes}
        measured: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        # The first is not measured.
        for number in range(rounds + 1):
            for size, warehouse in warehouses.items():
                seconds = batch(warehouse, calls, number + 1, broker.bootstrap)
                measured[size] += [seconds] if number else []
    spark.stop()
    told = "".join(f"{size:>10,}" for size in sizes)
    print(f"s a batch of {calls} calls after so many batches, medians of {rounds} rounds\n{'':20}{told}")
    for job in JOBS:
        print(f"{job:20}" + "".join(f"{median(each[job] for each in measured[size]):10.2f}" for size in sizes))
    times = {f"{size:,} batches": Times([sum(each.values()) for each in measured[size]]) for size in sizes}
    print(f"{'all four':20}" + "".join(f"{each.median:10.2f}" for each in times.values()), flush=True)
    first, *others = times
    for other in others:
        show_ratio(times, other, first, TARGET)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 1_000, 5_000], help="lengths of the histories")
    arguments.add_argument("--calls", type=int, default=10, help="of a batch")
    arguments.add_argument("--rounds", type=int, default=7)
    given = arguments.parse_args()
    with scratch() as folder:
        measure(folder, given.batches, given.calls, given.rounds)


if __name__ == "__main__":
    main()
