"""The two ways in which the records of a topic come into its raw table, each record as it came, with what it says.

By the workers: each reads a span of offsets, parses it, and writes a file of the table; all that comes back are names of files. By Spark:
the workers read, all travels to the JVM, what is parsed to Python and back, and Spark writes; on any file system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.pipeline_config import Side
from spark_jobs.batch_rules import body_fields, latest_ts
from spark_jobs.broker.offsets import Partition
from spark_jobs.broker.records import BAD_HEADER, RECORD, Share, Span, allowed, read_records, read_span, shares
from spark_jobs.broker.settings import Settings, kafka_settings
from spark_jobs.pairing.parsing import BodyFields
from spark_jobs.pairing.parsing_in_bulk import ParsedColumns, parse_columns, problems_with_headers
from spark_jobs.pairing.reasons import Reason
from spark_jobs.stages import Stage, give_back_memory
from spark_jobs.storage.commit import commit, commit_files, is_committed
from spark_jobs.storage.ledger import LedgerRow, OffsetRange
from spark_jobs.storage.table_files import FilePlace, FileWriter, NewFile
from spark_jobs.storage.tables import Warehouse, declared_schema, raw_table

_WRITTEN = "name string, size bigint, stats string"
_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 64_000_000

# Values and record timestamps in, columns out; fields and the latest timestamp as `parse_columns` has them.
_Parse = Callable[[pa.Array, pa.Array, BodyFields, int], ParsedColumns]
# Records (`RECORD`) in, as many rows of a raw table out.
_MakeRows = Callable[[pa.RecordBatch], pa.RecordBatch]


def append_raw(warehouse: Warehouse, planned: LedgerRow, ranges: Iterable[OffsetRange], side: Side) -> None:
    """Appends the records of one topic in the ranges to its raw table, once for the batch, the faster way if it can be gone.

    Raises what the broker or the tables refuse.
    """
    spans = {
        (at.topic, at.partition): Span(at.from_offset, at.until_offset)
        for at in ranges
        if at.topic == side.topic and at.planned
    }
    table = raw_table(side)
    if not spans:
        return
    if is_committed(warehouse, table, table, planned.batch_id):
        # Skipped like any commit that is made again; but its records are not read again: they may be gone from the broker.
        return commit_files(warehouse, table, [], table, planned.batch_id)
    place = warehouse.place_for_files(table)

    def append() -> None:
        if place is not None:
            _append_by_workers(warehouse, planned, spans, side, place)
        else:
            _append_by_spark(warehouse, planned, spans, side)

    allowed(append, [side.topic])


def _append_by_workers(
    warehouse: Warehouse, planned: LedgerRow, spans: Mapping[Partition, Span], side: Side, place: FilePlace
) -> None:
    pipeline, table = planned.pipeline, raw_table(side)
    parts = shares(spans)
    latest = latest_ts(pipeline, planned.wall_time)
    make = _raw_maker(place.schema, body_fields(pipeline, side), latest, planned.batch_id, parse_columns)
    stage = _writing_stage(kafka_settings(), parts, place.folder, make)
    numbers = warehouse.spark.range(0, len(parts), 1, len(parts))
    written = numbers.mapInArrow(stage, _WRITTEN).collect()
    commit_files(warehouse, table, [NewFile(*row) for row in written], table, planned.batch_id)


def _writing_stage(settings: Settings, parts: list[Share], folder: str, make: _MakeRows) -> Stage:
    """A stage from numbers of shares (`id`) to the files in which their records are by then (`NewFile`)."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        give_back_memory()
        for batch in batches:
            for number in batch["id"].to_pylist():
                with FileWriter(folder) as file:
                    for rows in _together(map(make, read_span(settings, *parts[number]))):
                        file.write(rows)
                    written = file.finish()
                # Of all the offsets there may be no record left.
                if written is not None:
                    yield pa.RecordBatch.from_pylist([written._asdict()])

    return run


def _raw_maker(schema: pa.Schema, fields: BodyFields, latest: int, batch_id: int, parse: _Parse) -> _MakeRows:
    """Makes rows of a raw table (columns: `schema`)."""

    def rows(records: pa.RecordBatch) -> pa.RecordBatch:
        parsed = parse(records["value"], records["record_timestamp"], fields, latest)
        columns = {name: records[name] for name in RECORD} | dict(zip(fields.key, parsed.key, strict=True))
        problem = problems_with_headers(parsed.problem, records[BAD_HEADER])
        columns |= {"ts": parsed.ts, "payload": parsed.payload, "problem": problem}
        columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), records.num_rows)
        return pa.record_batch([columns[field.name].cast(field.type) for field in schema], schema=schema)

    return rows


def _together(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches worth a row group."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _append_by_spark(warehouse: Warehouse, planned: LedgerRow, spans: Mapping[Partition, Span], side: Side) -> None:
    pipeline, table = planned.pipeline, raw_table(side)
    declared = declared_schema(pipeline, table)
    parsed = StructType([field for field in declared.fields if field.name not in (*RECORD, "batch_id")])
    # Only what is parsed travels to Python, and only what was found in it travels back.
    parser = _parser(body_fields(pipeline, side), latest_ts(pipeline, planned.wall_time))
    parse = F.arrow_udf(parser, parsed)  # type: ignore[call-overload]  # its hints forget that a struct can be returned
    records = read_records(warehouse.spark, spans, True, (*RECORD, BAD_HEADER))
    found = records.withColumn("parsed", parse("value", "record_timestamp"))
    rows = found.select(*RECORD, BAD_HEADER, "parsed.*", F.lit(planned.batch_id).cast("bigint").alias("batch_id"))
    problem = F.coalesce("problem", F.when(F.col(BAD_HEADER), str(Reason.BAD_HEADER)))
    rows = rows.withColumn("problem", problem).drop(BAD_HEADER)
    commit(warehouse, table, rows, table, planned.batch_id)


def _parser(fields: BodyFields, latest: int) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def parse(values: pa.Array, record_ts: pa.Array) -> pa.Array:
        parsed = parse_columns(values, record_ts, fields, latest)
        columns = [parsed.ts, *parsed.key, parsed.payload, parsed.problem]
        return pa.StructArray.from_arrays(columns, ["ts", *fields.key, "payload", "problem"])

    return parse
