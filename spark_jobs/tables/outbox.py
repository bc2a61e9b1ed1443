"""Corrections of compounds that consumers may have: retractions by a rewind, next revisions by the batches after it.

compound_events is the outbox, so it is never put back: its rows have been sent, or will be. After a batch, a consumer has of each pair_id
the row with the largest revision among the rows up to that batch.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.records import CorrectedBatches
from spark_jobs.tables.schemas import COMPOUNDS, OPEN
from spark_jobs.tables.warehouse import Warehouse

UPSERT, RETRACT = "upsert", "retract"


def changed_since(warehouse: Warehouse, to_batch: int, last_paired: int) -> DataFrame:
    """One row for each pair_id that the batches after `to_batch`, up to `last_paired` (inclusive), wrote and that needs a correction.

    `now`: its last row; `then`: its last row up to `to_batch`, null if there is none or it was retracted.
    """
    rows = warehouse.read(COMPOUNDS, where=lambda column: column("batch_id") <= last_paired)
    touched = rows.where(F.col("batch_id") > to_batch).select("pair_id").distinct()
    whole = F.struct(*rows.columns)
    before = F.when(F.col("batch_id") <= to_batch, F.col("revision"))
    both = (
        rows.join(touched, "pair_id", "left_semi")
        .groupBy("pair_id")
        .agg(F.max_by(whole, "revision").alias("now"), F.max_by(whole, before).alias("earlier"))
    )
    # max_by returns any row where all revisions are null.
    was = (F.col("earlier.batch_id") <= to_batch) & (F.col("earlier.op") == UPSERT)
    sides = both.select("pair_id", "now", F.when(was, F.col("earlier")).alias("then"))
    return sides.where((F.col("now.op") == UPSERT) | F.col("then").isNotNull())


def corrections(changed: DataFrame, batch_id: int) -> DataFrame:
    """The rows of compound_events that correct what changed, each with the next revision: as in `then`, or retracted.

    `changed` has the columns `now`, the last row of a pair_id (null: it never had one), and `then`, the row it should have (null: none).
    """
    gone = F.col("then").isNull()
    row = F.when(gone, F.col("now")).otherwise(F.col("then"))
    given: dict[str, Column] = {
        "revision": F.coalesce(F.col("now.revision") + 1, F.lit(0)),
        "op": F.when(gone, F.lit(RETRACT)).otherwise(F.lit(UPSERT)),
        "batch_id": F.lit(batch_id).cast("bigint"),
    }
    columns = changed.schema["now"].dataType.fieldNames()  # type: ignore[attr-defined]  # it is a struct
    picked = changed.select(row.alias("row"), "now", "then")
    return picked.select(*(given.get(name, F.col("row").getField(name)).alias(name) for name in columns))


def pending_corrections(warehouse: Warehouse, ledger: Ledger, last: LedgerRow | None) -> CorrectedBatches | None:
    """The batches in which the batch after `last` (a `paired` row) looks up revisions.

    None if no compound of a void batch can come back any more, because all its events were read again and none is open.
    """
    if last is None or (corrected := last.plan.corrected) is None:
        return None
    rewind = ledger.rows(corrected.last, corrected.last)[0]
    ends = {at.place: at.end_offset for at in rewind.offsets}
    reached = {at.place: at.until_offset for at in last.offsets}
    if all(reached.get(place, 0) >= end for place, end in ends.items()):
        waiting = warehouse.read(OPEN, ["topic", "partition", "offset"], version=last.versions[OPEN])
        if not waiting.where(_before(ends)).limit(1).count():
            return None
    return corrected


def _before(ends: dict[tuple[str, int], int]) -> Column:
    """Whether an event is before the end of its partition's range, exclusive."""
    found = F.lit(False)
    for (topic, partition), end in ends.items():
        found = found | ((F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") < end))
    return found
