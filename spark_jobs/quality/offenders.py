"""The events of a batch to look up: rejected ones and those that stayed alone, by their source coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow.dataset as ds
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.quality.numbers import SIDES
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.schemas import COMPOUNDS, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

# Of each batch and label.
SHOWN = 20
# Reasons for which an event with a time of its own is rejected.
_WITH_TIME = (Reason.FUTURE, Reason.SUPERSEDED, Reason.DUPLICATE, Reason.LATE)
_SOURCE = ("topic", "partition", "offset")


class Offender(NamedTuple):
    """An event: `label` is the reason of its rejection, or the kind of its compound. Epoch ms: `ts` its own, None if it has none; `sent` that of
    its record, None of a compound.
    """

    batch_id: int
    label: str
    topic: str
    partition: int
    offset: int
    ts: int | None
    sent: int | None = None

    @property
    def source(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def find_offenders(warehouse: Warehouse, first: int, last: int) -> list[Offender]:
    """Those of the batches first..last, both inclusive: of each batch and label one more than SHOWN, so that this is seen."""
    mine = range(first, last + 1)
    refused = warehouse.reading(REJECTED, ["batch_id", "reason", "record_timestamp", *_SOURCE], batches=mine)
    columns = ["batch_id", "kind", "ts", *(f"{side}_{name}" for side in SIDES for name in _SOURCE)]
    compounds = warehouse.reading(
        COMPOUNDS, columns, batches=mine, where=lambda column: (column("kind") != "pair") & (column("op") == "upsert")
    )
    if not refused.files and not compounds.files:
        return []
    own, sent = F.lit(None).cast("bigint").alias("ts"), F.col("record_timestamp").alias("sent")
    rejected = refused.in_spark().select("batch_id", F.col("reason").alias("label"), *_SOURCE, own, sent)
    sources = [F.coalesce(f"left_{name}", f"right_{name}").alias(name) for name in _SOURCE]
    alone = compounds.in_spark().select("batch_id", F.col("kind").alias("label"), *sources, "ts", own.alias("sent"))
    order = Window.partitionBy("batch_id", "label").orderBy(*_SOURCE)
    found = rejected.unionAll(alone).withColumn("place", F.row_number().over(order)).where(F.col("place") <= SHOWN + 1)
    events = [Offender(**row.asDict()) for row in found.drop("place").orderBy("batch_id", "label", *_SOURCE).collect()]
    return with_times(warehouse, events)


def with_times(warehouse: Warehouse, events: Sequence[Offender]) -> list[Offender]:
    """The events; one that was rejected although it has a time gets that of its raw row. What a page says of an event must not depend on which
    others are looked up beside it.
    """
    times = _times(warehouse, [each for each in events if each.label in _WITH_TIME])
    return [
        each._replace(ts=times.get((each.batch_id, each.source))) if each.label in _WITH_TIME else each for each in events
    ]


def _times(warehouse: Warehouse, events: list[Offender]) -> dict[tuple[int, str], int]:
    """Batch and source -> time of these rejected events and of others, as far as the batch that rejected them has landed them, too: whichever batches are
    reported together.
    """
    found: dict[tuple[int, str], int] = {}
    if not events:
        return found
    batches, offsets = sorted({each.batch_id for each in events}), sorted({each.offset for each in events})
    columns = ["batch_id", "ts", *_SOURCE]

    def near(column: Callable[[str], Any]) -> ds.Expression:
        # The bounds tell which parts of a table need not be read.
        batch, offset = column("batch_id"), column("offset")
        bounds = (batch >= batches[0]) & (batch <= batches[-1]) & (offset >= offsets[0]) & (offset <= offsets[-1])
        return bounds & batch.isin(batches) & offset.isin(offsets)

    for side in warehouse.pipeline.sides:
        rows = warehouse.select_rows(raw_table(side), columns, near)
        found |= {
            (row["batch_id"], "{topic}-{partition}-{offset}".format(**row)): row["ts"]
            for row in rows
            if row["ts"] is not None
        }
    return found
