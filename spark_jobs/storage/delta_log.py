"""Delta tables in a folder, by delta-rs instead of Spark, to which the smallest question is a job of its own: 20 ms, not 300 or more."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from include.warehouse_folder import local_folder
from spark_jobs.problems import JobProblem

_TRIES = 20


class TableProblem(JobProblem):
    """A table is missing or not as declared; the text says which and what to do."""


class MissingTable(TableProblem):
    """There is no Delta table at the path."""


def missing(path: str) -> MissingTable:
    """What to raise when there is no table at the path."""
    return MissingTable(f"there is no table {path}: land_events creates the tables, run it first")


def in_folder(path: str) -> DeltaTable | None:
    """The newest version of the table at the path; None if the path is no folder, so that Spark has to be asked.

    Only for tables as small as the ledger, and for what the log says of any table. Raises MissingTable, TableProblem.
    """
    folder = local_folder(path)
    if folder is None:
        return None
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        raise missing(path) from None
    except DeltaError as error:
        raise TableProblem(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def largest(table: DeltaTable, column: str) -> int | None:
    """The largest number of a column, by the statistics of the files; None if there are no rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pc.max(files.column(f"max.{column}")).as_py() if files.num_rows else None


def create(path: str, schema: StructType, properties: dict[str, str]) -> bool:
    """Creates the table at the path unless there is one; False if the path is no folder."""
    folder = local_folder(path)
    if folder is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    DeltaTable.create(folder, Schema.from_json(schema.json()), mode="ignore", configuration={**properties})
    return True


def append(path: str, rows: list[dict[str, Any]], app_id: str, version: int, told: str) -> bool:
    """Appends the rows in one commit unless the table has `version`, or a later one, of `app_id`; False if the path is no folder.

    The commit is made on exactly the table that was looked at, across processes, too: whoever comes second looks again.
    `told`: what the commit says it is. Raises MissingTable, TableProblem.
    """
    problem: DeltaError | None = None
    for _ in range(_TRIES):
        table = in_folder(path)
        if table is None:
            return False
        known = table.transaction_version(app_id)
        if known is not None and known >= version:
            return True
        fenced = CommitProperties(
            custom_metadata={"userMetadata": told}, max_commit_retries=0, app_transactions=[Transaction(app_id, version)]
        )
        declared = pa.schema(table.schema().to_arrow())
        try:
            write_deltalake(table, pa.Table.from_pylist(rows, schema=declared), mode="append", commit_properties=fenced)
            return True
        except CommitFailedError as error:
            problem = error
        except DeltaError as error:
            problem = error
            break
    raise TableProblem(f"{path} cannot be appended to: {' '.join(str(problem).split())}")
