"""Whether the tables are those that the ledger knows: asked before a job works on them.

Delta notices a hole in the middle of a table's log. It does not notice that the newest file is gone or empty, as after a power cut, or
that a table was put back from an older copy than the others: then rows are missing, and nobody says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.ledger import STEPS, LedgerRow
from spark_jobs.tables.warehouse import COMPOUNDS, LEDGER, REJECTED, Warehouse, raw_table, schemas


def check_tables(warehouse: Warehouse, newest: LedgerRow | None) -> None:
    """Every table is there, its log is whole, and it is at least at the version at which `newest` left it.

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


def table_versions(warehouse: Warehouse, tables: Iterable[str]) -> dict[str, int]:
    """The latest Delta version of each table."""
    wanted = list(tables)
    # On a store the first look at a table takes as long as at all of them.
    with ThreadPoolExecutor(max_workers=len(wanted)) as beside:
        return dict(zip(wanted, beside.map(warehouse.version, wanted), strict=True))


def check_ledger(warehouse: Warehouse, last: LedgerRow | None) -> None:
    """No table has rows of a batch that the ledger does not know; asked before a batch_id is given out.

    The id would be given out twice, and what is written under it the second time is skipped. `last`: the `paired` row of the last
    batch, None before the first. Raises NeedsOperator.
    """
    known, last_id = (last.versions, last.batch_id) if last else ({}, 0)
    appended = [raw_table(side) for side in warehouse.pipeline.sides] + [COMPOUNDS, REJECTED]
    # Only those are looked into that somebody has changed since.
    changed = [table for table, version in table_versions(warehouse, appended).items() if version != known.get(table, 0)]
    for table in changed:
        newest = warehouse.newest_batch(table) or 0
        if newest > last_id:
            raise NeedsOperator(
                f"{warehouse.path(table)} has rows of batch {newest}, but {LEDGER} ends at batch {last_id}: the ledger was put back "
                "from an older copy, or the newest files of its _delta_log are gone; put all tables of the pipeline back from one backup"
            )
