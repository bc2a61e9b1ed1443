"""Outcomes as rows of the tables: how the columns of each come about stands here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from include.config.pipeline import Pipeline
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.warehouse import COMPOUNDS, declared_schema

# Why an event is rejected at pairing, by its number in `REFUSED`.
REASONS = tuple(str(reason) for reason in AT_PAIRING)
# What is known of an event that is rejected at pairing; its bytes are in the raw tables. `side`: LEFT or RIGHT; `landed_in`: the batch that
# landed it.
REFUSED = pa.schema(
    [
        ("side", pa.int8()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.int8()),
        ("landed_in", pa.int64()),
    ]
)

# Outcomes (`outcome_schema`) in, those of them that are of a table out, as its rows.
MakeRows = Callable[[pa.RecordBatch], pa.RecordBatch]


def compound_maker(
    pipeline: Pipeline, batch_id: int, declared: pa.Schema
) -> Callable[[pa.RecordBatch, pa.Table | None], pa.RecordBatch]:
    """Makes rows of compound_events: pairs and single sides, `ts` the smaller of the two.

    `declared`: the columns of the table. The second argument: `pair_id` and `revision` of compounds that consumers know from batches that a
    rewind gave up; these come with their next revision, all others, and all if there is none, with their first.
    """
    constants = {"op": UPSERT, "batch_id": batch_id}

    def rows(outcomes: pa.RecordBatch, known: pa.Table | None = None) -> pa.RecordBatch:
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
        columns["revision"] = _revisions(columns["pair_id"], known, declared.field("revision").type)
        return pa.record_batch([columns[name] for name in declared.names], schema=declared)

    return rows


def _revisions(pair_ids: pa.Array, known: pa.Table | None, kind: pa.DataType) -> pa.Array:
    if known is None or not known.num_rows:
        return pa.repeat(pa.scalar(0, kind), len(pair_ids))
    last = known.group_by("pair_id").aggregate([("revision", "max")])
    at = pc.index_in(pair_ids, last["pair_id"].combine_chunks())
    following = pc.add(last["revision_max"].combine_chunks().take(at), 1)
    return pc.fill_null(following, 0).cast(kind)


def open_maker(pipeline: Pipeline, declared: pa.Schema) -> MakeRows:
    """Makes rows of open_events (columns: `declared`): the events of sessions that are not closed yet."""

    def rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
        columns = _events(_only(outcomes, Outcome.OPEN), pipeline)
        return pa.record_batch([columns[name] for name in declared.names], schema=declared)

    return rows


def refused_maker() -> MakeRows:
    """Makes the places of the events that are rejected at pairing, with the reason (`REFUSED`)."""

    def rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
        found = _only(outcomes, *map(Outcome, AT_PAIRING))
        columns = _of_side(found, ("partition", "offset", "batch_id"))
        is_left = pc.is_valid(found["left_offset"])
        columns["side"] = pc.if_else(is_left, pa.scalar(LEFT, pa.int8()), pa.scalar(RIGHT, pa.int8()))
        columns["reason"] = pc.index_in(found["outcome"], pa.array(REASONS)).cast(pa.int8())
        columns["landed_in"] = columns["batch_id"]
        return pa.record_batch([columns[name] for name in REFUSED.names], schema=REFUSED)

    return rows


def _only(outcomes: pa.RecordBatch, *kinds: Outcome) -> pa.RecordBatch:
    return outcomes.filter(pc.is_in(outcomes["outcome"], pa.array([str(kind) for kind in kinds])))


def _same(value: object, kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows.num_rows)


def _of_side(outcomes: pa.RecordBatch, names: tuple[str, ...]) -> dict[str, pa.Array]:
    """Columns of outcomes of single events, from the side that is there."""
    return {name: pc.coalesce(outcomes[f"left_{name}"], outcomes[f"right_{name}"]) for name in names}


def _events(outcomes: pa.RecordBatch, pipeline: Pipeline) -> dict[str, pa.Array]:
    """Outcomes of single events, as events: side, topic and the columns of the side that is there."""
    is_left = pc.is_valid(outcomes["left_offset"])
    columns = _of_side(outcomes, ("partition", "offset", "ts", "payload", "batch_id"))
    columns |= {name: outcomes[name] for name in pipeline.key}
    topic = pc.if_else(is_left, pipeline.left.topic, pipeline.right.topic)
    return columns | {"side": pc.if_else(is_left, "left", "right"), "topic": topic}


def compound_rows(outcomes: DataFrame, pipeline: Pipeline, batch_id: int) -> DataFrame:
    """Rows of compound_events out of outcomes that Spark has."""
    declared = declared_schema(pipeline, COMPOUNDS)
    make = compound_maker(pipeline, batch_id, to_arrow_schema(declared))
    return outcomes.mapInArrow(lambda batches: (make(batch, None) for batch in batches), declared)
