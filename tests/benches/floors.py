"""Floors: what no system can do without, and what each stage of ours takes above that (`make bench-floors`).

    python -m tests.benches.floors [--events 2000000] [--rounds 5]

start: spark-submit of a script that starts a session and runs one task. Beside it, all stages in one application on empty topics.
read: two processes read both topics by librdkafka with the settings of the jobs, and drop what they read.
write: two processes write the rows of the raw tables, which they hold in memory, into the same Parquet files.
shuffle: Spark reads the columns that pairing needs, brings the rows of each key together, and drops them.
produce: two processes send the messages of the output topic, which they hold in memory, in one transaction each.
Beside these the stages whole, warm, in one process, in turn with their floors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

from include.local.broker import LocalBroker, create_topics
from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from spark_jobs.spark.session import tune_for_row_count
from spark_jobs.stages import land, pair
from spark_jobs.stages.pairing_input import EVENTS_A_TASK
from spark_jobs.tables.schemas import raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.floor_work import PROCESSES, Processes, hold_messages, hold_rows, produce, read, write
from tests.benches.landing import PARTITIONS, Landing, bench_topics, on_topics
from tests.benches.measuring import HEAP, JAVA, ROUNDS, Times, scratch, spark_of_two_cores, take_turns
from tests.benches.pairing import Pairing
from tests.benches.publishing import Publishing
from tests.conftest import yaml_of

# Stage of ours -> its floors. A stage does other work meanwhile, so the sum of its floors is no bound, but each of them is.
FLOORS = {"application": ("start",), "landing": ("read", "write"), "pairing": ("shuffle",), "publishing": ("produce",)}
_EMPTY = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().range(1).collect()\n"


def raw_files(warehouse: Warehouse) -> list[str]:
    """The paths of the files of both raw tables."""
    tables = map(raw_table, warehouse.pipeline.sides)
    return [f"{warehouse.path(table)}/{file.name}" for table in tables for file in warehouse.files(table)]


def shuffle(warehouse: Warehouse, events: int) -> None:
    """Spark alone, without Python."""
    spark, key = warehouse.spark, warehouse.pipeline.key
    tune_for_row_count(spark, events)
    rows = spark.read.parquet(*raw_files(warehouse)).select("topic", "partition", "offset", "ts", "payload", *key)
    rows.repartition(max(PROCESSES, events // EVENTS_A_TASK), *key).write.format("noop").mode("overwrite").save()


def submit(folder: Path, program: str, *arguments: str) -> None:
    """A Spark application from its start to its end."""
    options = ["--master", "local[2]", "--driver-memory", HEAP, "--conf", f"spark.driver.extraJavaOptions={JAVA}"]
    command = ["spark-submit", *options, program, *arguments]
    environment = project_environment() | {"PAIRING_KAFKA": os.environ["PAIRING_KAFKA"], "PAIRING_WAREHOUSE": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{program} failed: {done.stderr[-2000:]}")


def applications(folder: Path, broker: LocalBroker) -> dict[str, Callable[[], None]]:
    """One that does nothing, and ours on empty topics."""
    script, pipeline, numbers = folder / "empty.py", bench_topics(broker), count()
    script.write_text(_EMPTY)

    def ours() -> None:
        mine = replace(pipeline, name=f"{pipeline.name}n{next(numbers)}")
        submit(folder / "empty", "tests/benches/one_application.py", "--pipeline", str(yaml_of(mine, folder)))

    return {"application": ours, "start": lambda: submit(folder, str(script))}


def stages(folder: Path, broker: LocalBroker, events: int, rounds: int, processes: Processes) -> dict[str, Times]:
    """Ours and their floors in turn, warm."""
    with spark_of_two_cores(folder) as spark:
        landing = Landing(spark, folder / "first", on_topics(broker, events), events)
        warehouse, ledger, planned = landing.prepare()
        pair.pair_batch(warehouse, ledger, planned, land.land_batch(warehouse, ledger, planned))
        publishing = Publishing(warehouse, folder / "published", broker.bootstrap)
        publishing.publish(*publishing.prepare())
        pipeline, again = warehouse.pipeline, Landing(spark, folder / "again", warehouse.pipeline, events)
        pairing = Pairing(spark, folder / "paired", events)
        floor_topic = f"{pipeline.output_topic}-floor"
        create_topics(broker.bootstrap, {floor_topic: PARTITIONS})
        processes(hold_messages, pipeline.output_topic)
        times = take_turns(
            {
                "publishing": publishing.publish,
                "produce": lambda: processes(produce, floor_topic),
                "pairing": pairing.pair,
                "shuffle": lambda: shuffle(warehouse, events),
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
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker, closing(Processes()) as processes:
        started = take_turns(applications(folder, broker), given.rounds, tuple)
        for events in given.events:
            print(f"{events:,} events, medians of {given.rounds}", flush=True)
            show(started | stages(folder / f"{events}", broker, events, given.rounds, processes))


if __name__ == "__main__":
    main()
