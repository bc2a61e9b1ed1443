"""The events of a batch to look up: rejected ones and those that stayed alone, by their source coordinates."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.quality.numbers import SIDES
from spark_jobs.tables.schemas import COMPOUNDS, REJECTED
from spark_jobs.tables.warehouse import Warehouse

# Of each batch and label.
SHOWN = 20
_SOURCE = ("topic", "partition", "offset")


class Offender(NamedTuple):
    """An event: `label` is the reason of its rejection, or the kind of its compound; `ts` (epoch ms) its own, of a rejected one the record's."""

    batch_id: int
    label: str
    topic: str
    partition: int
    offset: int
    ts: int

    @property
    def source(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def find_offenders(warehouse: Warehouse, first: int, last: int) -> list[Offender]:
    """Those of the batches first..last, both inclusive, in one Spark job: of each batch and label one more than SHOWN, so that this is seen."""
    mine = range(first, last + 1)
    refused = warehouse.read(REJECTED, ["batch_id", "reason", "record_timestamp", *_SOURCE], batches=mine)
    rejected = refused.select("batch_id", F.col("reason").alias("label"), *_SOURCE, F.col("record_timestamp").alias("ts"))
    columns = ["batch_id", "kind", "ts", *(f"{side}_{name}" for side in SIDES for name in _SOURCE)]
    compounds = warehouse.read(
        COMPOUNDS, columns, batches=mine, where=lambda column: (column("kind") != "pair") & (column("op") == "upsert")
    )
    sources = [F.coalesce(f"left_{name}", f"right_{name}").alias(name) for name in _SOURCE]
    alone = compounds.select("batch_id", F.col("kind").alias("label"), *sources, "ts")
    order = Window.partitionBy("batch_id", "label").orderBy(*_SOURCE)
    found = rejected.unionAll(alone).withColumn("place", F.row_number().over(order)).where(F.col("place") <= SHOWN + 1)
    return [Offender(**row.asDict()) for row in found.drop("place").orderBy("batch_id", "label", *_SOURCE).collect()]
