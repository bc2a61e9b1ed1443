"""Up to which batch rows may go for their age: only batches are looked at, no table."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.tables.ledger import PAIRED, LedgerRow, rewinds_among
from spark_jobs.tables.records import LIVE


def standing(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """The `paired` rows of the batches that no rewind among these rows gave up, by batch_id."""
    rewinds = rewinds_among(rows)
    return [row for row in rows if row.step == PAIRED and not any(rewind.voids(row.batch_id) for rewind in rewinds)]


def last_to_go(rows: Sequence[LedgerRow], until: int, before: int) -> LedgerRow | None:
    """The `paired` row of the last batch up to `until` that was planned before epoch ms `before`, and can go with all before it.

    `rows`: the ledger's from the first batch that is left to its newest. From a rewind on, as long as compounds of void batches may come
    back, every batch looks their revisions up: rows do not end there, but with the rewind's target or where that is over.
    """
    old = [row for row in standing(rows) if row.batch_id <= until and row.wall_time < before and row.plan.corrected is None]
    return old[-1] if old else None


def with_late_events(rows: Sequence[LedgerRow], until: int) -> list[LedgerRow]:
    """The `paired` rows of the live batches up to `until` that have rejected late events."""
    return [row for row in standing(rows) if row.batch_id <= until and row.kind == LIVE and row.paired.late]
