"""Landing, from Kafka to the raw tables, against the same job that parses nothing (`make bench-landing`).

    python -m tests.benches.landing [--events 2000000 5000000] [--rounds 5]

All run `land_batch` whole: ask the broker, read the planned offsets, append, read back and count, record in the ledger.

without parsing: the same job, but the columns that parsing fills stay empty.
by Spark, unparsed: Spark's own source reads, and Spark writes; not a byte comes to Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import functions as F

from include.local_broker import LocalBroker, create_topics
from include.local_process import free_port
from include.pipeline_config import Pipeline, Side
from spark_jobs import land_events, landing
from spark_jobs.broker.records import Span, read_records
from spark_jobs.pairing.parsing import BodyFields
from spark_jobs.pairing.parsing_in_bulk import ParsedColumns
from spark_jobs.storage.commit import commit
from spark_jobs.storage.ledger import Ledger
from spark_jobs.storage.tables import Warehouse, declared_schema, raw_table
from tests.benches.measuring import ROUNDS, scratch, show_ratio, show_times, spark_of_two_cores, take_turns
from tests.benches.traffic import send
from tests.timeline import CALLS

PARTITIONS = 2
TARGET = 1.4
_NUMBERS = count(1)
OURS, UNPARSED, BY_SPARK = "landing", "without parsing", "by Spark, unparsed"


def bench_topics(broker: LocalBroker, settings: Mapping[str, str] | None = None) -> Pipeline:
    """The shipped pipeline on empty topics of its own, which have these settings."""
    os.environ["PAIRING_KAFKA"] = json.dumps({"bootstrap.servers": broker.bootstrap})
    name = f"bench{next(_NUMBERS)}"
    topics = {side: f"{name}-{side}" for side in ("analytics", "metrics", "output")}
    create_topics(broker.bootstrap, dict.fromkeys(topics.values(), PARTITIONS), {"retention.ms": "-1", **(settings or {})})
    return replace(
        CALLS,
        name=name,
        left=Side(topics["analytics"], "analytics"),
        right=Side(topics["metrics"], "metrics"),
        output_topic=topics["output"],
    )


def on_topics(broker: LocalBroker, events: int) -> Pipeline:
    """The pipeline of `bench_topics`; the topics hold that many events when this returns."""
    pipeline = bench_topics(broker)
    send(broker.bootstrap, pipeline, events, time.time_ns() // 1_000_000)
    return pipeline


def parse_nothing(values: pa.Array, record_ts: pa.Array, fields: BodyFields, latest_ts: int) -> ParsedColumns:
    """In the place of `parse_columns`."""
    none = pa.nulls(len(values), pa.string())
    return ParsedColumns([none for _ in fields.key], pa.nulls(len(values), pa.int64()), none, none)


def append_by_spark(warehouse: Warehouse, planned: Any, ranges: Any, side: Side) -> None:
    """What `append_raw` does with one topic, by Spark alone and without the parsing."""
    spans = {(at.topic, at.partition): Span(at.from_offset, at.until_offset) for at in ranges if at.topic == side.topic}
    rows = read_records(warehouse.spark, spans, True).withColumn("batch_id", F.lit(planned.batch_id).cast("bigint"))
    declared = declared_schema(planned.pipeline, raw_table(side))
    missing = {field.name: F.lit(None).cast(field.dataType) for field in declared if field.name not in rows.columns}
    commit(
        warehouse,
        raw_table(side),
        rows.withColumns(missing).select(declared.fieldNames()),
        raw_table(side),
        planned.batch_id,
    )


class Landing:
    """Lands everything that is in the topics, each time into tables of its own."""

    def __init__(self, spark: Any, folder: Path, pipeline: Pipeline, events: int) -> None:
        self.spark, self.folder, self.pipeline, self.events, self.numbers = spark, folder, pipeline, events, count()

    def prepare(self) -> tuple[Warehouse, Ledger, Any]:
        """Fresh tables and a plan of one batch for all there is."""
        shutil.rmtree(self.folder, ignore_errors=True)
        warehouse = Warehouse(self.spark, str(self.folder / f"{next(self.numbers)}"), self.pipeline)
        warehouse.create_missing()
        ledger = Ledger(warehouse)
        return warehouse, ledger, land_events.plan_batch(warehouse, ledger, None, self.events, ())

    def land(self, *prepared: Any) -> None:
        landed = land_events.land_batch(*prepared)
        if landed.counts["landed"] != self.events or landed.counts["accepted"] != self.events:
            raise RuntimeError(f"{self.events} events sent, but landed {landed.counts}")

    def land_unparsed(self, *prepared: Any) -> None:
        with mock.patch.object(landing, "parse_columns", parse_nothing):
            self.land(*prepared)

    def land_by_spark(self, *prepared: Any) -> None:
        with mock.patch.object(land_events, "append_raw", append_by_spark):
            self.land(*prepared)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.landing", description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=[2_000_000, 5_000_000])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker, spark_of_two_cores(folder) as spark:
        for events in given.events:
            bench = Landing(spark, folder / "warehouse", on_topics(broker, events), events)
            candidates = {OURS: bench.land, UNPARSED: bench.land_unparsed, BY_SPARK: bench.land_by_spark}
            times = take_turns(candidates, given.rounds, bench.prepare)
            show_times(f"{events:,} events, Kafka to raw tables", times)
            show_ratio(times, OURS, UNPARSED, TARGET)
            show_ratio(times, OURS, BY_SPARK)


if __name__ == "__main__":
    main()
