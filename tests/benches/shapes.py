"""The hostile shapes (`tests/helpers/hostile_events.py`) on the whole way: from Kafka, landed, paired and published (`make bench-shapes`).

    python -m tests.benches.shapes [NAME …]

By workers of the job, and by Spark with the settings of `make setup` where these cannot; with PAIRING_WORKERS=0 by Spark alone. Prints the
seconds of the three jobs in a warm application, how they grow from a quarter of the size, and the peak memory of the largest Python worker and of
Spark's JVM, which is driver and executor in one. Exit 1 if an answer is wrong, if four times the events take more than five times the time, or if a
process needs more than 3 GB.
"""

from __future__ import annotations

import gc
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from include.config.pipeline import Pipeline
from include.local.broker import LocalBroker
from include.local.process import free_port
from spark_jobs import publish_compounds
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.spark.local_workers import start_workers
from spark_jobs.stages import land, pair
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.landing import Landing, bench_topics, delete_topics
from tests.benches.measuring import PeakMemory, scratch, spark_of_two_cores
from tests.benches.traffic import LARGEST, deliver
from tests.helpers.hostile_events import SHAPES, Events, Shape
from tests.helpers.hostile_shapes import MAX_GROWTH, MAX_MB, OUTCOME, SIDES, exact, one_sided, with_collapsed

# How many rows come to Python at a time is Spark's affair here.
NAMES = [name for name in SHAPES if name != "dense-small-batches"]
_DAY_MS = 86_400_000


class Ran(NamedTuple):
    """One shape at one size."""

    land_s: float
    pair_s: float
    publish_s: float
    peak: PeakMemory
    exact: bool

    @property
    def seconds(self) -> float:
        return self.land_s + self.pair_s + self.publish_s


def messages(pipeline: Pipeline, shape: Shape, events: Events) -> Iterator[tuple[str, str, None, int]]:
    """Each event for partition 0 of its side's topic, all of them over for a day."""
    shift = time.time_ns() // 1_000_000 - _DAY_MS - int(events.ts.max())
    columns = (events.user.tolist(), (events.ts + shift).tolist(), events.side.tolist())
    for number, (user, ts, side) in enumerate(zip(*columns, strict=True)):
        name, text = str(user).ljust(shape.key_bytes, "u"), str(number) if shape.distinct else ""
        of = pipeline.sides[side]
        body = f'{{"user1":"{name}","user2":"v","timestamp":{ts},"{of.payload}":"{text.ljust(shape.payload_bytes)}"}}'
        yield of.topic, body, None, 0


def run(spark: Any, folder: Path, broker: LocalBroker, shape: Shape, size: int) -> Ran:
    """Lands, pairs and publishes one batch of the shape."""
    events = shape.events(size)
    pipeline = bench_topics(broker, shape.pipeline, {"max.message.bytes": str(LARGEST)})
    deliver(broker.bootstrap, messages(pipeline, shape, events))
    warehouse, ledger, planned = Landing(spark, folder / "warehouse", pipeline, size).prepare()
    gc.collect()
    with PeakMemory() as peak:
        moments = [time.perf_counter()]
        landed = land.land_batch(warehouse, ledger, planned)
        moments.append(time.perf_counter())
        paired = pair.pair_batch(warehouse, ledger, planned, landed)
        moments.append(time.perf_counter())
        publish_compounds.main(warehouse)
        moments.append(time.perf_counter())
    right = exact(_outcomes(warehouse, paired.paired.collapsed, events), events)
    delete_topics(broker, pipeline)
    shutil.rmtree(folder / "warehouse")
    return Ran(*np.diff(moments), peak, right)


def _outcomes(warehouse: Warehouse, collapsed: int, events: Events) -> pa.Table:
    """What is in the tables, as outcomes with the numbers of the events, which each side's offsets count by themselves."""

    def rows(table: str, *columns: str) -> pa.Table:
        return DeltaTable(warehouse.path(table)).to_pyarrow_table(columns=list(columns))

    def single(of: pa.Table, outcome: pa.Array) -> pa.Table:
        return one_sided(of["offset"], pc.equal(of["topic"], warehouse.pipeline.left.topic), outcome)

    still_open, rejected = rows(OPEN, "topic", "offset"), rows(REJECTED, "reason", "topic", "offset")
    found = [
        rows(COMPOUNDS, "kind", *SIDES).rename_columns(OUTCOME),
        single(still_open, pa.repeat(str(Outcome.OPEN), still_open.num_rows)),
        single(rejected, rejected["reason"]),
    ]
    numbers = [pa.array(np.flatnonzero(events.side == side)) for side in (LEFT, RIGHT)]
    told = [
        pa.table(
            [of["outcome"], *(number.take(of[side].combine_chunks()) for number, side in zip(numbers, SIDES, strict=True))],
            OUTCOME,
        )
        for of in found
    ]
    return with_collapsed(told, collapsed, events)


def main(names: list[str]) -> int:
    """Prints a line a shape; gives the exit status."""
    failed = False
    start_workers()
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        spark_of_two_cores(folder, as_shipped=True) as spark,
    ):
        for size in (100_000, 400_000):
            run(spark, folder, broker, SHAPES["dense"], size)
        print(f"{'shape':24} {'events':>9} {'land':>6} {'pair':>6} {'publish':>8} {'growth':>7} {'worker':>7} {'JVM':>6}")
        for name in names:
            shape = SHAPES[name]
            quarter, whole = (run(spark, folder, broker, shape, size) for size in (shape.size // 4, shape.size))
            growth = whole.seconds / quarter.seconds
            wrong = [] if quarter.exact and whole.exact else ["wrong answer"]
            wrong += ["grows too fast"] if growth > MAX_GROWTH else []
            wrong += ["too much memory"] if max(whole.peak.worker_mb, whole.peak.jvm_mb) > MAX_MB else []
            failed |= bool(wrong)
            times = f"{whole.land_s:>6.1f} {whole.pair_s:>6.1f} {whole.publish_s:>8.1f} {growth:>7.1f}"
            memory = f"{whole.peak.worker_mb:>7.0f} {whole.peak.jvm_mb:>6.0f}"
            print(f"{name:24} {shape.size:>9} {times} {memory}  {shape.says}: {', '.join(wrong) or 'exact'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if name not in NAMES]:
        sys.exit(f"no such shape: {', '.join(unknown)} (there are: {', '.join(NAMES)})")
    sys.exit(main(sys.argv[1:] or NAMES))
