"""Why events found no partner: how far the closest unpaired event of the other side was, and whose events they are.

An orphan's candidates are the unpaired events of the same key: orphans of its batch and of those shortly before, and the late events of
its batch. Who was given up earlier than that is not looked for, so that the cost does not grow with the history.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.quality.facts import fact, facts, facts_of_each
from spark_jobs.quality.numbers import ORPHANS
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import PAIRED, PLANNED, LedgerRow
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.warehouse import COMPOUNDS, REJECTED, Warehouse, raw_table

# Upper ends of a histogram's buckets, inclusive.
BOUNDS_MS = (
    *(100, 250, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 45_000, 60_000, 75_000, 90_000, 120_000, 150_000),
    *(180_000, 240_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
)

# So many batches before are looked into, as long as they hold no more compounds than these.
LOOK_BACK, _COMPOUNDS_BEFORE = 12, 200_000
# No field of a message can have such names.
_IS_LEFT, _AT, _LATE, _MINE, _AWAY = "is left", "is at", "is late", "is reported", "is away"


class Looked(NamedTuple):
    """The batches whose orphans are asked about, and the live ones before them that are looked into."""

    batches: list[dict[str, LedgerRow]]
    before: list[int]


def look(batches: list[dict[str, LedgerRow]], earlier: list[dict[str, LedgerRow]]) -> Looked | None:
    """None if nobody was left alone, or came late."""
    mine = [rows for rows in batches if rows[PAIRED].kind == LIVE]
    if not any(getattr(rows[PAIRED].paired, name) for rows in mine for name in (*ORPHANS, Reason.LATE)):
        return None
    before: list[int] = []
    left = max(_COMPOUNDS_BEFORE, sum(rows[PAIRED].paired.compounds for rows in mine))
    for rows in reversed(earlier[-LOOK_BACK:]):
        left -= rows[PAIRED].paired.compounds
        if left < 0:
            break
        if rows[PAIRED].kind == LIVE:
            before.append(rows[PAIRED].batch_id)
    return Looked(mine, before)


def orphan_facts(warehouse: Warehouse, looked: Looked) -> list[DataFrame]:
    """Facts `miss_left`, `miss_right`, `grace`, `healable` (by bound) and `user` (by key field, the one with most orphans on top)."""
    return [_nearest(warehouse, looked), _users(warehouse, looked)]


def _ids(looked: Looked) -> list[int]:
    return [rows[PAIRED].batch_id for rows in looked.batches]


def _orphans(warehouse: Warehouse, batch_ids: list[int]) -> DataFrame:
    columns = [*warehouse.pipeline.key, "kind", "ts", "batch_id"]
    return warehouse.read(COMPOUNDS, columns, batches=batch_ids, where=lambda column: column("kind").isin(list(ORPHANS)))


def _nearest(warehouse: Warehouse, looked: Looked) -> DataFrame:
    pipeline, ids = looked.batches[-1][PLANNED].pipeline, _ids(looked)
    orphans = _orphans(warehouse, [*ids, *looked.before]).select(
        *pipeline.key,
        (F.col("kind") == "left_only").alias(_IS_LEFT),
        F.col("ts").alias(_AT),
        F.lit(False).alias(_LATE),
        F.col("batch_id").isin(ids).alias(_MINE),
        "batch_id",
    )
    alone = [orphans, *_late(warehouse, looked, pipeline)]
    near = reduce(DataFrame.unionAll, alone).withColumn(_AWAY, _distance(pipeline)).where(F.col(_MINE))
    away, late = F.col(_AWAY), F.col(_LATE)
    which = F.when(F.col(_IS_LEFT), "miss_left").otherwise("miss_right")
    found = [F.when(~late, fact(which, F.lit(""), bound(away)))]
    if len(alone) > 1:
        before = {rows[PAIRED].batch_id: rows[PLANNED].clock or 0 for rows in looked.batches}
        clock = F.create_map(*(F.lit(each).cast("bigint") for pair in before.items() for each in pair))
        # Not late is what ends at clock - gap - grace or later; alone in its session, an event is its end.
        needed = F.try_element_at(clock, "batch_id") - pipeline.gap_ms - F.col(_AT)
        found.append(F.when(late, fact("grace", F.lit(""), bound(needed))))
        found.append(F.when(late & (away <= pipeline.tolerance_ms), fact("healable", F.lit(""))))
    return facts_of_each(near, found)


def _late(warehouse: Warehouse, looked: Looked, pipeline: Pipeline) -> list[DataFrame]:
    """The late events, which stand in rejected_events without their time; nothing if there are none."""
    ids = [rows[PAIRED].batch_id for rows in looked.batches if rows[PAIRED].paired.late]
    if not ids:
        return []
    place = ["topic", "partition", "offset"]
    late = F.broadcast(
        warehouse.read(REJECTED, place, batches=ids, where=lambda column: column("reason") == str(Reason.LATE))
    )
    found = []
    for number, side in enumerate(pipeline.sides):
        rows = warehouse.read(raw_table(side), [*place, *pipeline.key, "ts", "batch_id"], batches=ids)
        raw = rows.join(late, place, "left_semi")
        said = {_IS_LEFT: F.lit(number == 0), _AT: F.col("ts"), _LATE: F.lit(True), _MINE: F.lit(True)}
        found.append(raw.select(*pipeline.key, *(value.alias(name) for name, value in said.items()), "batch_id"))
    return found


def _distance(pipeline: Pipeline) -> Column:
    """To the closest unpaired event of the other side, ms; null where the key has none."""
    of_key = Over.partitionBy(*pipeline.key).orderBy(_AT)
    before = of_key.rowsBetween(Over.unboundedPreceding, -1)
    after = of_key.rowsBetween(1, Over.unboundedFollowing)
    at, is_left = F.col(_AT), F.col(_IS_LEFT)

    def closest(of_left: Column) -> Column:
        other = F.when(of_left, at)
        return F.least(at - F.last(other, ignorenulls=True).over(before), F.first(other, ignorenulls=True).over(after) - at)

    return F.when(is_left, closest(~is_left)).otherwise(closest(is_left))


def bound(value: Column) -> Column:
    """The bucket of a duration, by its upper end (inclusive); null beyond the last one, or of null."""
    found = F.when(value <= BOUNDS_MS[0], BOUNDS_MS[0])
    for each in BOUNDS_MS[1:]:
        found = found.when(value <= each, each)
    return found


def _users(warehouse: Warehouse, looked: Looked) -> DataFrame:
    """One fact for each value of a key field that has orphans: their number."""
    key = looked.batches[-1][PLANNED].pipeline.key
    named = F.explode(F.array(*(F.struct(F.lit(name).alias("label"), F.col(name).alias("text")) for name in key)))
    users = _orphans(warehouse, _ids(looked)).select("batch_id", named.alias("user")).select("batch_id", "user.*")
    counted = users.groupBy("batch_id", "label", "text").agg(F.count("*").alias("value"))
    return facts(counted, F.lit("user"), F.col("label"), value=F.col("value"), text=F.col("text"))
