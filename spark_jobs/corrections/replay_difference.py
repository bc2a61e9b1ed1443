"""What an interval's compounds are, against what was published of it; and what speaks against correcting that."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.time_text import moment
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.stages.outcome_rows import compound_rows
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, Warehouse

NEW, CHANGED, RETRACTED, UNCHANGED = FOUND = ("new", "changed", "retracted", "unchanged")
_PLACE = ("side", "partition", "offset")
# No field of a message can have such a name.
_COMPOUND_TS, _PUBLISHED = "ts of the compound", "is published"
# What a row says of how it came about, not of the compound.
_HISTORY = ("revision", "op", "batch_id")


def known_compounds(warehouse: Warehouse, planned: LedgerRow) -> DataFrame:
    """`pair_id` and `now`, its last row: of all compounds that are or ever were in the interval, and of others around it."""
    window, reach = planned.replay.window, planned.replay.reach_ms

    def around(column: Callable[[str], Any]) -> Any:
        near = (column("ts") >= window.start - reach) & (column("ts") < window.end + reach)
        return near & (column("batch_id") < planned.batch_id)

    rows = warehouse.read(COMPOUNDS, where=around)
    return rows.groupBy("pair_id").agg(F.max_by(F.struct(*rows.columns), "revision").alias("now"))


def _published(known: DataFrame, planned: LedgerRow) -> Column:
    return (F.col("now.op") == UPSERT) & planned.replay.window.has(F.col("now.ts"))


def compared(outcomes: DataFrame, known: DataFrame, planned: LedgerRow) -> DataFrame:
    """One row for each compound that is in the interval by what was published, or by these outcomes: `pair_id`, `now` (its last
    row, null if it has none), `then` (the row it should have, null if none) and `found`, one of FOUND.
    """
    rows = compound_rows(outcomes, planned.pipeline, planned.batch_id)
    should_be = rows.select("pair_id", F.struct(*rows.columns).alias("then"))
    said = [name for name in rows.columns if name not in _HISTORY]

    def saying(version: str) -> Column:
        return F.struct(*(F.col(f"{version}.{name}") for name in said))

    is_out = F.coalesce(F.col("now.op") == UPSERT, F.lit(False))
    found = (
        F.when(F.col("then").isNull() & is_out, RETRACTED)
        .when(F.col("then").isNotNull() & F.col("now").isNull(), NEW)
        .when(F.col("then").isNotNull() & is_out & saying("now").eqNullSafe(saying("then")), UNCHANGED)
        .when(F.col("then").isNotNull(), CHANGED)
    )
    both = should_be.join(known, "pair_id", "full").withColumn("found", found)
    return both.where(
        F.col("found").isNotNull() & (planned.replay.window.has(F.col("then.ts")) | _published(known, planned))
    )


def check_decided(warehouse: Warehouse, outcomes: DataFrame, known: DataFrame, planned: LedgerRow) -> None:
    """Raises NeedsOperator if not all events of the interval's compounds are decided for good, or some are gone."""
    pipeline, window = planned.pipeline, planned.replay.window
    events = _events(
        outcomes, known, warehouse.read(OPEN, [*pipeline.key, *_PLACE, "ts"], version=planned.versions[OPEN]), planned
    )
    mine = F.col(_PUBLISHED) | window.has(F.col("ts")) | window.has(F.col(_COMPOUND_TS))
    still = F.col("is_open") & F.coalesce(mine, F.lit(False))
    by_key = events.groupBy(*pipeline.key).agg(
        F.count_if(F.col(_PUBLISHED) & F.col("ts").isNull()).alias("gone events"),
        F.max(still).alias("has open ones"),
        F.max(F.when(F.col("is_open"), F.col("ts"))).alias("open until"),
    )
    gone, until = by_key.agg(F.sum("gone events"), F.max(F.when(F.col("has open ones"), F.col("open until")))).collect()[0]
    if gone:
        raise NeedsOperator(
            f"the interval {window} cannot be replayed: {gone} events of its published compounds are no longer in the raw tables, "
            "which without them would all be taken back; nothing was changed"
        )
    if until is not None:
        over = until + pipeline.gap_ms + pipeline.grace_ms + 1
        raise NeedsOperator(
            f"the interval {window} is not closed yet: sessions that begin in it are still open, with events up to {moment(until)}; replay "
            f"it when a batch has a clock of at least {moment(over)}"
        )


def _events(outcomes: DataFrame, known: DataFrame, waiting: DataFrame, planned: LedgerRow) -> DataFrame:
    """One row an event: key fields, place, `ts` (null: it is not in the raw tables), the `ts` of its compound by this pairing, whether
    some session of it is open (by this pairing or by the live one), and whether it is in a published compound of the interval.
    """
    key = planned.pipeline.key
    published = known.where(_published(known, planned)).select("now.*")
    parts = [_event_rows(waiting, F.col("side"), "", key, {"is_open": F.lit(True)})]
    for side in ("left", "right"):
        there, name = F.col(f"{side}_offset").isNotNull(), F.lit(side)
        decided = {"ts": F.col(f"{side}_ts"), _COMPOUND_TS: F.least("left_ts", "right_ts")}
        decided["is_open"] = F.col("outcome") == str(Outcome.OPEN)
        parts.append(_event_rows(outcomes.where(there), name, f"{side}_", key, decided))
        parts.append(_event_rows(published.where(there), name, f"{side}_", key, {_PUBLISHED: F.lit(True)}))
    merged = [F.max(name).alias(name) for name in ("ts", _COMPOUND_TS, "is_open", _PUBLISHED)]
    return reduce(DataFrame.unionAll, parts).groupBy(*key, *_PLACE).agg(*merged)


def _event_rows(rows: DataFrame, side: Column, prefix: str, key: tuple[str, ...], said: dict[str, Column]) -> DataFrame:
    place = [side.alias("side"), *(F.col(f"{prefix}{name}").alias(name) for name in _PLACE[1:])]
    nothing = F.lit(None).cast("bigint")
    told = {"ts": nothing, _COMPOUND_TS: nothing, "is_open": F.lit(False), _PUBLISHED: F.lit(False)} | said
    return rows.select(*key, *place, *(column.alias(name) for name, column in told.items()))
