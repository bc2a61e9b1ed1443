"""Land: plan a batch in the ledger, read exactly its offsets, append every record as it came with what it says.

    land_events --pipeline include/pipelines/calls.yaml [--warehouse URI] [--max-records N] [--accept-lost-range RANGE]

Begins by finishing a batch that was planned earlier but not paired; then plans its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.pipeline_config import Pipeline, Side
from spark_jobs.batch_rules import body_fields, latest_ts
from spark_jobs.broker.offsets import ask_broker, plan_ranges
from spark_jobs.broker.settings import java_settings, kafka_settings
from spark_jobs.job import Counts, job_parser, run_job
from spark_jobs.pair_events import pair_batch
from spark_jobs.pairing.clock import PartitionProgress, batch_clock
from spark_jobs.pairing.conservation import BrokenInvariant
from spark_jobs.pairing.parsing import BodyFields
from spark_jobs.pairing.parsing_in_bulk import parse_columns
from spark_jobs.rewinding.revisions import still_to_come
from spark_jobs.rewinding.undo import finish_rewind
from spark_jobs.session import expect_rows
from spark_jobs.storage.agreement import check_ledger, check_tables, newest_row, table_versions
from spark_jobs.storage.commit import commit
from spark_jobs.storage.ledger import LANDED, LIVE, PAIRED, PLANNED, REWIND, Ledger, LedgerRow, OffsetRange
from spark_jobs.storage.tables import LEDGER, OPEN, Warehouse, declared_schema, raw_table

_LANDED = ("topic", "partition", "offset", "record_timestamp", "key", "value", "headers")


def main(warehouse: Warehouse, max_records: int, accepted_losses: Iterable[str]) -> Counts:
    """Finishes an unfinished batch as it was planned, then plans and lands the next one; gives its counts."""
    if not warehouse.exists(LEDGER):
        warehouse.create_missing()
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger)
    planned = plan_batch(warehouse, ledger, last, max_records, accepted_losses)
    return {"batch_id": planned.batch_id, **land_batch(warehouse, ledger, planned).counts}


def finish_batch(warehouse: Warehouse, ledger: Ledger) -> LedgerRow | None:
    """Does what the last batch still lacks; gives its `paired` row, None before the first batch."""
    steps = ledger.last_batch()
    check_tables(warehouse, newest_row(steps))
    if not steps:
        return None
    planned = steps[PLANNED]
    if planned.kind == REWIND:
        return steps.get(PAIRED) or finish_rewind(warehouse, ledger, planned)
    landed = steps.get(LANDED) or land_batch(warehouse, ledger, planned)
    return steps.get(PAIRED) or pair_batch(warehouse, ledger, planned, landed)


def plan_batch(
    warehouse: Warehouse, ledger: Ledger, last: LedgerRow | None, max_records: int, accepted_losses: Iterable[str]
) -> LedgerRow:
    """Writes the plan of the next batch before any work on it, and gives the row that is in the table."""
    started = datetime.now(UTC)
    pipeline = warehouse.pipeline
    check_ledger(warehouse, last)
    previous = {(known.topic, known.partition): known for known in last.offsets} if last else {}
    now = ask_broker(kafka_settings(), [side.topic for side in pipeline.sides])
    plan = LedgerRow(
        batch_id=last.batch_id + 1 if last else 1,
        kind=LIVE,
        step=PLANNED,
        offsets=tuple(plan_ranges(previous, now, max_records, accepted_losses)),
        wall_time=now.wall_time,
        # The plan holds all that a batch starts from: the previous clock, and the open events as they are now.
        clock=last.clock if last else None,
        counts={"open_before": last.counts["open_after"] if last else 0, **still_to_come(warehouse, ledger, last)},
        versions=last.versions if last else {OPEN: warehouse.version(OPEN)},
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=started,
    )
    return ledger.plan(plan)


def land_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Appends the planned offsets to the raw tables, reads back what is there, and records it with the batch's clock."""
    started = datetime.now(UTC)
    pipeline = planned.pipeline
    # Spark's source would try for minutes to reach a broker that is away, and not say which.
    ask_broker(kafka_settings(), [side.topic for side in pipeline.sides])
    expect_rows(warehouse.spark, sum(known.planned for known in planned.offsets))
    with ThreadPoolExecutor(max_workers=2) as both:
        # list() waits for both and raises what either raised.
        list(both.map(lambda side: _append_raw(warehouse, planned, side), pipeline.sides))
    found = landed_counts(warehouse, planned)
    offsets = tuple(_advance(known, [row for row in found if _is_of(row, known)]) for known in planned.offsets)
    counts = _count(pipeline, planned, found)
    # This setting is the operator's way out, so the file's counts, not the plan's.
    if counts["offset_gaps"] and warehouse.pipeline.offset_gaps == "fail":
        raise BrokenInvariant(
            f"batch {planned.batch_id}: {counts['offset_gaps']} planned offsets hold no record (offset_gaps: fail)"
        )
    progress = [PartitionProgress(known.until_offset == known.end_offset, known.max_ts) for known in offsets]
    clock = batch_clock(progress, planned.wall_time, planned.clock, pipeline.clock)
    versions = planned.versions | table_versions(warehouse, [raw_table(side) for side in pipeline.sides])
    landed = planned.next_step(LANDED, started, offsets=offsets, clock=clock, counts=counts, versions=versions)
    ledger.append(landed)
    return landed


def _append_raw(warehouse: Warehouse, planned: LedgerRow, side: Side) -> None:
    ranges = [known for known in planned.offsets if known.topic == side.topic and known.planned]
    if not ranges:
        return
    pipeline = planned.pipeline
    declared = declared_schema(pipeline, raw_table(side))
    parsed = StructType([field for field in declared.fields if field.name not in (*_LANDED, "batch_id")])
    # Only what is parsed travels to Python, and only what was found in it travels back.
    parser = _parser(body_fields(pipeline, side), latest_ts(pipeline, planned.wall_time))
    parse = F.arrow_udf(parser, parsed)  # type: ignore[call-overload]  # its hints forget that a struct can be returned
    rows = (
        read_kafka(warehouse, ranges)
        .withColumn("parsed", parse("value", "record_timestamp"))
        .select(*_LANDED, "parsed.*", F.lit(planned.batch_id).cast("bigint").alias("batch_id"))
    )
    commit(warehouse, raw_table(side), rows, raw_table(side), planned.batch_id)


def read_kafka(warehouse: Warehouse, ranges: list[OffsetRange]) -> DataFrame:
    """The records of one topic in exactly these ranges, committed ones only."""
    topic = ranges[0].topic
    return (
        warehouse.spark.read.format("kafka")
        .options(**java_settings(kafka_settings()))
        .option("assign", json.dumps({topic: [known.partition for known in ranges]}))
        .option("startingOffsets", json.dumps({topic: {str(known.partition): known.from_offset for known in ranges}}))
        .option("endingOffsets", json.dumps({topic: {str(known.partition): known.until_offset for known in ranges}}))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .withColumn("record_timestamp", F.unix_millis("timestamp"))
        .select(*_LANDED)
    )


def _parser(fields: BodyFields, latest: int) -> Callable[[pa.Array, pa.Array], pa.Array]:
    def parse(values: pa.Array, record_ts: pa.Array) -> pa.Array:
        parsed = parse_columns(values, record_ts, fields, latest)
        columns = [parsed.ts, *parsed.key, parsed.payload, parsed.problem]
        return pa.StructArray.from_arrays(columns, ["ts", *fields.key, "payload", "problem"])

    return parse


def landed_counts(warehouse: Warehouse, planned: LedgerRow) -> list[Row]:
    """What the raw tables hold of the batch, by partition and problem."""
    raw = reduce(DataFrame.unionAll, (warehouse.read(raw_table(side)) for side in planned.pipeline.sides))
    return list(
        raw.where(F.col("batch_id") == planned.batch_id)
        .groupBy("topic", "partition", "problem")
        .agg(
            F.count("*").alias("records"),
            F.count_distinct("offset").alias("offsets"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.max("ts").alias("max_ts"),
        )
        .collect()
    )


def _is_of(row: Row, known: OffsetRange) -> bool:
    return row["topic"] == known.topic and row["partition"] == known.partition


def _advance(known: OffsetRange, found: list[Row]) -> OffsetRange:
    """The range with the largest accepted timestamp after it was landed; raises BrokenInvariant if it holds other offsets."""
    for row in found:
        outside = row["first"] < known.from_offset or row["last"] >= known.until_offset
        if outside or row["records"] != row["offsets"]:
            raise BrokenInvariant(
                f"{known.topic}-{known.partition}: planned offsets {known.from_offset} to {known.until_offset} (exclusive), landed "
                f"{row['records']} records with {row['offsets']} different offsets from {row['first']} to {row['last']}"
            )
    landed = [row["max_ts"] for row in found if row["problem"] is None]
    seen = [ts for ts in (*landed, known.max_ts) if ts is not None]
    return known._replace(max_ts=max(seen, default=None))


def _count(pipeline: Pipeline, planned: LedgerRow, found: list[Row]) -> Counts:
    """landed rows = offsets planned - offset gaps; landed = accepted + those with a problem, by reason."""
    offsets_planned = sum(known.planned for known in planned.offsets)
    landed = sum(row["records"] for row in found)
    if landed > offsets_planned:
        raise BrokenInvariant(f"batch {planned.batch_id}: {offsets_planned} offsets planned, but {landed} records landed")
    counts = {"planned": offsets_planned, "landed": landed, "offset_gaps": offsets_planned - landed}
    counts["lost"] = sum(known.lost for known in planned.offsets)
    counts["backlog"] = sum(known.end_offset - known.until_offset for known in planned.offsets)
    counts["accepted"] = sum(row["records"] for row in found if row["problem"] is None)
    for side in pipeline.sides:
        mine = [row for row in found if row["topic"] == side.topic]
        counts[f"landed_{side.payload}"] = sum(row["records"] for row in mine)
        counts[f"accepted_{side.payload}"] = sum(row["records"] for row in mine if row["problem"] is None)
    for row in found:
        if row["problem"] is not None:
            counts[row["problem"]] = counts.get(row["problem"], 0) + row["records"]
    return counts


if __name__ == "__main__":
    parser = job_parser("land_events", __doc__)
    parser.add_argument(
        "--max-records", type=int, help="at most so many records in this batch (default: the pipeline's setting)"
    )
    parser.add_argument(
        "--accept-lost-range",
        action="append",
        default=[],
        metavar="TOPIC-PARTITION:FIRST-UNTIL",
        help="go on without these records, which the broker no longer has; repeat for further ranges",
    )
    given = parser.parse_args()
    if given.max_records is not None and given.max_records < 1:
        parser.error("--max-records must be at least 1")
    limit = given.max_records or given.pipeline.max_records_per_batch
    run_job("land_events", given, lambda warehouse: main(warehouse, limit, given.accept_lost_range))
