"""Creates the tables, and checks before a job works that they are the ones the ledger knows.

Delta notices a gap in the middle of a table's log. It does not notice that the newest file is gone or empty, as after a power cut, or that
one table was put back from an older copy than the others: rows would be missing without a sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.data_files import newest_batch
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.ledger_rows import STEPS, LedgerRow
from spark_jobs.tables.parquet_files import SEARCHED
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, REJECTED, declared_schema, raw_table, schemas
from spark_jobs.tables.tables import TableProblem, Tables

# Commits since the last checkpoint are read one by one, twice, by every job that opens the table. A checkpoint is two puts and a reading of the log.
_CHECKPOINT_EVERY = "5"


def create_missing(warehouse: Tables) -> None:
    """Creates the tables that are not there. The ledger comes last: where it exists, all the others do.

    Call only when there is no ledger; raises TableProblem if the other tables show that there was one.
    """
    others = [table for table in schemas(warehouse.pipeline) if table != LEDGER]
    # On a store creating one table takes as long as creating all.
    with ThreadPoolExecutor(max_workers=len(others)) as pool:
        list(pool.map(lambda table: _create_empty(warehouse, table), others))
    with between_fault_points("ledger_created"):
        _create_empty(warehouse, LEDGER)


def _create_empty(warehouse: Tables, table: str) -> None:
    if warehouse.exists(table):
        if warehouse.version(table) > 0:
            raise TableProblem(
                f"{warehouse.path(table)} has been written to, but {warehouse.path(LEDGER)} is gone: restore the ledger; without it "
                "there is no record of what was landed and published"
            )
        return
    declared = declared_schema(warehouse.pipeline, table)
    properties: dict[str, str | None] = {
        "delta.checkpointInterval": _CHECKPOINT_EVERY,
        "delta.dataSkippingStatsColumns": ",".join(name for name in SEARCHED if name in declared.fieldNames()),
        # maintain_tables cuts the logs.
        "delta.enableExpiredLogCleanup": "false",
    }
    with warehouse.translate_table_errors(table):
        create(warehouse.store(table), declared, properties)


def check_tables(warehouse: Tables, newest: LedgerRow | None) -> None:
    """Every table exists, no file of its log is missing, and it is at least at the version at which `newest` left it.

    `newest`: the last row of the ledger, None before the first batch. Raises NeedsOperator with the table's name.
    """
    versions = table_versions(warehouse, schemas(warehouse.pipeline))
    for table, known in (newest.versions if newest else {}).items():
        if versions.get(table, known) < known:
            raise NeedsOperator(
                f"{warehouse.path(table)} is at version {versions[table]}, but {LEDGER} knows of version {known}: it was put back from an "
                "older copy, or the newest files of its _delta_log are gone; put all tables of the pipeline back from one backup"
            )


def newest_row(steps: Mapping[str, LedgerRow]) -> LedgerRow | None:
    """The last row of the ledger, from the steps of the last batch."""
    return next((steps[step] for step in reversed(STEPS) if step in steps), None)


def table_versions(warehouse: Tables, tables: Iterable[str]) -> dict[str, int]:
    wanted = list(tables)
    # On a store the first look at one table takes as long as at all of them.
    with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
        return dict(zip(wanted, pool.map(warehouse.version, wanted), strict=True))


def check_ledger(warehouse: Tables, last: LedgerRow | None) -> None:
    """No table has rows of a batch that the ledger does not know. Call before a new batch_id is used.

    Otherwise the id would be used twice, and writes under it would be skipped the second time. `last`: the `paired` row of the last
    batch, None before the first. Raises NeedsOperator.
    """
    known, last_id = (last.versions, last.batch_id) if last else ({}, 0)
    appended = [raw_table(side) for side in warehouse.pipeline.sides] + [COMPOUNDS, REJECTED]
    # Tables that have not changed since need no check.
    changed = [table for table, version in table_versions(warehouse, appended).items() if version != known.get(table, 0)]
    for table in changed:
        newest = newest_batch(warehouse.newest(table)) or 0
        if newest > last_id:
            raise NeedsOperator(
                f"{warehouse.path(table)} has rows of batch {newest}, but {LEDGER} ends at batch {last_id}: the ledger was put back "
                "from an older copy, or the newest files of its _delta_log are gone; put all tables of the pipeline back from one backup"
            )
