"""The numbers of a batch, counted afresh from the tables rather than taken from the jobs that wrote them."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.pairing.outcomes import Outcome
from spark_jobs.pairing.reasons import AT_LANDING, AT_PAIRING, Reason
from spark_jobs.storage.ledger import LANDED, LIVE, PAIRED, PLANNED, PUBLISHED, REWIND, TO_BATCH, LedgerRow
from spark_jobs.storage.tables import COMPOUNDS, OPEN, REJECTED, Warehouse, raw_table

Metrics = dict[str, float]
_Counted = dict[tuple[str, int, str], int]


def measure(warehouse: Warehouse, steps: list[dict[str, LedgerRow]]) -> list[Metrics]:
    """The metrics of successive batches, given their ledger rows by step. One Spark job for all of them."""
    counted = _count_tables(warehouse, steps)
    return [_metrics(rows, counted) for rows in steps]


def _count_tables(warehouse: Warehouse, steps: list[dict[str, LedgerRow]]) -> _Counted:
    first, last = min(_counted_ids(rows[PAIRED])[0] for rows in steps), steps[-1][PAIRED].batch_id
    tables = [
        *(
            _labelled(warehouse.read(raw_table(side)), "raw", F.coalesce("problem", F.lit("accepted")), first, last)
            for side in warehouse.pipeline.sides
        ),
        _labelled(warehouse.read(COMPOUNDS), COMPOUNDS, F.col("kind"), first, last),
        _labelled(warehouse.read(REJECTED), REJECTED, F.col("reason"), first, last),
        *(_open_after(warehouse, rows[PAIRED]) for rows in steps),
    ]
    grouped = reduce(DataFrame.unionAll, tables).groupBy("table", "batch_id", "label")
    counted = grouped.agg(F.count("*").alias("records")).collect()
    return {(row["table"], row["batch_id"], row["label"]): row["records"] for row in counted}


def _labelled(rows: DataFrame, table: str, label: Column, first: int, last: int) -> DataFrame:
    mine = rows.where(F.col("batch_id").between(first, last))
    return mine.select(F.lit(table).alias("table"), "batch_id", label.alias("label"))


def _open_after(warehouse: Warehouse, paired: LedgerRow) -> DataFrame:
    """open_events holds the sessions of one moment: after this batch, that is the version its ledger row names."""
    batch_id = F.lit(paired.batch_id).cast("bigint").alias("batch_id")
    return warehouse.read(OPEN, paired.versions[OPEN]).select(
        F.lit(OPEN).alias("table"), batch_id, F.lit("open").alias("label")
    )


def _counted_ids(paired: LedgerRow) -> range:
    """The batches whose rows are counted: the batch itself; a rewind answers for those that it gave up, which must have none."""
    return range(paired.counts[TO_BATCH] + 1 if paired.kind == REWIND else paired.batch_id, paired.batch_id + 1)


def _metrics(rows: dict[str, LedgerRow], counted: _Counted) -> Metrics:
    """All numbers of one batch; the `…_difference` ones are conservation laws and must be 0."""
    planned, paired = rows[PLANNED], rows[PAIRED]
    landed, corrects = rows.get(LANDED, paired), paired.kind != LIVE

    def count(table: str, *labels: str) -> int:
        ids = (paired.batch_id,) if table in (COMPOUNDS, OPEN) else _counted_ids(paired)
        return sum(counted.get((table, batch_id, str(label)), 0) for label in labels for batch_id in ids)

    kinds = [count(COMPOUNDS, kind) for kind in ("pair", "left_only", "right_only")]
    compounds = sum(kinds)
    # Corrections are no outcomes of events.
    pairs, left_only, right_only = [0, 0, 0] if corrects else kinds
    accepted, broken = count("raw", "accepted"), count("raw", *AT_LANDING)
    refused = 0 if corrects else count(REJECTED, *AT_PAIRING)
    open_before, open_after = planned.counts["open_before"], count(OPEN, "open")
    collapsed = paired.counts[Outcome.COLLAPSED]
    published = rows[PUBLISHED].counts["compounds"] if PUBLISHED in rows else 0
    metrics: dict[str, float] = {
        # Less than was planned where the broker lost some of it before it was landed, which `lost` counts.
        "planned": sum(known.planned for known in landed.offsets),
        "offset_gaps": landed.counts["offset_gaps"],
        "lost": landed.counts["lost"],
        "backlog": landed.counts["backlog"],
        "landed": accepted + broken,
        "accepted": accepted,
        "open_before": open_before,
        "pair": pairs,
        "left_only": left_only,
        "right_only": right_only,
        "collapsed": collapsed,
        "open_after": open_after,
        "compounds": compounds,
        "corrections": compounds if corrects else 0,
        "rejected": count(REJECTED, *Reason),
        **{f"rejected_{reason}": count(REJECTED, reason) for reason in Reason},
        "orphan_ratio": (left_only + right_only) / compounds if compounds else 0.0,
    }
    events_out = 2 * pairs + left_only + right_only + collapsed + refused + open_after
    metrics["landing_difference"] = metrics["planned"] - metrics["offset_gaps"] - metrics["landed"]
    metrics["pairing_difference"] = open_before + accepted - events_out
    metrics["rejection_difference"] = broken + refused - metrics["rejected"]
    metrics["publishing_difference"] = compounds - published
    return {name: float(value) for name, value in metrics.items()}
