"""The care of all tables of a pipeline, one after the other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from include.config.pipeline import MS_PER_UNIT
from include.config.store import warehouse_store
from spark_jobs.job.run import Counts
from spark_jobs.maintenance.files import checkpoint, compact, keep
from spark_jobs.maintenance.needed import all_done, needed_since
from spark_jobs.maintenance.retention import remove_old
from spark_jobs.maintenance.uploads import unfinished_uploads
from spark_jobs.tables.agreement import check_tables, newest_row
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.warehouse import LEDGER, OPEN, Warehouse, schemas

# Most of the time goes into waiting for small commits.
_AT_ONCE = 3
# Of other tables than open_events nobody but a reader at work needs an old version. Delta cuts a log at a midnight (UTC), so that in the
# night an hour more would keep a day more; and what lies in a log is listed with every look at the table.
_KEPT_MS = 3 * MS_PER_UNIT["h"]
# Clocks of machines differ, and so do those of a file system and of this process.
_MARGIN_MS = MS_PER_UNIT["m"]


def care_for_tables(warehouse: Warehouse) -> Counts:
    """Takes care of all tables; returns how many rows were removed, how many files were put together, and how many uploads below the
    pipeline's place are unfinished, if there are any.
    """
    if not warehouse.exists(LEDGER):
        return {}
    ledger = Ledger(warehouse)
    # Not to be tidied up: what is damaged may be mended from what lies about.
    check_tables(warehouse, newest_row(ledger.last_batch()))
    counts = remove_old(warehouse, ledger, _now())
    since, cut_log = needed_since(ledger), all_done(ledger)

    def care_for(table: str) -> int:
        if table != OPEN:
            small = compact(warehouse, table)
            keep(warehouse, table, _KEPT_MS)
            checkpoint(warehouse, table, _KEPT_MS)
            return small
        # Every batch writes it anew, so there is nothing to put together.
        needed = 0 if since is None else _now() - since + _MARGIN_MS
        kept = max(warehouse.pipeline.maintenance.time_travel_ms, needed)
        keep(warehouse, table, kept)
        # A version that has been the newest for long may still be in use: then its log stays.
        checkpoint(warehouse, table, kept if cut_log else None)
        return 0

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as beside:
        counts |= {"files_put_together": sum(beside.map(care_for, schemas(warehouse.pipeline)))}
    if uploads := unfinished_uploads(warehouse_store(warehouse.root).at(warehouse.pipeline.name)):
        print(f"maintain_tables: {uploads}")
        counts["unfinished_uploads"] = uploads.number
    return counts


def _now() -> int:
    return time.time_ns() // 1_000_000
