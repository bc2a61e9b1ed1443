"""How far back the versions of open_events are needed, whatever their age.

Of the other tables every job reads the newest version. Old ones of open_events are read by a batch that is tried again (its plan names
one), by the report (as each batch left it), by reconcile (as the last published batch left it) and by rewinds.
"""

from __future__ import annotations

from spark_jobs.tables.ledger import PAIRED, PLANNED, PUBLISHED, REPORTED, Ledger, LedgerRow
from spark_jobs.tables.records import RewindPlan


def needed_since(ledger: Ledger) -> int | None:
    """Epoch ms from which on every version that was the newest at some moment is needed; None before the first batch."""
    ids = ledger.last_ids()
    rows = ledger.rows(max(1, min(ids[step] for step in (PAIRED, PUBLISHED, REPORTED))))
    moments = [begun(row) for row in rows]
    for row in rows:
        # Until it is reported, what it goes back to is needed, too: by itself, and by reconcile before it is published.
        if row.step == PLANNED and isinstance(row.plan, RewindPlan):
            target = max(1, row.plan.to_batch)
            moments += [begun(each) for each in ledger.rows(target, target)]
    return min(moments, default=None)


def all_done(ledger: Ledger) -> bool:
    """Whether everything that was planned is reported, so that only the version of the last batch is in use."""
    return len(set(ledger.last_ids()[step] for step in (PLANNED, PAIRED, PUBLISHED, REPORTED))) == 1


def begun(row: LedgerRow) -> int:
    """Epoch ms at which the step began; the versions that it read were the newest then, those that it left came after."""
    return int(row.started_at.timestamp() * 1000)
