"""Pair: give every event of the batch, and every event still open, exactly one outcome.

    pair_events --pipeline include/pipelines/calls.yaml [--warehouse URI]

Reads the events that the batch landed and `open_events` at the version its plan names, so a second try sees the same. The
conservation law is checked before the first commit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from include.pipeline_config import Pipeline
from spark_jobs.batch_rules import batch_rules
from spark_jobs.job import Counts, job_parser, run_job
from spark_jobs.pairing.conservation import check_conservation
from spark_jobs.pairing.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.pairing.outcomes import Outcome, outcome_batches, outcome_schema
from spark_jobs.pairing.reasons import AT_PAIRING
from spark_jobs.pairing.rules import LEFT, RIGHT, Rules, event_schema
from spark_jobs.rewinding.revisions import carried, next_revisions
from spark_jobs.session import expect_rows
from spark_jobs.storage.agreement import check_tables, newest_row, table_versions
from spark_jobs.storage.commit import commit
from spark_jobs.storage.ledger import LANDED, PAIRED, PLANNED, Ledger, LedgerRow
from spark_jobs.storage.tables import COMPOUNDS, OPEN, REJECTED, Warehouse, declared_schema, raw_table

_EVENTS_A_TASK = 250_000
_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 64_000_000
# No field of a message can have this name.
_KEY_HASH = "hash of the key"
_WRITTEN = (OPEN, COMPOUNDS, REJECTED)


def main(warehouse: Warehouse) -> Counts:
    """Pairs the last batch if that has not been done; gives its counts."""
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    if LANDED not in steps or PAIRED in steps:
        return {}
    check_tables(warehouse, newest_row(steps))
    paired = pair_batch(warehouse, ledger, steps[PLANNED], steps[LANDED])
    return {"batch_id": paired.batch_id, **paired.counts}


def pair_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, landed: LedgerRow) -> LedgerRow:
    """Pairs one landed batch and gives its `paired` row."""
    started = datetime.now(UTC)
    pipeline, batch_id = planned.pipeline, planned.batch_id
    open_before, accepted = planned.counts["open_before"], landed.counts["accepted"]
    expect_rows(warehouse.spark, open_before + accepted)
    rules = batch_rules(pipeline, landed.clock, previous_clock=planned.clock)
    outcomes = decide(batch_events(warehouse, planned), rules, open_before + accepted).persist(StorageLevel.DISK_ONLY)
    try:
        summary = _summary(outcomes)
        found = {row["outcome"]: row["rows"] for row in summary}
        check_conservation(open_before, accepted, found)
        compounds = sum(found.get(kind, 0) for kind in COMPOUND_KINDS)
        rejected = landed.counts["landed"] - accepted + sum(found.get(Outcome(reason), 0) for reason in AT_PAIRING)
        open_after = found.get(Outcome.OPEN, 0)
        landed_in = {batch for row in summary if row["outcome"] in AT_PAIRING for batch in row["landed_in"]}
        writes: list[tuple[str, DataFrame, str]] = []
        if compounds:
            rows = next_revisions(warehouse, compound_rows(outcomes, pipeline, batch_id), planned.counts)
            writes.append((COMPOUNDS, rows, "append"))
        if rejected:
            writes.append((REJECTED, rejected_rows(warehouse, outcomes, planned, landed_in), "append"))
        if open_before or open_after:
            writes.append((OPEN, open_rows(outcomes, pipeline), "overwrite"))
        # Their order does not matter: until `paired` is recorded, whoever comes next writes what is missing.
        with ThreadPoolExecutor(max_workers=len(_WRITTEN)) as beside:
            # list() waits for all and raises what any of them raised.
            list(beside.map(lambda write: commit(warehouse, write[0], write[1], write[0], batch_id, write[2]), writes))
    finally:
        outcomes.unpersist()
    counts = {"open_before": open_before, "accepted": accepted, "compounds": compounds, "rejected": rejected}
    counts |= {str(outcome): found.get(outcome, 0) for outcome in Outcome if outcome is not Outcome.OPEN}
    counts |= {"open_after": open_after, **carried(planned.counts)}
    versions = landed.versions | table_versions(warehouse, _WRITTEN)
    paired = landed.next_step(PAIRED, started, counts=counts, versions=versions)
    ledger.append(paired)
    return paired


def _summary(outcomes: DataFrame) -> list[Row]:
    """Rows by outcome; for rejected events also the batches that landed them, where their bytes are."""
    landed_in = F.when(
        F.col("outcome").isin([str(reason) for reason in AT_PAIRING]), F.coalesce("left_batch_id", "right_batch_id")
    )
    return list(
        outcomes.groupBy("outcome").agg(F.count("*").alias("rows"), F.collect_set(landed_in).alias("landed_in")).collect()
    )


def decide(events: DataFrame, rules: Rules, expected: int) -> DataFrame:
    """The outcomes (`outcome_schema`) of events (`event_schema`), each key whole; about `expected` of them."""
    tasks = max(2, expected // _EVENTS_A_TASK)
    # Sorting by one number is several times cheaper than by texts. Keys that share it by chance are decided together.
    hashed = events.withColumn(_KEY_HASH, F.xxhash64(*rules.key))
    together = hashed.repartition(tasks, _KEY_HASH).sortWithinPartitions(_KEY_HASH)
    return together.mapInArrow(_decider(rules), from_arrow_schema(outcome_schema(rules.key)))


def batch_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    """The batch's accepted events and the open ones (`event_schema`)."""
    new = accepted_events(warehouse, planned.pipeline, F.col("batch_id") == planned.batch_id)
    return new.unionAll(_open_events(warehouse, planned))


def accepted_events(warehouse: Warehouse, pipeline: Pipeline, wanted: Column) -> DataFrame:
    """The events of both raw tables that no message's own problem rejected, as new ones (`event_schema`).

    `wanted`: a condition on columns of the raw tables.
    """
    sides = []
    for number, side in enumerate(pipeline.sides):
        columns: list[Column | str] = [
            *pipeline.key,
            F.lit(number).alias("side"),
            "partition",
            "offset",
            "ts",
            "payload",
            "batch_id",
        ]
        rows = warehouse.read(raw_table(side)).where(wanted & F.col("problem").isNull())
        sides.append(rows.select(*columns, F.lit(False).alias("is_open")))
    return reduce(DataFrame.unionAll, sides)


def _open_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    side = F.when(F.col("side") == "left", LEFT).otherwise(RIGHT).alias("side")
    columns: list[Column | str] = [*planned.pipeline.key, side, "partition", "offset", "ts", "payload", "batch_id"]
    return warehouse.read_at(OPEN, planned.versions[OPEN]).select(*columns, F.lit(True).alias("is_open"))


def _decider(rules: Rules) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = event_schema(rules.key)
        for events in complete_keys(batches, (_KEY_HASH,), _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            yield from outcome_batches(events.select(schema.names).cast(schema), rules)
            # The next ones are read while this name would still keep these.
            del events

    return run


def complete_keys(
    batches: Iterable[pa.RecordBatch], key: tuple[str, ...], rows_at_once: int, bytes_at_once: int
) -> Iterator[pa.Table]:
    """Regroups batches sorted by key into tables that hold every key whole: about so many rows or bytes, or one larger key."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        cut = _start_of_last_key(batch, key)
        size += batch.nbytes
        # The last key of a batch may go on in the next one; all before it is complete.
        if (rows + cut >= rows_at_once or size >= bytes_at_once) and (
            cut or (waiting and not _same_key(waiting[-1], batch, key))
        ):
            yield pa.Table.from_batches([*waiting, batch.slice(0, cut)])
            batch = batch.slice(cut)
            waiting, rows, size = [], 0, batch.nbytes
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _start_of_last_key(batch: pa.RecordBatch, key: tuple[str, ...]) -> int:
    fields = [batch.column(name) for name in key]
    return bisect_left(range(batch.num_rows), True, key=lambda row: all(field[row] == field[-1] for field in fields))


def _same_key(one: pa.RecordBatch, other: pa.RecordBatch, key: tuple[str, ...]) -> bool:
    return all(one.column(name)[-1] == other.column(name)[0] for name in key)


def _pair_id(left_topic: str, right_topic: str) -> Column:
    left = F.concat_ws("-", F.lit(left_topic), "left_partition", "left_offset")
    right = F.concat_ws("-", F.lit(right_topic), "right_partition", "right_offset")
    return F.when(F.col("left_offset").isNotNull(), left).otherwise(right)


def compound_rows(outcomes: DataFrame, pipeline: Pipeline, batch_id: int) -> DataFrame:
    """Rows of compound_events: pairs and single sides, `ts` the smaller of the two."""
    sides: list[Column] = []
    for name, side in zip(("left", "right"), pipeline.sides, strict=True):
        topic = F.when(F.col(f"{name}_offset").isNotNull(), F.lit(side.topic)).alias(f"{name}_topic")
        sides += [F.col(f"{name}_ts"), topic, F.col(f"{name}_partition"), F.col(f"{name}_offset")]
    return outcomes.where(F.col("outcome").isin([str(kind) for kind in COMPOUND_KINDS])).select(
        _pair_id(pipeline.left.topic, pipeline.right.topic).alias("pair_id"),
        F.lit(0).alias("revision"),
        F.lit("upsert").alias("op"),
        F.col("outcome").alias("kind"),
        *pipeline.key,
        F.least("left_ts", "right_ts").alias("ts"),
        F.col("left_payload").alias(pipeline.left.payload),
        F.col("right_payload").alias(pipeline.right.payload),
        *sides,
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def rejected_rows(warehouse: Warehouse, outcomes: DataFrame, planned: LedgerRow, landed_in: set[int]) -> DataFrame:
    """Rows of rejected_events: the batch's messages with a problem, and the duplicates and late ones with their bytes.

    `landed_in`: the batches that landed duplicates and late events; only these are searched for the bytes.
    """
    pipeline, batch_id = planned.pipeline, planned.batch_id
    raw = reduce(DataFrame.unionAll, (warehouse.read(raw_table(side)) for side in pipeline.sides))
    rows = raw.where((F.col("batch_id") == batch_id) & F.col("problem").isNotNull()).withColumn("reason", F.col("problem"))
    if landed_in:
        events = _events_of(outcomes.where(F.col("outcome").isin([str(reason) for reason in AT_PAIRING])), pipeline)
        place = ["topic", "partition", "offset"]
        reasons = events.select(*place, F.col("outcome").alias("reason"))
        searched = raw.where(F.col("batch_id").isin(sorted(landed_in)))
        rows = rows.unionByName(searched.join(F.broadcast(reasons), place), allowMissingColumns=True)
    columns = [field.name for field in declared_schema(pipeline, REJECTED).fields if field.name != "batch_id"]
    return rows.select(*columns, F.lit(batch_id).cast("bigint").alias("batch_id"))


def open_rows(outcomes: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Rows of open_events: the events of sessions that are not closed yet."""
    still_open = _events_of(outcomes.where(F.col("outcome") == str(Outcome.OPEN)), pipeline)
    return still_open.select(*(field.name for field in declared_schema(pipeline, OPEN).fields))


def _events_of(outcomes: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Outcomes of single events, as events: side, topic and the columns of the side that is there."""
    is_left = F.col("left_offset").isNotNull()
    columns = [
        F.coalesce(f"left_{name}", f"right_{name}").alias(name)
        for name in ("partition", "offset", "ts", "payload", "batch_id")
    ]
    return outcomes.select(
        "outcome",
        *pipeline.key,
        F.when(is_left, "left").otherwise("right").alias("side"),
        F.when(is_left, pipeline.left.topic).otherwise(pipeline.right.topic).alias("topic"),
        *columns,
    )


if __name__ == "__main__":
    run_job("pair_events", job_parser("pair_events", __doc__).parse_args(), main)
