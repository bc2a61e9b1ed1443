"""Finishes a batch of any kind that was planned and not paired: the next job does that first, as it was planned."""

from __future__ import annotations

from collections.abc import Collection

from spark_jobs.corrections.erasure_batch import finish_erasure
from spark_jobs.corrections.replay import finish_replay
from spark_jobs.corrections.rewind import finish_rewind
from spark_jobs.stages.land import land_batch
from spark_jobs.stages.pair import pair_batch
from spark_jobs.tables.integrity import check_tables, newest_row
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, LedgerRow
from spark_jobs.tables.records import ERASURE, LIVE, REPLAY, REWIND
from spark_jobs.tables.warehouse import Warehouse


def finish_batch(warehouse: Warehouse, ledger: Ledger, accepted_losses: Collection[str] = ()) -> LedgerRow | None:
    """Finishes the last batch up to its `paired` row and returns that; None before the first batch."""
    steps = ledger.last_batch()
    check_tables(warehouse, newest_row(steps))
    if not steps:
        return None
    planned = steps[PLANNED]
    if PAIRED in steps:
        return steps[PAIRED]
    if planned.kind != LIVE:
        # Their questions are Spark SQL, and without a session there are no columns to ask for.
        warehouse.start_spark()
    if planned.kind == REWIND:
        return finish_rewind(warehouse, ledger, planned)
    if planned.kind == REPLAY:
        return finish_replay(warehouse, ledger, planned)
    if planned.kind == ERASURE:
        return finish_erasure(warehouse, ledger, planned)
    landed = steps.get(LANDED) or land_batch(warehouse, ledger, planned, accepted_losses)
    return pair_batch(warehouse, ledger, planned, landed)
