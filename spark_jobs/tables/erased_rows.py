"""Rows of which an erasure takes what names somebody: they are emptied and stay, or go from open_events.

An emptied row keeps its place (topic, partition, offset, or pair_id and revision), its times, its batch and its outcome, so everything that
is counted stays as it was. Which rows are erased is known by these numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.reasons import ERASED, FILTERED
from spark_jobs.tables.commit import Rewrite
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN, REJECTED, raw_table

# What a row is known by; the last one is the batch in every table.
_RECORD = ("topic", "partition", "offset", "batch_id")
_IDS = {COMPOUNDS: ("pair_id", "revision", "batch_id"), METRICS: ("batch_id",)}
# In the place of a name in a breakdown, and on a quality page.
NO_NAME = "(erased)"

# The numbers of one row, in the order of `id_columns`.
RowId = tuple[Any, ...]


def id_columns(table: str) -> tuple[str, ...]:
    return _IDS.get(table, _RECORD)


def naming_columns(pipeline: Pipeline, table: str) -> tuple[str, ...]:
    """The columns that an erasure empties."""
    if table == REJECTED:
        return ("key", "value")
    if table == COMPOUNDS:
        return (*pipeline.key, *(side.payload for side in pipeline.sides))
    return (*pipeline.key, "key", "value", "headers", "payload")


def row_ids(rows: pa.RecordBatch, table: str) -> list[RowId]:
    return list(zip(*(rows[name].to_pylist() for name in id_columns(table)), strict=True))


def erasing(pipeline: Pipeline, table: str, ids: Iterable[RowId]) -> Rewrite:
    """Empties these rows of a raw table, rejected_events or compound_events; those of open_events are removed."""
    wanted = frozenset(ids)
    make = _without if table == OPEN else partial(_emptied, pipeline, table)
    return Rewrite(sorted({each[-1] for each in wanted}), id_columns(table), partial(_found, table, wanted), make)


def without_names(names: Iterable[RowId]) -> Rewrite:
    """Replaces the value that a breakdown of quality_metrics names: of a batch_id, in a key field."""
    named = frozenset(names)
    batches = sorted({batch_id for batch_id, _ in named})

    def replaced(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
        found = rows.to_pylist()
        for row in found:
            for each in row["breakdowns"] or ():
                if each["value"] is not None and (row["batch_id"], each["field"]) in named:
                    each["value"] = NO_NAME
        return pa.RecordBatch.from_pylist(found, schema=rows.schema)

    return Rewrite(batches, ("batch_id",), partial(_found, METRICS, frozenset((each,) for each in batches)), replaced)


def _found(table: str, wanted: frozenset[RowId], rows: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([each in wanted for each in row_ids(rows, table)], pa.bool_())


def _without(rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return rows.filter(pc.invert(mask))


def _emptied(pipeline: Pipeline, table: str, rows: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    columns = {name: rows[name] for name in rows.schema.names}
    for name in naming_columns(pipeline, table):
        columns[name] = _nulls_where(columns[name], mask)
    if table in map(raw_table, pipeline.sides):
        # A record that `only` did not select stays none of the pipeline's.
        events = pc.and_(mask, pc.invert(pc.fill_null(pc.equal(rows["problem"], FILTERED), False)))
        columns["problem"] = pc.if_else(events, pa.scalar(ERASED), rows["problem"])
    return pa.record_batch(list(columns.values()), schema=rows.schema)


def _nulls_where(column: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    """The column with nulls there. Taken by index: a null one is a null value, whatever the type."""
    where = pc.if_else(mask, pa.scalar(None, pa.int64()), pa.array(range(len(column)), pa.int64()))
    return column.take(where)
