"""The upkeep of all tables of a pipeline: rows removed for their age, small files merged, old files and log entries deleted.

Versions of open_events are kept for as long as they are needed, whatever their age. Jobs read the newest version of every other table.
Older versions of open_events are read by a batch that is tried again (its plan names one), by the report (as each batch left it), by
reconcile (as the last published batch left it) and by rewinds.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from include.config.pipeline import MS_PER_UNIT
from include.config.store import warehouse_store
from spark_jobs.job.run import Counts
from spark_jobs.maintenance.files import compact, make_checkpoint, vacuum
from spark_jobs.maintenance.retention import remove_old_rows
from spark_jobs.maintenance.uploads import unfinished_uploads
from spark_jobs.tables.integrity import check_tables, newest_row
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, PUBLISHED, REPORTED, LedgerRow
from spark_jobs.tables.records import RewindPlan
from spark_jobs.tables.schemas import LEDGER, OPEN, schemas
from spark_jobs.tables.warehouse import Warehouse

# Most of the time goes into waiting for small commits.
_AT_ONCE = 3
# Only a running reader needs an old version of tables other than open_events. Delta cuts a log at a midnight (UTC), so at night an hour more
# would keep a day more; and every reading of a table lists its log.
_KEPT_MS = 3 * MS_PER_UNIT["h"]
# Clocks of machines, of a file system and of this process differ.
_MARGIN_MS = MS_PER_UNIT["m"]


def maintain_tables(warehouse: Warehouse) -> Counts:
    """Maintains all tables; returns how many rows were removed, how many files merged, and how many uploads below the pipeline's place are
    unfinished, if there are any.
    """
    if not warehouse.exists(LEDGER):
        return {}
    ledger = Ledger(warehouse)
    # Damaged tables stay as they are: the files may help to repair them. Nor is one changed beside one that cannot be opened.
    check_tables(warehouse, newest_row(ledger.last_batch()))
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        # list() waits for all and raises the first error.
        list(pool.map(warehouse.newest, schemas(warehouse.pipeline)))
    counts = remove_old_rows(warehouse, ledger, _now())
    since, cut_log = needed_since(ledger), nothing_pending(ledger)

    def maintain(table: str) -> int:
        if table != OPEN:
            merged = compact(warehouse, table)
            vacuum(warehouse, table, _KEPT_MS)
            make_checkpoint(warehouse, table, _KEPT_MS)
            return merged
        # Every batch rewrites it, so there is nothing to merge.
        needed = 0 if since is None else _now() - since + _MARGIN_MS
        kept = max(warehouse.pipeline.maintenance.time_travel_ms, needed)
        vacuum(warehouse, table, kept)
        # A version that has been the newest for long may still be in use: then its log stays.
        make_checkpoint(warehouse, table, kept if cut_log else None)
        return 0

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        counts |= {"files_put_together": sum(pool.map(maintain, schemas(warehouse.pipeline)))}
    if uploads := unfinished_uploads(warehouse_store(warehouse.root).at(warehouse.pipeline.name)):
        print(f"maintain_tables: {uploads}")
        counts["unfinished_uploads"] = uploads.number
    return counts


def needed_since(ledger: Ledger) -> int | None:
    """Epoch ms from which on every version of open_events that was the newest at some time is needed; None before the first batch."""
    ids = ledger.last_ids()
    rows = ledger.rows(max(1, min(ids[step] for step in (PAIRED, PUBLISHED, REPORTED))))
    starts = [start_ms(row) for row in rows]
    for row in rows:
        # Until a rewind is reported, it needs the version of its target, and reconcile does until the rewind is published.
        if row.step == PLANNED and isinstance(row.plan, RewindPlan):
            target = max(1, row.plan.to_batch)
            starts += [start_ms(each) for each in ledger.rows(target, target)]
    return min(starts, default=None)


def nothing_pending(ledger: Ledger) -> bool:
    """Whether every planned batch is reported, so that only the version of the last batch is in use."""
    return len(set(ledger.last_ids()[step] for step in (PLANNED, PAIRED, PUBLISHED, REPORTED))) == 1


def start_ms(row: LedgerRow) -> int:
    """Epoch ms of the step's start: the versions that it read were the newest then, its own came later."""
    return int(row.started_at.timestamp() * 1000)


def _now() -> int:
    return time.time_ns() // 1_000_000
