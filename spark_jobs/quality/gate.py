"""With `quality.gate: before_publish`: which batches may be published, and why not the next one."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.ledger_rows import REPORTED, LedgerRow, find_rewinds


def held_back(paired: Sequence[LedgerRow], rows: Sequence[LedgerRow], released: int) -> LedgerRow | None:
    """The first of the paired batches that must not be published, because it failed or was not judged; None if all may be.

    Batches are published in their order, so nothing after it is published. `rows`: the ledger's rows of these batches and later ones; a batch
    that a rewind gave up is never judged, and is published with that rewind. `released`: failed batches up to this one (inclusive) may be
    published, as the operator said.
    """
    rewinds = find_rewinds(rows)
    passed = {row.batch_id for row in rows if row.step == REPORTED and not row.reported.failed_checks}
    waiting = (row for row in paired if row.batch_id > released and row.batch_id not in passed)
    return next((row for row in waiting if not any(rewind.voids(row.batch_id) for rewind in rewinds)), None)


def refuse_held(pipeline: str, held: LedgerRow, rows: Sequence[LedgerRow]) -> None:
    """Raises NeedsOperator: says why the batch is not published, and how it can be."""
    judged = next((row for row in rows if (row.batch_id, row.step) == (held.batch_id, REPORTED)), None)
    why = f"failed {judged.reported.failed_checks} critical checks" if judged else "has not been judged yet"
    raise NeedsOperator(
        f"batch {held.batch_id} of pipeline {pipeline} {why} and is held back, with all after it (quality.gate: before_publish): "
        f"look at its quality page, then let it go with --release-batch {held.batch_id}, or go back before it with rewind"
    )
