"""Pairing, Delta in and Delta out, against what it cannot be faster than (`make bench-pairing`).

    python -m tests.benches.pairing [--events 2000000 5000000] [--rounds 5]

pairing: `pair_batch` whole, from the raw tables to compounds, open events and the ledger's row.
shuffle: Spark merely shuffles the same columns by key through the same Arrow hop, which hands them back, and writes them to Parquet.
duckdb: DuckDB reads and sorts the Parquet files of the same raw tables for the same kernel, in two processes; Parquet comes out.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.rules.rules import event_schema
from spark_jobs.spark.session import tune_for_row_count
from spark_jobs.spark.workers import skip_size_checks
from spark_jobs.stages import pair
from spark_jobs.stages.pairing_input import EVENTS_A_TASK, batch_events
from spark_jobs.tables.commit import commit
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PLANNED, LedgerRow, OffsetRange
from spark_jobs.tables.parquet_files import CODEC, FileWriter
from spark_jobs.tables.read_files import longest_texts
from spark_jobs.tables.schemas import OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.duckdb_pairing import DuckDBPairing, has_duckdb
from tests.benches.measuring import ROUNDS, scratch, show_ratio, show_times, spark_of_two_cores, take_turns
from tests.benches.traffic import bodies, slots
from tests.helpers.ledger_rows import ledger_rows
from tests.helpers.timeline import CALLS

OVER_SHUFFLE, OVER_DUCKDB = 1.6, 2.0
OURS, SHUFFLE, DUCKDB = "pairing", "shuffle", "duckdb"
_PARTITIONS = 2
_ROWS_AT_ONCE = 65_536


class Pairing:
    """One landed batch, paired again and again into tables of its own."""

    def __init__(self, spark: Any, folder: Path, events: int) -> None:
        self.spark, self.folder, self.events, self.numbers = spark, folder, events, count()
        self.now = time.time_ns() // 1_000_000
        self.landed = self._warehouse("landed")
        self._land()

    def _warehouse(self, name: str) -> Warehouse:
        warehouse = Warehouse(str(self.folder / name), CALLS, self.spark)
        create_missing(warehouse)
        return warehouse

    def _land(self) -> None:
        """Fills the raw tables as landing does, a file a topic partition."""
        for rank, side in enumerate(CALLS.sides):
            table, first = raw_table(side), 0
            place = self.landed.place_for_files(table)
            with ExitStack() as stack:
                files = [stack.enter_context(FileWriter(place.store)) for _ in range(_PARTITIONS)]
                for slot in slots(self.events, self.now):
                    rows = raw_rows(slot.filter(pc.equal(slot.column("side"), rank)), rank, first, place.schema)
                    for partition, file in enumerate(files):
                        for batch in rows.filter(pc.equal(rows["partition"], partition)).to_batches(_ROWS_AT_ONCE):
                            file.write(batch)
                    first += rows.num_rows
                written = [file.finish() for file in files]
            commit(self.landed, table, [file for file in written if file], table, 1)

    def prepare(self) -> tuple[Warehouse, LedgerRow, LedgerRow]:
        """Empty tables beside the landed ones, and the plan and the `landed` row of the batch."""
        for old in self.folder.glob("paired-*"):
            shutil.rmtree(old)
        warehouse = self._warehouse(f"paired-{next(self.numbers)}")
        for side in CALLS.sides:
            shutil.rmtree(warehouse.path(raw_table(side)))
            Path(warehouse.path(raw_table(side))).symlink_to(self.landed.path(raw_table(side)))
        offsets = tuple(OffsetRange(side.topic, 0, 0, self.events, self.events) for side in CALLS.sides)
        planned, landed = ledger_rows(
            1,
            (PLANNED, LANDED),
            pipeline=CALLS,
            offsets=offsets,
            wall_time=self.now,
            versions={OPEN: warehouse.version(OPEN)},
            accepted=self.events,
            landed=self.events,
        )
        return warehouse, planned, replace(landed, clock=self.now)

    def pair(self, warehouse: Warehouse, planned: LedgerRow, landed: LedgerRow) -> None:
        pair.pair_batch(warehouse, Ledger(warehouse), planned, landed)

    def shuffle(self, warehouse: Warehouse, planned: LedgerRow, landed: LedgerRow) -> None:
        tune_for_row_count(self.spark, self.events)
        schema = from_arrow_schema(event_schema(CALLS))
        tasks = max(2, self.events // EVENTS_A_TASK)
        events = batch_events(warehouse, planned)
        rows = events.repartition(tasks, *CALLS.key).mapInArrow(_same, schema)
        tables = [OPEN, *map(raw_table, CALLS.sides)]
        # The events are as small as the pairing's: it asks the files, too.
        known = [longest_texts(warehouse.store(table), warehouse.files(table)) for table in tables]
        with skip_size_checks(self.spark, max(each for each in known if each is not None)):
            rows.write.option("compression", CODEC).parquet(f"{warehouse.root}/shuffled")


def raw_rows(events: pa.Table, side: int, first_offset: int, schema: pa.Schema, batch_id: int = 1) -> pa.Table:
    """The events, all of one side, as rows of its raw table, alternately in the partitions."""
    keys, values = bodies(events, CALLS, side)
    place = first_offset + np.arange(events.num_rows)
    columns = {
        "topic": pa.array([CALLS.sides[side].topic] * events.num_rows),
        "partition": place % _PARTITIONS,
        "offset": place // _PARTITIONS,
        "record_timestamp": events.column("ts"),
        "key": keys,
        "value": values,
        **{name: events.column(name) for name in ("ts", *CALLS.key, "payload")},
        **{name: pa.nulls(events.num_rows, schema.field(name).type) for name in ("headers", "problem")},
        "batch_id": np.full(events.num_rows, batch_id),
    }
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.pairing", description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=[2_000_000, 5_000_000])
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    with scratch() as folder, spark_of_two_cores(folder) as spark, closing(DuckDBPairing()) as duckdb:
        for events in given.events:
            pairing = Pairing(spark, folder / f"{events}", events)
            candidates = {OURS: pairing.pair, SHUFFLE: pairing.shuffle}
            if has_duckdb():
                candidates[DUCKDB] = duckdb.pair
            times = take_turns(candidates, given.rounds, pairing.prepare)
            show_times(f"{events:,} events, Delta to Delta", times)
            show_ratio(times, OURS, SHUFFLE, OVER_SHUFFLE)
            if DUCKDB in times:
                show_ratio(times, OURS, DUCKDB, OVER_DUCKDB)


if __name__ == "__main__":
    main()
