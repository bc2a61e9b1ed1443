"""The events that are to be decided, out of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, Condition, Warehouse, raw_table

# Behind key and side; what the events of both kinds of tables have.
_COLUMNS = ("partition", "offset", "ts", "payload", "batch_id")


def batch_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    """The batch's accepted events and the open ones (`event_schema`), and after a rewind the `known_revisions` of compounds."""
    events = accepted_events(warehouse, planned.pipeline, batches=[planned.batch_id]).unionAll(
        _open_events(warehouse, planned)
    )
    if (corrected := planned.plan.corrected) is None:
        return events
    return events.unionAll(known_revisions(warehouse, events, corrected.first, corrected.last))


def accepted_events(
    warehouse: Warehouse, pipeline: Pipeline, where: Condition | None = None, batches: Iterable[int] | None = None
) -> DataFrame:
    """The events of both raw tables that no message's own problem rejected, as new ones (`event_schema`); of these batches, if any are named.

    `where`: a condition on columns of the raw tables.
    """

    def accepted(column: Callable[[str], Any]) -> Any:
        return column("problem").is_null() if where is None else column("problem").is_null() & where(column)

    wanted, mine = None if batches is None else list(batches), [*pipeline.key, *_COLUMNS]
    sides = []
    for number, side in zip((LEFT, RIGHT), pipeline.sides, strict=True):
        rows = warehouse.read(raw_table(side), mine, batches=wanted, where=accepted)
        sides.append(_events(rows, pipeline, F.lit(number), is_open=False))
    return reduce(DataFrame.unionAll, sides)


def _open_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    side = F.when(F.col("side") == "left", LEFT).otherwise(RIGHT)
    rows = warehouse.read(OPEN, [*planned.pipeline.key, "side", *_COLUMNS], version=planned.versions[OPEN])
    return _events(rows, planned.pipeline, side, is_open=True)


def known_revisions(warehouse: Warehouse, events: DataFrame, first: int, last: int) -> DataFrame:
    """Rows beside the events (`event_schema`), for each that compounds of the batches first..last, both inclusive, are named after: without
    `ts`, the pair_id as payload, the last revision as offset. They have the event's key, and so come to the worker that decides it.

    By the place of the event, not by the key that the compound had: where a log was cut, other records have the same places now.
    """
    place, there = ["side", "partition", "offset"], F.col("left_offset").isNotNull()
    sides = [f"{side}_{name}" for side in ("left", "right") for name in place[1:]]
    rows = warehouse.read(COMPOUNDS, ["pair_id", "revision", *sides], batches=range(first, last + 1))
    named = rows.select(
        "pair_id",
        "revision",
        F.when(there, LEFT).otherwise(RIGHT).alias("side"),
        *(F.coalesce(f"left_{name}", f"right_{name}").alias(name) for name in place[1:]),
    )
    known = named.groupBy(*place, "pair_id").agg(F.max("revision").cast("bigint").alias("revision"))
    found = events.join(known, place)
    nothing = {
        "side": F.lit(LEFT),
        "partition": F.lit(0),
        "ts": F.lit(None).cast("bigint"),
        "batch_id": F.lit(0).cast("bigint"),
    }
    given = nothing | {"offset": F.col("revision"), "payload": F.col("pair_id"), "is_open": F.lit(False)}
    return found.select(*(given.get(name, F.col(name)).alias(name) for name in events.columns))


def _events(rows: DataFrame, pipeline: Pipeline, side: Column, is_open: bool) -> DataFrame:
    return rows.select(*pipeline.key, side.alias("side"), *_COLUMNS, F.lit(is_open).alias("is_open"))
