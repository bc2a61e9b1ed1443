"""Landing, from Kafka to the raw tables, against the same job that parses nothing, and in other formats (`make bench-landing`).

    python -m tests.benches.landing [--events 2000000 5000000] [--rounds 5]

All run `land_batch` whole: ask the broker, read the planned offsets, append, read back and count, record in the ledger.

without parsing: the same job, but the columns that parsing fills stay empty.
avro, protobuf: the same events in the formats of a registry (a real one, which the bench starts), on topics of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker, admin_client, create_topics
from include.local.process import free_port
from spark_jobs.formats.decoding import Parser
from spark_jobs.formats.registry import VARIABLE
from spark_jobs.rules.parsed_columns import Columns, ParsedColumns
from spark_jobs.spark.local_workers import start_workers
from spark_jobs.stages import land
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.formats import Encode, in_avro, in_protobuf, send_encoded
from tests.benches.measuring import ROUNDS, scratch, show_ratio, show_times, spark_of_two_cores, take_turns
from tests.benches.traffic import send, slots
from tests.helpers.schema_registry import LocalRegistry
from tests.helpers.timeline import CALLS

PARTITIONS = 2
TARGET = 1.4
_NUMBERS = count(1)
OURS, UNPARSED = "landing", "without parsing"
FORMATS: dict[str, tuple[Callable[..., tuple[Pipeline, list[Encode]]], float]] = {
    "avro": (in_avro, 1.3),
    "protobuf": (in_protobuf, 1.5),
}


def bench_topics(broker: LocalBroker, pipeline: Pipeline = CALLS, settings: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline on empty topics of its own, which have these settings."""
    os.environ["PAIRING_KAFKA"] = json.dumps({"bootstrap.servers": broker.bootstrap})
    name = f"bench{next(_NUMBERS)}"
    topics = {side: f"{name}-{side}" for side in ("analytics", "metrics", "output")}
    create_topics(broker.bootstrap, dict.fromkeys(topics.values(), PARTITIONS), {"retention.ms": "-1", **(settings or {})})
    return replace(
        pipeline,
        name=name,
        left=Side(topics["analytics"], "analytics"),
        right=Side(topics["metrics"], "metrics"),
        output_topic=topics["output"],
    )


def on_topics(broker: LocalBroker, events: int) -> Pipeline:
    """The shipped pipeline on topics of its own, which hold that many events when this returns."""
    pipeline = bench_topics(broker)
    send(broker.bootstrap, pipeline, slots(events, time.time_ns() // 1_000_000))
    return pipeline


def delete_topics(broker: LocalBroker, pipeline: Pipeline) -> None:
    """What `bench_topics` made, for the next ones need the disk."""
    delete_named(broker.bootstrap, *(side.topic for side in pipeline.sides), pipeline.output_topic)


def delete_named(bootstrap: str, *topics: str) -> None:
    """Returns when the broker has answered for each."""
    # Held, for its answers end with it.
    admin = admin_client(bootstrap)
    for answer in admin.delete_topics([*topics]).values():
        answer.result()


def parser_of_nothing(pipeline: Pipeline, *_: object) -> Parser:
    """In the place of `event_parser`."""

    def parse(records: Columns) -> ParsedColumns:
        none = pa.nulls(len(records.value), pa.string())
        return ParsedColumns([none for _ in pipeline.key], pa.nulls(len(records.value), pa.int64()), none, none)

    return parse


class Landing:
    """Lands everything that is in the topics, each time into tables of its own."""

    def __init__(self, spark: Any, folder: Path, pipeline: Pipeline, events: int) -> None:
        self.spark, self.folder, self.pipeline, self.events, self.numbers = spark, folder, pipeline, events, count()

    def prepare(self) -> tuple[Warehouse, Ledger, Any]:
        """Fresh tables and a plan of one batch for all there is."""
        shutil.rmtree(self.folder, ignore_errors=True)
        warehouse = Warehouse(str(self.folder / f"{next(self.numbers)}"), self.pipeline, self.spark)
        create_missing(warehouse)
        ledger = Ledger(warehouse)
        return warehouse, ledger, land.plan_batch(warehouse, ledger, None, self.events, ())

    def land(self, *prepared: Any) -> None:
        landed = land.land_batch(*prepared).landed
        if landed.landed != self.events or landed.accepted != self.events:
            raise RuntimeError(f"{self.events} events sent, but landed {landed}")

    def land_unparsed(self, *prepared: Any) -> None:
        with mock.patch.object(land, "event_parser", parser_of_nothing):
            self.land(*prepared)


def in_other_formats(broker: LocalBroker, registry: LocalRegistry, events: int) -> dict[str, Pipeline]:
    """Pipelines on topics that hold so many events in each of FORMATS."""
    os.environ[VARIABLE] = json.dumps({"url": registry.url})
    pipelines = {}
    for name, (encoded, _) in FORMATS.items():
        pipelines[name], encoders = encoded(bench_topics(broker), registry)
        send_encoded(broker.bootstrap, pipelines[name], events, time.time_ns() // 1_000_000, encoders)
    return pipelines


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.landing", description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=[2_000_000, 5_000_000])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    start_workers()
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalRegistry(folder / "registry", free_port()) as registry,
        spark_of_two_cores(folder) as spark,
    ):
        for events in given.events:
            bench = Landing(spark, folder / "warehouse", on_topics(broker, events), events)
            others = {
                name: Landing(spark, folder / name, pipeline, events)
                for name, pipeline in in_other_formats(broker, registry, events).items()
            }
            candidates = {
                OURS: bench.land,
                UNPARSED: bench.land_unparsed,
                **{name: each.land for name, each in others.items()},
            }
            own = {name: each.prepare for name, each in others.items()}
            times = take_turns(candidates, given.rounds, bench.prepare, own)
            show_times(f"{events:,} events, Kafka to raw tables", times)
            show_ratio(times, OURS, UNPARSED, TARGET)
            for name, (_, at_most) in FORMATS.items():
                show_ratio(times, name, OURS, at_most)
            for each in (bench, *others.values()):
                delete_topics(broker, each.pipeline)


if __name__ == "__main__":
    main()
