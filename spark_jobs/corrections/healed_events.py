"""Events of records whose schema was unknown when they were landed, and is known now. Replays pair them; their raw rows stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline, Side
from spark_jobs.formats.decoding import Parser, event_parser
from spark_jobs.formats.registry import Registry, registry_settings
from spark_jobs.rules.compounds import source_columns
from spark_jobs.rules.key_order import order_keys
from spark_jobs.rules.parsed_columns import Columns
from spark_jobs.rules.reasons import Reason
from spark_jobs.rules.rules import SUPERSEDED, event_schema
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables.known_schemas import SCHEMAS, KnownSchemas
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED
from spark_jobs.tables.places import placed
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.records import LIVE, Window
from spark_jobs.tables.schemas import LEDGER, raw_table
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

_READ = ["value", "record_timestamp", "key", "headers", "topic", "partition", "offset", "batch_id"]


class LandedBy(NamedTuple):
    """What a batch read its records by: its settings, and the latest time (epoch ms, inclusive) that is not in the future."""

    pipeline: Pipeline
    latest_ts: int


Batches = dict[int, LandedBy]


class HealedEvents(NamedTuple):
    """`batches`: those that landed records of unknown schemas. Nothing is read if there are none."""

    warehouse: Warehouse
    batches: Batches

    def rows(self, columns: list[str], times: Window, made: InWorker) -> list[DataFrame]:
        """What `made` makes of these columns of the events with a time in the window, of each raw table. The registry is not asked."""
        return [self._of_side(side, columns, times, made) for _, side in self._sides]

    def events(self, topics: SideTopics, times: Window, made: InWorker | None = None) -> list[DataFrame]:
        """As `rows`, all columns of `event_schema`. `topics`: those by which they are numbered."""
        schema = event_schema(self.warehouse.pipeline)
        columns = [name for name in schema.names if name not in ("side", "is_open", SUPERSEDED)] + ["topic"]
        found = self.rows(columns, times, made or InWorker(lambda rows: rows))
        marks = {"is_open": F.lit(False), SUPERSEDED: F.lit(False)}
        given = [marks | {"side": F.lit(number), "partition": placed(topics[number])} for number, _ in self._sides]
        return [
            rows.select(*(own.get(name, F.col(name)).alias(name) for name in schema.names))
            for own, rows in zip(given, found, strict=True)
        ]

    @property
    def _sides(self) -> list[tuple[int, Side]]:
        """Sides with their numbers; none if there is nothing to read."""
        return list(enumerate(self.warehouse.pipeline.sides)) if self.batches else []

    def _of_side(self, side: Side, columns: list[str], times: Window, made: InWorker) -> DataFrame:
        read, pipeline = decoded_rows(self.warehouse, self.batches, side, vain_requests=0), self.warehouse.pipeline

        def make(rows: pa.RecordBatch) -> pa.RecordBatch:
            found = order_keys(read(rows), pipeline)
            ts = found["ts"]
            mine = pc.and_(pc.is_null(found["problem"]), pc.and_(pc.greater_equal(ts, times.start), pc.less(ts, times.end)))
            return made.make(found.filter(pc.fill_null(mine, False)).select(columns))

        schema = event_schema(pipeline).append(pa.field("topic", pa.string()))
        returned = made.columns or pa.schema([schema.field(name) for name in columns])
        return unknown_records(self.warehouse, side, self.batches, InWorker(make, returned, made.is_summary))


def healed(warehouse: Warehouse) -> HealedEvents:
    """The healed events of all batches."""
    return HealedEvents(warehouse, batches_with_unknown(warehouse))


def batches_with_unknown(warehouse: Tables) -> Batches:
    """The live batches that have landed records of unknown schemas."""
    if not any(side.needs_registry for side in warehouse.pipeline.sides):
        # What such a pipeline landed with other settings stays rejected.
        return {}
    counted = warehouse.select_rows(
        LEDGER, ["batch_id", "counts"], lambda row: (row("step") == LANDED) & (row("kind") == LIVE)
    )
    some = [row["batch_id"] for row in counted if dict(row["counts"] or ()).get(str(Reason.UNKNOWN_SCHEMA))]
    if not some:
        return {}
    rows = Ledger(warehouse).where(lambda row: (row("step") == LANDED) & row("batch_id").isin(some))
    return {row.batch_id: LandedBy(row.pipeline, row.wall_time + row.pipeline.max_future_ms) for row in rows}


def unknown_records(warehouse: Warehouse, side: Side, batches: Iterable[int], made: InWorker) -> DataFrame:
    """What workers make of the raw rows (`_READ`) of the side's records whose schema was unknown."""
    return warehouse.read(
        raw_table(side),
        _READ,
        batches=sorted(batches),
        where=lambda column: column("problem") == str(Reason.UNKNOWN_SCHEMA),
        made=made,
    )


def decoded_rows(
    warehouse: Warehouse, batches: Batches, side: Side, vain_requests: int
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from raw rows (`_READ`) to key fields, `ts`, `payload`, `problem`, and their place and `batch_id`, as they are read now.

    Each row is read by the settings of the batch that landed it. `vain_requests`: how many schemas the registry may be asked for in vain; 0:
    it is not asked, and the answer is the same whenever the function is called.
    """
    # Workers get no warehouse, which has a Spark session.
    settings, schemas, key = registry_settings(), warehouse.store(SCHEMAS), warehouse.pipeline.key
    number, is_chained = warehouse.pipeline.sides.index(side), warehouse.pipeline.has_compounds
    parsers: dict[int, Parser] = {}
    made: list[Registry] = []

    def parser(batch_id: int) -> Parser:
        # In the worker, once a batch.
        if not made:
            made.append(Registry(settings, KnownSchemas(schemas), vain_requests))
        if batch_id not in parsers:
            of_batch, latest_ts = batches[batch_id]
            parsers[batch_id] = event_parser(of_batch, of_batch.sides[number], latest_ts, made[0])
        return parsers[batch_id]

    def read(rows: pa.RecordBatch) -> pa.RecordBatch:
        landed_in = rows["batch_id"].to_numpy()
        pieces = [_read(rows.filter(pa.array(landed_in == each)), parser(int(each))) for each in np.unique(landed_in)]
        return pa.Table.from_batches(pieces or [_read(rows, parser(next(iter(batches))))]).combine_chunks().to_batches()[0]

    def _read(rows: pa.RecordBatch, parse: Parser) -> pa.RecordBatch:
        parsed = parse(Columns(*(rows[name] for name in _READ[:4])))
        columns = dict(zip(key, parsed.key, strict=True)) | {name: rows[name] for name in _READ[4:]}
        if is_chained:
            columns |= source_columns(side, rows["headers"])
        return pa.record_batch(columns | {"ts": parsed.ts, "payload": parsed.payload, "problem": parsed.problem})

    return read
