"""Floors: what no system can do without, and what each stage of ours takes above that (`make bench-floors`).

    python -m tests.benches.floors [--events 2000000] [--rounds 5]

start: a process that imports what the jobs import. Beside it, all stages in one process on empty topics.
read: two processes read both topics by librdkafka with the settings of the jobs, and drop what they read.
write: two processes write the rows of the raw tables, which they hold in memory, into the same Parquet files.
shuffle: two workers read the columns that pairing needs, bring the rows of each key together, and drop them.
produce: two processes send the messages of the output topic, which they hold in memory, in one transaction each.
Beside these the stages whole, by the job's own workers, in turn with their floors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from include.local.broker import LocalBroker, create_topics
from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from spark_jobs.rules.rules import event_schema
from spark_jobs.spark.local_shuffle import ROWS_OF_A_BUCKET, Buckets, shuffled
from spark_jobs.spark.local_workers import run_parts, start_workers
from spark_jobs.stages import land, pair
from spark_jobs.stages.pairing_input import bucket_of_key, events_to_shuffle
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.schemas import raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.floor_work import PROCESSES, Processes, hold_messages, hold_rows, produce, read, write
from tests.benches.landing import PARTITIONS, Landing, bench_topics, on_topics
from tests.benches.measuring import ROUNDS, Times, scratch, take_turns
from tests.benches.pairing import Pairing
from tests.benches.publishing import Publishing
from tests.conftest import yaml_of

# Stage of ours -> its floors. A stage does other work meanwhile, so the sum of its floors is no bound, but each of them is.
FLOORS = {"application": ("start",), "landing": ("read", "write"), "pairing": ("shuffle",), "publishing": ("produce",)}
_IMPORTS = "import tests.benches.one_application"


def raw_files(warehouse: Warehouse) -> list[str]:
    """The paths of the files of both raw tables."""
    tables = map(raw_table, warehouse.pipeline.sides)
    return [f"{warehouse.path(table)}/{file.name}" for table in tables for file in warehouse.files(table)]


def shuffle(warehouse: Warehouse, planned: LedgerRow, events: int) -> None:
    """What `pair_batch` does, without a decision."""
    key, schema = warehouse.pipeline.key, event_schema(warehouse.pipeline)
    parts, read_part, _ = events_to_shuffle(warehouse, planned)
    count = 1 + events // ROWS_OF_A_BUCKET

    def drop(given: tuple[Buckets, range]) -> Iterator[pa.RecordBatch]:
        buckets, mine = given
        rows = sum(table.num_rows for table in buckets.read(mine))
        yield pa.record_batch({"rows": [rows]})

    with shuffled(parts, read_part, partial(bucket_of_key, key=key, buckets=count), schema) as buckets:
        portions = [range(number, count, PROCESSES) for number in range(PROCESSES)]
        found = sum(each["rows"][0].as_py() for each in run_parts([(buckets.only(mine), mine) for mine in portions], drop))
    if found != events:
        raise RuntimeError(f"{found} events came together, not {events}")


def run_python(*arguments: str, **environment: str) -> None:
    """A process from its start to its end."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=project_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{arguments} failed: {done.stderr[-2000:]}")


def applications(folder: Path, broker: LocalBroker) -> dict[str, Callable[[], None]]:
    """A process that only imports, and ours on empty topics."""
    pipeline, numbers = bench_topics(broker), count()
    places = {"PAIRING_KAFKA": os.environ["PAIRING_KAFKA"], "PAIRING_WAREHOUSE": str(folder / "empty")}

    def ours() -> None:
        mine = replace(pipeline, name=f"{pipeline.name}n{next(numbers)}")
        run_python("-m", "tests.benches.one_application", "--pipeline", str(yaml_of(mine, folder)), **places)

    return {"application": ours, "start": lambda: run_python("-c", _IMPORTS)}


def stages(folder: Path, broker: LocalBroker, events: int, rounds: int, processes: Processes) -> dict[str, Times]:
    """Ours and their floors in turn."""
    landing = Landing(None, folder / "first", on_topics(broker, events), events)
    warehouse, ledger, planned = landing.prepare()
    pair.pair_batch(warehouse, ledger, planned, land.land_batch(warehouse, ledger, planned))
    publishing = Publishing(warehouse, folder / "published", broker.bootstrap)
    publishing.publish(*publishing.prepare())
    pipeline, again = warehouse.pipeline, Landing(None, folder / "again", warehouse.pipeline, events)
    pairing = Pairing(None, folder / "paired", events)
    floor_topic = f"{pipeline.output_topic}-floor"
    create_topics(broker.bootstrap, {floor_topic: PARTITIONS})
    processes(hold_messages, pipeline.output_topic)
    times = take_turns(
        {
            "publishing": publishing.publish,
            "produce": lambda: processes(produce, floor_topic),
            "pairing": pairing.pair,
            "shuffle": lambda: shuffle(warehouse, planned, events),
        },
        rounds,
        tuple,
        {"publishing": publishing.prepare, "pairing": pairing.prepare},
    )
    processes(hold_rows, raw_files(warehouse))
    place = warehouse.place_for_files(raw_table(pipeline.left))
    return times | take_turns(
        {
            "landing": again.land,
            "read": lambda: processes(read, [side.topic for side in pipeline.sides]),
            "write": lambda: processes(write, place.store),
        },
        rounds,
        tuple,
        {"landing": again.prepare},
    )


def show(times: dict[str, Times]) -> None:
    """Each stage with its floors, and what it takes above them."""
    for stage, floors in FLOORS.items():
        print(f"  {stage:14}{times[stage]}")
        for floor in floors:
            above = times[stage].median - times[floor].median
            print(
                f"    {floor:12}{times[floor]}   above it: {above:.2f} s, {times[stage].median / times[floor].median:.2f} times"
            )
        if len(floors) > 1:
            total = sum(times[floor].median for floor in floors)
            print(f"    one after the other {total:7.2f} s   above it: {times[stage].median - total:.2f} s", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.floors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--events", type=int, nargs="+", default=[2_000_000])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    os.environ["PATH"] = project_environment()["PATH"]
    start_workers()
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker, closing(Processes()) as processes:
        started = take_turns(applications(folder, broker), given.rounds, tuple)
        for events in given.events:
            print(f"{events:,} events, medians of {given.rounds}", flush=True)
            show(started | stages(folder / f"{events}", broker, events, given.rounds, processes))


if __name__ == "__main__":
    main()
