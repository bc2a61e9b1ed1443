"""A pipeline with thousands of batches behind it, made in minutes.

The first batch is real. All further ones are copies of what it left: rows of every table, with their own ids, offsets and times, each
in a Delta commit of its own with its transaction version, and the ledger's five rows in five, by delta-rs with the table kept open (a real batch
takes a second or more, such a copy some 50 ms). Beside each commit lies an empty file in the place of the checksum that Hadoop leaves there, for a
folder of many files takes longer to list.

`maintain_tables` is run after every 288 batches, a day of a batch every five minutes, of the last four whole days. What is older is written as it has
long been by then, put together: a commit for each table and step.
A day passes in seconds here, so what is to be kept for hours or days is told to the job as the seconds since then, and log files that are older
get a date of last week.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from spark_jobs import maintain_tables
from spark_jobs.kafka.output_topic import output_topic
from spark_jobs.kafka.positions import committed_positions, publisher_group
from spark_jobs.kafka.settings import consumer_settings
from spark_jobs.maintenance import upkeep
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED, STEPS, LedgerRow, row_struct
from spark_jobs.tables.records import PairedCounts
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, METRICS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

A_DAY = 288
_EVERY_MS = 300_000
_DAYS_ONE_BY_ONE = 4
# In batches. The job runs at half past three and keeps three hours; Delta keeps a log from the midnight before.
_KEPT, _TIME_TRAVEL, _FROM_MIDNIGHT = 36, 3 * A_DAY, 42
_TIMES = ("ts", "left_ts", "right_ts", "record_timestamp")


class _Kept:
    """A table that is kept open; `rows`: what the first batch left in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = self.opened().to_pyarrow_table()

    def opened(self) -> DeltaTable:
        """Opened again, because somebody else has written to it."""
        self.table = DeltaTable(self.path)
        return self.table

    def write(self, rows: pa.Table, app_id: str, batch_id: int, mode: str = "append") -> int:
        """The version it has then."""
        once = CommitProperties(app_transactions=[Transaction(app_id, batch_id)])
        write_deltalake(self.table, rows, mode=mode, commit_properties=once)
        version = self.table.version()
        if Path(self.path).name not in (LEDGER, METRICS):
            _beside(Path(self.path), version).touch()
        return version


class LongHistory:
    """Grows a warehouse whose pipeline has had one real batch. `records`: (topic, partition, value) of that batch, in order."""

    def __init__(self, warehouse: Warehouse, records: list[tuple[str, int, bytes]], bootstrap: str) -> None:
        self.warehouse, self.records, self.bootstrap = warehouse, records, bootstrap
        self.tables = {table: _Kept(warehouse.path(table)) for table in (*_data_tables(warehouse), LEDGER)}
        self.steps = Ledger(warehouse).last_batch()
        self.landed = {(at.topic, at.partition): at.until_offset for at in self.steps[PLANNED].offsets}
        self.made: dict[int, float] = {}

    def grow(self, batches: int, told: Callable[[str], None]) -> None:
        """Up to so many batches, the last of them five minutes ago."""
        self._send(batches - 1)
        now = time.time_ns() // 1_000_000
        later = [now - (batches - each + 1) * _EVERY_MS - self.steps[PLANNED].wall_time for each in range(batches + 1)]
        one_by_one = max(2, (batches // A_DAY - _DAYS_ONE_BY_ONE) * A_DAY + 1)
        if one_by_one > 2:
            self._append(range(2, one_by_one), later)
        for batch_id in range(one_by_one, batches + 1):
            self._append(range(batch_id, batch_id + 1), later)
            self.made[batch_id] = time.time()
            if batch_id % A_DAY == 0:
                begin = time.perf_counter()
                self._maintain(batch_id)
                told(f"{batch_id:,} of {batches:,} batches; maintaining the tables took {time.perf_counter() - begin:.1f} s")
        self._move_positions(batches)

    def _send(self, times: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for _ in range(times):
            for topic, partition, value in self.records:
                producer.produce(topic, value, partition=partition)
            producer.poll(0)
        if producer.flush(120):
            raise RuntimeError("the broker did not take the records of the history")

    def _append(self, batch_ids: range, later_ms: list[int]) -> None:
        """In one commit each of the tables and steps; `later_ms` by batch."""
        last, versions = batch_ids[-1], {}
        for table in _data_tables(self.warehouse):
            kept, written = self.tables[table], batch_ids[-1:] if table == OPEN else batch_ids
            if kept.rows.num_rows:
                rows = pa.concat_tables([self._moved(kept.rows, each, later_ms[each]) for each in written])
                versions[table] = kept.write(rows, self._app(table), last, "overwrite" if table == OPEN else "append")
        for step in STEPS:
            steps = [self._step(self.steps[step], each, later_ms[each], versions) for each in batch_ids]
            self.tables[LEDGER].write(pa.Table.from_pylist(steps, self.tables[LEDGER].rows.schema), self._app(step), last)

    def _app(self, step: str) -> str:
        return f"{self.warehouse.pipeline.name}.{step}"

    def _step(self, row: LedgerRow, batch_id: int, later_ms: int, versions: dict[str, int]) -> dict[str, Any]:
        offsets = []
        for at in row.offsets:
            first = (batch_id - 1) * self.landed[at.topic, at.partition]
            ends = [first + each for each in (at.from_offset, at.until_offset, at.end_offset)]
            offsets.append(at._replace(from_offset=ends[0], until_offset=ends[1], end_offset=ends[2])._asdict())
        later = timedelta(milliseconds=later_ms)
        clock = None if row.clock is None else row.clock + later_ms
        moments = {"started_at": row.started_at + later, "finished_at": row.finished_at + later}
        counts = row.counts
        if isinstance(counts, PairedCounts):
            counts = replace(counts, open_before=counts.open_after)
        moved = {"batch_id": batch_id, "wall_time": row.wall_time + later_ms, "clock": clock, **moments, "offsets": offsets}
        return {**row_struct(replace(row, counts=counts)), **moved, "versions": row.versions | versions}

    def _moved(self, rows: pa.Table, batch_id: int, later_ms: int) -> pa.Table:
        for name in rows.schema.names:
            if name == "batch_id":
                moved = pa.array([batch_id] * rows.num_rows, pa.int64())
            elif name in _TIMES:
                moved = pc.add(rows[name], pa.scalar(later_ms, pa.int64()))
            elif name.endswith("offset"):
                side = name.removesuffix("offset")
                places = zip(rows[f"{side}topic"].to_pylist(), rows[f"{side}partition"].to_pylist(), strict=True)
                further = pa.array([(batch_id - 1) * self.landed.get(place, 0) for place in places], pa.int64())
                moved = pc.add(rows[name], further)
            elif pa.types.is_map(rows[name].type):
                told = {"published_through": batch_id}
                found = [[(key, told.get(key, value)) for key, value in each] for each in rows[name].to_pylist()]
                moved = pa.array(found, rows[name].type)
            elif name == "pair_id":
                moved = pa.array([f"{each}-{batch_id}" for each in rows[name].to_pylist()])
            else:
                continue
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), moved)
        return rows

    def _maintain(self, last: int) -> None:
        """As the schedule would have had it in the night after batch `last`."""

        def made(back: int) -> float:
            """When the batch so many before was made; 0: nobody knows, long ago."""
            return self.made.get(last - back, 0.0)

        def ms_since(back: int) -> int:
            return int((time.time() - made(back)) * 1000)

        for table in self.tables:
            log = Path(self.warehouse.path(table)) / "_delta_log"
            _age(log, made(_FROM_MIDNIGHT + (_TIME_TRAVEL if table == OPEN else 0)))
        care = replace(self.warehouse.pipeline.maintenance, time_travel_ms=ms_since(_TIME_TRAVEL))
        warehouse = replace(self.warehouse, pipeline=replace(self.warehouse.pipeline, maintenance=care))
        # The ledger's times are those of the history, so all of open_events would be needed.
        with (
            patch.object(upkeep, "_KEPT_MS", ms_since(_KEPT)),
            patch.object(upkeep, "needed_since", lambda _: None),
        ):
            maintain_tables.main(warehouse)
        for kept in self.tables.values():
            _tidy_up(Path(kept.path))
            kept.opened()

    def _move_positions(self, batch_id: int) -> None:
        """As if the publisher had sent this batch last."""
        pipeline, settings = self.warehouse.pipeline, {"bootstrap.servers": self.bootstrap}
        group, topic = publisher_group(pipeline.name), pipeline.output_topic
        consumer = Consumer(consumer_settings(settings, group))
        positions = committed_positions(consumer, topic, range(output_topic(settings, topic).partitions))
        consumer.close()
        places = [
            TopicPartition(topic, number, batch_id, metadata=position._replace(acknowledged={}).metadata())
            for number, position in positions.items()
            if position
        ]
        admin = AdminClient(settings)
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result()


def _age(log: Path, before: float) -> None:
    """What was made before becomes a week older."""
    now, longer = time.time(), 9 * 86_400
    for file in log.iterdir():
        # Each older than the next, as they were made: Delta looks at that, too.
        if file.is_file() and now - longer < (made := file.stat().st_mtime) < before:
            os.utime(file, (made - longer, made - longer))


def _beside(table: Path, version: int) -> Path:
    """Not the name of the checksum, which would be read."""
    return table / "_delta_log" / f".{version:020d}.json.crc~"


def _tidy_up(table: Path) -> None:
    """What lies beside a commit goes with it."""
    for checksum in (table / "_delta_log").glob(".*.json.crc~"):
        if not checksum.with_name(checksum.name[1:].removesuffix(".crc~")).exists():
            checksum.unlink()


def _data_tables(warehouse: Warehouse) -> list[str]:
    return [*(raw_table(side) for side in warehouse.pipeline.sides), OPEN, COMPOUNDS, REJECTED, METRICS]
