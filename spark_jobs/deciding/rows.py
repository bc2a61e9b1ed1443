"""Outcomes as rows of the tables: how the columns of each come about stands here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from include.pipeline_config import Pipeline
from spark_jobs.pairing.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.pairing.outcomes import Outcome
from spark_jobs.pairing.reasons import AT_PAIRING
from spark_jobs.rewinding.revisions import UPSERT
from spark_jobs.stages import Stage
from spark_jobs.storage.ledger import LedgerRow
from spark_jobs.storage.tables import COMPOUNDS, OPEN, REJECTED, Warehouse, declared_schema, raw_table

_PLACE = ("topic", "partition", "offset")
# What is told of an event that is rejected at pairing; its bytes are in the raw tables.
REFUSED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("landed_in", pa.int64()),
    ]
)

# Outcomes (`outcome_schema`) in, those of them that are of a table out, as its rows.
MakeRows = Callable[[pa.RecordBatch], pa.RecordBatch]


def compound_maker(pipeline: Pipeline, batch_id: int, declared: pa.Schema) -> MakeRows:
    """Makes rows of compound_events: pairs and single sides, `ts` the smaller of the two, as their first revision.

    `declared`: the columns of the table.
    """
    constants = {"revision": 0, "op": UPSERT, "batch_id": batch_id}

    def rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
        found = _only(outcomes, *COMPOUND_KINDS)
        columns = {name: _same(value, declared.field(name).type, found) for name, value in constants.items()}
        columns |= {name: found[name] for name in pipeline.key}
        columns |= {"kind": found["outcome"], "ts": pc.min_element_wise(found["left_ts"], found["right_ts"])}
        ids = []
        for name, side in zip(("left", "right"), pipeline.sides, strict=True):
            topic = pc.if_else(pc.is_valid(found[f"{name}_offset"]), side.topic, pa.scalar(None, pa.string()))
            place = {part: found[f"{name}_{part}"] for part in ("partition", "offset")}
            ids.append(pc.binary_join_element_wise(topic, *(number.cast(pa.string()) for number in place.values()), "-"))
            columns |= {f"{name}_{part}": number for part, number in place.items()}
            columns |= {
                f"{name}_ts": found[f"{name}_ts"],
                f"{name}_topic": topic,
                side.payload: found[f"{name}_payload"],
            }
        columns["pair_id"] = pc.coalesce(*ids)
        return pa.record_batch([columns[name] for name in declared.names], schema=declared)

    return rows


def open_maker(pipeline: Pipeline, declared: pa.Schema) -> MakeRows:
    """Makes rows of open_events (columns: `declared`): the events of sessions that are not closed yet."""

    def rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
        columns = _events(_only(outcomes, Outcome.OPEN), pipeline)
        return pa.record_batch([columns[name] for name in declared.names], schema=declared)

    return rows


def refused_maker(pipeline: Pipeline) -> MakeRows:
    """Tells which events are rejected at pairing, and why (`REFUSED`)."""

    def rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
        found = _only(outcomes, *map(Outcome, AT_PAIRING))
        events = _events(found, pipeline)
        columns = [*(events[name] for name in _PLACE), found["outcome"], events["batch_id"]]
        return pa.record_batch(columns, schema=REFUSED)

    return rows


def _only(outcomes: pa.RecordBatch, *kinds: Outcome) -> pa.RecordBatch:
    return outcomes.filter(pc.is_in(outcomes["outcome"], pa.array([str(kind) for kind in kinds])))


def _same(value: object, kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows.num_rows)


def _events(outcomes: pa.RecordBatch, pipeline: Pipeline) -> dict[str, pa.Array]:
    """Outcomes of single events, as events: side, topic and the columns of the side that is there."""
    is_left = pc.is_valid(outcomes["left_offset"])
    columns = {
        name: pc.coalesce(outcomes[f"left_{name}"], outcomes[f"right_{name}"])
        for name in ("partition", "offset", "ts", "payload", "batch_id")
    }
    columns |= {name: outcomes[name] for name in pipeline.key}
    topic = pc.if_else(is_left, pipeline.left.topic, pipeline.right.topic)
    return columns | {"side": pc.if_else(is_left, "left", "right"), "topic": topic}


def as_stage(make: MakeRows) -> Stage:
    """What makes rows, for `mapInArrow`."""
    return lambda batches: (make(batch) for batch in batches)


def compound_rows(outcomes: DataFrame, pipeline: Pipeline, batch_id: int) -> DataFrame:
    """Rows of compound_events out of outcomes that Spark has."""
    declared = declared_schema(pipeline, COMPOUNDS)
    return outcomes.mapInArrow(as_stage(compound_maker(pipeline, batch_id, to_arrow_schema(declared))), declared)


def open_rows(outcomes: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Rows of open_events out of outcomes that Spark has."""
    declared = declared_schema(pipeline, OPEN)
    return outcomes.mapInArrow(as_stage(open_maker(pipeline, to_arrow_schema(declared))), declared)


def rejected_rows(warehouse: Warehouse, refused: DataFrame, planned: LedgerRow, landed_in: set[int]) -> DataFrame:
    """Rows of rejected_events: the batch's messages with a problem, and the duplicates and late ones with their bytes.

    `refused`: these (`REFUSED`); `landed_in`: the batches that landed them; only these are searched for the bytes.
    """
    pipeline, batch_id = planned.pipeline, planned.batch_id

    def landed(batch_ids: Iterable[int]) -> DataFrame:
        return reduce(DataFrame.unionAll, (warehouse.read_batches(raw_table(side), batch_ids) for side in pipeline.sides))

    rows = landed([batch_id]).where(F.col("problem").isNotNull()).withColumn("reason", F.col("problem"))
    if landed_in:
        reasons = refused.select(*_PLACE, "reason")
        rows = rows.unionByName(landed(landed_in).join(F.broadcast(reasons), list(_PLACE)), allowMissingColumns=True)
    columns = [field.name for field in declared_schema(pipeline, REJECTED).fields if field.name != "batch_id"]
    return rows.select(*columns, F.lit(batch_id).cast("bigint").alias("batch_id"))
