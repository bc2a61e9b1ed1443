"""The events that are to be decided, out of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.pipeline_config import Pipeline
from spark_jobs.pairing.rules import LEFT, RIGHT
from spark_jobs.storage.ledger import LedgerRow
from spark_jobs.storage.tables import OPEN, Warehouse, raw_table


def batch_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    """The batch's accepted events and the open ones (`event_schema`)."""
    pipeline, mine = planned.pipeline, [planned.batch_id]
    new = _accepted(pipeline, [warehouse.read_batches(raw_table(side), mine) for side in pipeline.sides])
    return new.unionAll(_open_events(warehouse, planned))


def accepted_events(warehouse: Warehouse, pipeline: Pipeline, wanted: Column) -> DataFrame:
    """The events of both raw tables that no message's own problem rejected, as new ones (`event_schema`).

    `wanted`: a condition on columns of the raw tables.
    """
    return _accepted(pipeline, [warehouse.read(raw_table(side)).where(wanted) for side in pipeline.sides])


def _accepted(pipeline: Pipeline, raw: Sequence[DataFrame]) -> DataFrame:
    """`raw`: rows of the left raw table and of the right one."""
    sides = []
    for number, rows in zip((LEFT, RIGHT), raw, strict=True):
        side = F.lit(number).alias("side")
        columns: list[Column | str] = [*pipeline.key, side, "partition", "offset", "ts", "payload", "batch_id"]
        sides.append(rows.where(F.col("problem").isNull()).select(*columns, F.lit(False).alias("is_open")))
    return reduce(DataFrame.unionAll, sides)


def _open_events(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    side = F.when(F.col("side") == "left", LEFT).otherwise(RIGHT).alias("side")
    columns: list[Column | str] = [*planned.pipeline.key, side, "partition", "offset", "ts", "payload", "batch_id"]
    return warehouse.read_at(OPEN, planned.versions[OPEN]).select(*columns, F.lit(True).alias("is_open"))
