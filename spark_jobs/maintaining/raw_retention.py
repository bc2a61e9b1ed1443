"""Raw rows that are older than `raw_retention`: batch by batch, oldest first, told to the ledger before they go.

A batch's rows go when W of its plan is that old and nobody can need them any more: it is published and reported, and so is everything
before it, and none of its events is still open. Whoever repeats it removes what is left.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.job import Counts
from spark_jobs.pairing.conservation import BrokenInvariant
from spark_jobs.storage.commit import commit, removal_step
from spark_jobs.storage.ledger import LANDED, LIVE, PAIRED, PUBLISHED, REMOVED, REMOVED_UNTIL, REPORTED, Ledger, LedgerRow
from spark_jobs.storage.tables import OPEN, Warehouse, declared_schema, raw_table


class _Found(NamedTuple):
    """Rows of both raw tables, and the largest timestamp of an accepted event among them."""

    rows: int
    until: int | None


def remove_old(warehouse: Warehouse, ledger: Ledger, now: int) -> Counts:
    """Removes what is too old at `now` (epoch ms); gives how many rows that were. Does nothing while a batch is unfinished."""
    last = ledger.removal()
    keep = warehouse.pipeline.maintenance.raw_retention_ms
    removed = 0
    if keep is not None and PAIRED in ledger.last_batch() and (row := _oldest_to_stay(warehouse, ledger, last, now - keep)):
        ledger.append(row)
        last, removed = row, row.counts[REMOVED]
    if last is not None:
        # Also what an earlier try has not come to.
        for side in warehouse.pipeline.sides:
            _remove(warehouse, raw_table(side), last.batch_id)
    return {REMOVED: removed}


def _oldest_to_stay(warehouse: Warehouse, ledger: Ledger, last: LedgerRow | None, before: int) -> LedgerRow | None:
    """The `removed` row of the last batch, planned before epoch ms `before`, whose raw rows may go; None if there is none."""
    started, done = datetime.now(UTC), last.batch_id if last else 0
    ids, rewinds = ledger.last_ids(), ledger.rewinds()
    until = min(ids[step] for step in (PAIRED, PUBLISHED, REPORTED))
    waiting = warehouse.read(OPEN).agg(F.min("batch_id")).first()
    if waiting and waiting[0] is not None:
        # An event that is open may yet be rejected, with its bytes, which are nowhere else.
        until = min(until, waiting[0] - 1)
    rows = [row for row in ledger.rows(done + 1, until) if not any(rewind.voids(row.batch_id) for rewind in rewinds)]
    old = [row for row in rows if row.step == PAIRED and row.wall_time < before]
    if not old:
        return None
    base = old[-1]
    landed = sum(
        row.counts["landed"] for row in rows if (row.kind, row.step) == (LIVE, LANDED) and row.batch_id <= base.batch_id
    )
    found = _look(warehouse, done, base.batch_id)
    if found.rows != landed:
        raise BrokenInvariant(
            f"raw rows of the batches {done + 1} to {base.batch_id} are not removed: the tables have {found.rows} of them, the ledger "
            f"counts {landed}"
        )
    counts = {REMOVED: found.rows, "first_batch": done + 1}
    known = [at for at in (last.counts.get(REMOVED_UNTIL) if last else None, found.until) if at is not None]
    if known:
        counts[REMOVED_UNTIL] = max(known)
    return base.next_step(REMOVED, started, counts=counts)


def _look(warehouse: Warehouse, after: int, until: int) -> _Found:
    raw = reduce(DataFrame.unionAll, (warehouse.read(raw_table(side)) for side in warehouse.pipeline.sides))
    mine = raw.where((F.col("batch_id") > after) & (F.col("batch_id") <= until))
    event_ts = F.when(F.col("problem").isNull(), F.col("ts"))
    row = mine.agg(F.count("*").alias("rows"), F.max(event_ts).alias("until")).collect()[0]
    return _Found(row["rows"], row["until"])


def _remove(warehouse: Warehouse, table: str, until: int) -> None:
    old = f"batch_id <= {until}"
    if warehouse.read(table).where(old).limit(1).count():
        nothing = warehouse.spark.createDataFrame([], declared_schema(warehouse.pipeline, table))
        commit(warehouse, table, nothing, removal_step(table), until, "overwrite", old)
