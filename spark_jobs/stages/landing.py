"""Landing: the workers read spans of offsets, parse them, and write files of the raw table; all that comes back are names of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from include.config.pipeline import Side
from include.config.store import Store
from spark_jobs.kafka.records import BAD_HEADER, RECORD, Share, Span, read_span, shares, translate_read_errors
from spark_jobs.kafka.settings import Settings, kafka_settings
from spark_jobs.rules.batch_rules import body_fields, latest_ts
from spark_jobs.rules.parsing import BodyFields
from spark_jobs.rules.parsing_in_bulk import parse_columns, problems_with_headers
from spark_jobs.spark.workers import Stage, give_back_memory
from spark_jobs.tables.commit import commit, is_committed
from spark_jobs.tables.ledger import LedgerRow, OffsetRange
from spark_jobs.tables.parquet_files import WRITTEN, FileWriter, NewFile, worth_row_groups
from spark_jobs.tables.warehouse import Warehouse, raw_table

# Records (`RECORD`) in, as many rows of a raw table out.
_MakeRows = Callable[[pa.RecordBatch], pa.RecordBatch]


def append_raw(warehouse: Warehouse, planned: LedgerRow, ranges: Iterable[OffsetRange], side: Side) -> None:
    """Appends the records of one topic in the ranges to its raw table, once for the batch, each record as it came, with what it says.

    Raises what the broker or the tables refuse.
    """
    spans = {
        (at.topic, at.partition): Span(at.from_offset, at.until_offset)
        for at in ranges
        if at.topic == side.topic and at.planned
    }
    pipeline, table = planned.pipeline, raw_table(side)
    if not spans:
        return
    if is_committed(warehouse, table, table, planned.batch_id):
        # Skipped like any commit that is made again; but its records are not read again: they may be gone from the broker.
        return commit(warehouse, table, [], table, planned.batch_id)
    place, parts = warehouse.place_for_files(table), shares(spans)
    make = _raw_maker(place.schema, body_fields(pipeline, side), latest_ts(pipeline, planned.wall_time), planned.batch_id)
    stage = _writing_stage(kafka_settings(), parts, place.store, make)

    def append() -> None:
        numbers = warehouse.spark.range(0, len(parts), 1, len(parts))
        written = numbers.mapInArrow(stage, WRITTEN).collect()
        commit(warehouse, table, [NewFile(*row) for row in written], table, planned.batch_id)

    translate_read_errors(append, [side.topic])


def _writing_stage(settings: Settings, parts: list[Share], store: Store, make: _MakeRows) -> Stage:
    """A stage from numbers of shares (`id`) to the files in which their records are by then (`NewFile`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        give_back_memory()
        for batch in batches:
            for number in batch["id"].to_pylist():
                with FileWriter(store) as file:
                    for rows in worth_row_groups(map(make, read_span(settings, *parts[number]))):
                        file.write(rows)
                    written = file.finish()
                # Of all the offsets there may be no record left.
                if written is not None:
                    yield pa.RecordBatch.from_pylist([written._asdict()])

    return run


def _raw_maker(schema: pa.Schema, fields: BodyFields, latest: int, batch_id: int) -> _MakeRows:
    """Makes rows of a raw table (columns: `schema`)."""

    def rows(records: pa.RecordBatch) -> pa.RecordBatch:
        parsed = parse_columns(records["value"], records["record_timestamp"], fields, latest)
        columns = {name: records[name] for name in RECORD} | dict(zip(fields.key, parsed.key, strict=True))
        problem = problems_with_headers(parsed.problem, records[BAD_HEADER])
        columns |= {"ts": parsed.ts, "payload": parsed.payload, "problem": problem}
        columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), records.num_rows)
        return pa.record_batch([columns[field.name].cast(field.type) for field in schema], schema=schema)

    return rows
