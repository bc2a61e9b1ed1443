"""Every landed record has exactly one outcome, and every record on the topics is landed."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.quality.findings import Finding, fingerprint, flagged
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, REJECTED, Warehouse, raw_table

PLACE = ("topic", "partition", "offset")


def raw_rows(warehouse: Warehouse, after: int, horizon: int) -> DataFrame:
    """The raw rows of both sides, of the batches after..horizon (exclusive, inclusive): what is compared of them."""
    columns = [*PLACE, "key", "value", "problem", "batch_id"]
    batches = range(after + 1, horizon + 1)
    tables = [warehouse.read(raw_table(side), columns, batches=batches) for side in warehouse.pipeline.sides]
    return reduce(DataFrame.unionAll, tables)


def outcomes(
    warehouse: Warehouse, ledger: DataFrame, void: Column, after: int, horizon: int, open_version: int
) -> DataFrame:
    """The coordinates of every record in each table that says what became of it; open events as they were at the horizon.

    Of the batches after..horizon (exclusive, inclusive). `void`: whether a row is of a batch that was given up; compound_events keeps such rows, as the outbox.
    """
    others = ledger.where(F.col("kind") != LIVE).select("batch_id").distinct()
    # A replay gives records another outcome without taking back the first; that one is what counts here. A rewind gives none.
    columns = {
        COMPOUNDS: ["batch_id", *(f"{side}_{name}" for side in ("left", "right") for name in PLACE)],
        REJECTED: ["batch_id", *PLACE],
    }
    compounds, rejected = (
        warehouse.read(table, names, batches=range(after + 1, horizon + 1)).join(others, "batch_id", "left_anti")
        for table, names in columns.items()
    )
    sides = [
        compounds.where(F.col(f"{side}_offset").isNotNull() & ~void).select(
            *(F.col(f"{side}_{name}").alias(name) for name in PLACE), F.lit(COMPOUNDS).alias("source")
        )
        for side in ("left", "right")
    ]
    waiting = warehouse.read(OPEN, PLACE, version=open_version).select(*PLACE, F.lit(OPEN).alias("source"))
    return reduce(DataFrame.unionAll, [*sides, rejected.select(*PLACE, F.lit(REJECTED).alias("source")), waiting])


def by_place(raw: DataFrame, claims: DataFrame, records: DataFrame) -> DataFrame:
    """One row for each record that is anywhere: raw rows, records on the topic, outcomes, and what they say."""
    nothing, no_text = F.lit(None).cast("bigint"), F.lit(None).cast("string")
    rows = [
        raw.select(*PLACE, F.lit("raw").alias("source"), fingerprint("key", "value").alias("bytes"), "problem"),
        records.select(
            *PLACE, F.lit("record").alias("source"), fingerprint("key", "value").alias("bytes"), no_text.alias("problem")
        ),
        claims.select(*PLACE, "source", nothing.alias("bytes"), no_text.alias("problem")),
    ]

    def count(*sources: str) -> Column:
        return F.count(F.when(F.col("source").isin(*sources), True))

    def said_by(source: str) -> Column:
        return F.max(F.when(F.col("source") == source, F.col("bytes")))

    tables = (COMPOUNDS, REJECTED, OPEN)
    return (
        reduce(DataFrame.unionAll, rows)
        .groupBy(*PLACE)
        .agg(
            count("raw").alias("raw"),
            count("record").alias("records"),
            *(count(table).alias(table) for table in tables),
            count(*tables).alias("outcomes"),
            F.max("problem").alias("problem"),
            (said_by("raw") != said_by("record")).alias("differs"),
        )
    )


def was_removed(removal: LedgerRow | None) -> Column:
    """Whether the record of a place was landed by a batch whose rows were given up for their age. `removal`: which says up to where."""
    found = F.lit(False)
    for at in removal.offsets if removal else ():
        of_partition = (F.col("topic") == at.topic) & (F.col("partition") == at.partition)
        found = found | (of_partition & (F.col("offset") < at.until_offset))
    return found


def check_places(places: DataFrame) -> DataFrame:
    """What is wrong with which record. Records that the topic no longer has are not among it, nor those whose outcomes went for their age."""
    landed, claimed = F.col("raw") > 0, F.col("outcomes") > 0
    rejected, removed = F.col("problem").isNotNull(), F.col("removed")
    tables = F.concat_ws(
        ", ", *(F.when(F.col(name) > 0, F.format_string(f"%d x {name}", name)) for name in (COMPOUNDS, REJECTED, OPEN))
    )
    where = F.concat_ws("-", *PLACE)
    return flagged(
        places,
        F.when(F.col("outcomes") > 1, F.concat(where, F.lit(" in "), tables)).otherwise(where),
        {
            Finding.NOT_LANDED: ~landed & (F.col("records") > 0) & ~removed,
            Finding.LANDED_TWICE: F.col("raw") > 1,
            Finding.LANDED_OTHERWISE: F.col("differs"),
            Finding.NEVER_LANDED: ~landed & claimed & ~removed,
            Finding.NOT_REJECTED: landed & rejected & ~claimed,
            Finding.NO_OUTCOME: (landed | removed) & ~rejected & ~claimed & ~F.col("unchecked"),
            Finding.TWO_OUTCOMES: F.col("outcomes") > 1,
        },
    )
