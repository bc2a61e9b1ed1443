"""Revisions of compounds on the sides that have them: how many a batch landed, and which events a later revision supersedes.

Records of a revision above 0 are few. They are read on their own, because a retraction has no key by which a worker could find its event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline, Side
from spark_jobs.rules.rules import LEFT, RIGHT, SOURCE, SOURCE_PAIR_ID, SOURCE_REVISION, SUPERSEDED
from spark_jobs.tables.ledger_rows import LANDED, LedgerRow
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.schemas import LEDGER, OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse

_BY = ["side", SOURCE_PAIR_ID]
_NEWEST = "newest revision"


def revised_records(warehouse: Warehouse, planned: LedgerRow) -> int:
    """How many records with a revision above 0 the batch has landed."""
    few = few_revised(warehouse, planned)
    if few is not None:
        return sum(rows.num_rows for rows in few)
    return sum(rows.count() for rows in _revised(warehouse, [planned.batch_id]))


def revised_batches(warehouse: Warehouse, until: int) -> list[int]:
    """The live batches up to `until`, inclusive, that have landed such records; none if no side has `compounds`."""
    if not warehouse.pipeline.has_compounds:
        return []
    counted = warehouse.select_rows(
        LEDGER,
        ["batch_id", "counts"],
        lambda row: (row("step") == LANDED) & (row("kind") == LIVE) & (row("batch_id") <= until),
    )
    return sorted(row["batch_id"] for row in counted if dict(row["counts"] or ()).get("revised"))


def few_revised(warehouse: Warehouse, planned: LedgerRow) -> list[pa.Table] | None:
    """These records of the batch (`side` and `SOURCE`), one table a side, without Spark; None if they may be more than few."""
    tables = []
    for number, side in _sides(planned.pipeline):
        rows = warehouse.reading(raw_table(side), SOURCE.names, batches=[planned.batch_id], where=_is_revised).few()
        if rows is None:
            return None
        tables.append(rows.append_column("side", pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows)))
    return tables


def newest_revisions(warehouse: Warehouse, batches: Iterable[int], open_version: int | None = None) -> DataFrame:
    """The largest revision above 0 of each compound that these batches landed, whatever is wrong with its record; columns `side`,
    `source_pair_id` and one more. `open_version`: also of the events that are open at this version.
    """
    rows = _revised(warehouse, list(batches))
    if open_version is not None:
        waiting = warehouse.read(OPEN, ["side", *SOURCE.names], version=open_version, where=_is_revised)
        number = F.when(F.col("side") == "left", LEFT).otherwise(RIGHT).alias("side")
        rows.append(waiting.select(number, *SOURCE.names))
    return reduce(DataFrame.unionAll, rows).groupBy(*_BY).agg(F.max(SOURCE_REVISION).alias(_NEWEST))


def mark_events(events: DataFrame, newest: DataFrame) -> DataFrame:
    """The events (`event_schema`), `superseded` where one of the `newest_revisions` is later."""
    return events.join(newest, _BY, "left").withColumn(SUPERSEDED, _is_later()).select(events.columns)


def superseded_events(events: DataFrame, newest: DataFrame) -> DataFrame:
    """Those of the events (`side` and `SOURCE` among the columns) of which one of the `newest_revisions` is later."""
    return events.join(newest, _BY).where(_is_later()).select(events.columns)


def _is_later() -> Column:
    return F.coalesce(F.col(_NEWEST) > F.col(SOURCE_REVISION), F.lit(False))


def _revised(warehouse: Warehouse, batches: list[int]) -> list[DataFrame]:
    return [
        warehouse.read(raw_table(side), SOURCE.names, batches=batches, where=_is_revised).select(
            F.lit(number).alias("side"), *SOURCE.names
        )
        for number, side in _sides(warehouse.pipeline)
    ]


def _sides(pipeline: Pipeline) -> list[tuple[int, Side]]:
    """The sides with compounds, and their numbers."""
    return [(number, side) for number, side in enumerate(pipeline.sides) if side.compounds]


def _is_revised(column: Callable[[str], Any]) -> ds.Expression:
    return column(SOURCE_REVISION) > 0
