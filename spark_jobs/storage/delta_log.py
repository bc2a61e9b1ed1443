"""Delta tables in a folder, by delta-rs instead of Spark, to which the smallest question is a job of its own: 20 ms, not 300 or more."""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from include.warehouse_folder import local_folder
from spark_jobs.storage.faults import damaged, log_file
from spark_jobs.storage.table_files import FilePlace, NewFile

_TRIES = 20
# What Spark takes for a pattern in the name of a file, if there is any of it.
_PATTERN = re.compile(r"[*?\[\]{}\\]")
_VERSION = re.compile(r"(\d{20})\.(json|crc|checkpoint\..*(?:parquet|json))")


# Of each table the newest version that was opened, and the file of its commit. Opening one with hundreds of files takes ten times as
# long as seeing that nothing was added to it.
_opened: dict[str, tuple[DeltaTable, tuple[int, ...]]] = {}


def in_folder(path: str, of_its_own: bool = False) -> DeltaTable | None:
    """The newest version of the table at the path; None if the path is no folder. Later calls move it on, unless it is `of_its_own`.

    Only for tables as small as the ledger, and for what the log says of any table. Raises NeedsOperator if files of the log are
    missing or empty, which delta-rs and Delta take for an older version, or cut off; and delta-rs's own errors.
    """
    folder = local_folder(path)
    if folder is None:
        return None
    log = folder / "_delta_log"
    newest = _check_log(path, log)
    try:
        known, commit = (None, ()) if of_its_own else _opened.get(path, (None, ()))
        if known is None or _commit(folder, known.version()) != commit:
            # Another table than before, or one that was put back from a backup.
            known = DeltaTable(folder)
        elif known.version() < newest:
            known.update_incremental()
        if not of_its_own:
            _opened[path] = known, _commit(folder, known.version())
        return known
    except TableNotFoundError:
        raise
    except DeltaError:
        # It does not say which file it cannot read.
        for file in sorted(log.glob("*.json")):
            if not _is_whole(file):
                raise damaged(str(file), "is cut off or overwritten") from None
        raise


def _commit(folder: Path, version: int) -> tuple[int, ...]:
    """Which file the commit of a version is: another one after it was replaced, even by an equal one; empty if there is none."""
    try:
        found = Path(log_file(str(folder), version)).stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _check_log(path: str, log: Path) -> int:
    """The newest version, -1 if there is none. Raises NeedsOperator."""
    entries = os.scandir(log) if log.is_dir() else ()
    found = [(int(name[1]), name[2], file) for file in entries if (name := _VERSION.fullmatch(file.name))]
    # A checkpoint holds all that came before it, which may be much.
    last = max((version for version, kind, _ in found if kind not in ("json", "crc")), default=-1)
    read = [each for each in found if each[0] >= last]
    for _, _, file in read:
        # Delta takes an empty file for a version that changed nothing.
        if not file.stat().st_size:
            raise damaged(file.path, "is empty")
    commits = {version for version, kind, _ in read if kind == "json"}
    newest = max((version for version, _, _ in read), default=-1)
    # A checksum is written after its commit.
    for version in range(last + 1, newest + 1):
        if version not in commits:
            raise damaged(log_file(path, version), "is missing")
    return newest


def _is_whole(commit: Path) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in commit.read_text(encoding="utf-8").splitlines())
    except ValueError:
        return False


def largest(table: DeltaTable, column: str) -> int | None:
    """The largest number of a column, by the statistics of the files; None if there are no rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pc.max(files.column(f"max.{column}")).as_py() if files.num_rows else None


def smallest(table: DeltaTable, column: str) -> int | None:
    """The smallest number of a column, by the statistics of the files; None if there are no rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pc.min(files.column(f"min.{column}")).as_py() if files.num_rows else None


def rows_between(
    table: DeltaTable, column: str, first: int, last: int | None, columns: list[str] | None
) -> list[dict[str, Any]]:
    """The rows whose number `column` is in first..last, both inclusive; `last` None: from first on. `columns` None: all of them.

    Only the files are opened that can have such rows, by their statistics: of a table that grows, the newest ones.
    """

    def can_have(low: int | None, high: int | None) -> bool:
        return (high is None or high >= first) and (last is None or low is None or low <= last)

    wanted = files_with(table, column, can_have)
    number = ds.field(column)
    fits = number >= first if last is None else (number >= first) & (number <= last)
    rows = ds.dataset(wanted, schema=pa.schema(table.schema().to_arrow()), format="parquet")
    return list(rows.to_table(columns=columns, filter=fits).to_pylist()) if wanted else []


def files_with(table: DeltaTable, column: str, can_have: Callable[[int | None, int | None], bool]) -> list[str]:
    """The files whose smallest and largest number in the column, None if that is not known, are as wanted."""
    files = pa.table(table.get_add_actions(flatten=True))
    unknown = pa.nulls(files.num_rows)
    least, most = (
        (files.column(name) if name in files.column_names else unknown).to_pylist()
        for name in (f"min.{column}", f"max.{column}")
    )
    return [path for path, low, high in zip(_paths(table, files), least, most, strict=True) if can_have(low, high)]


def files_at(path: str, version: int) -> list[str] | None:
    """The files that hold the rows of a version of the table at the path, of whatever size.

    None if the path is no folder, or one whose name Spark would take for a pattern, or if its files have rows that are deleted, which they
    do not tell themselves. Raises NeedsOperator if a file is missing; and delta-rs's own errors.
    """
    folder = local_folder(path)
    table = None if folder is None else DeltaTable(folder, version=version)
    return _all_there(path, table, lambda table: _paths(table, pa.table(table.get_add_actions(flatten=True))))


def files_of(path: str, column: str, numbers: Sequence[int]) -> list[str] | None:
    """As `files_at`, of the newest version those files that can have rows with one of the numbers (ascending) in the column."""

    def can_have(low: int | None, high: int | None) -> bool:
        return low is None or high is None or bisect_left(numbers, low) < bisect_right(numbers, high)

    return _all_there(path, in_folder(path), lambda table: files_with(table, column, can_have))


def _all_there(path: str, table: DeltaTable | None, files_of: Callable[[DeltaTable], list[str]]) -> list[str] | None:
    # What a file does not tell itself has come with later readers.
    if table is None or _PATTERN.search(str(local_folder(path))) or table.protocol().min_reader_version > 1:
        return None
    files = files_of(table)
    for file in files:
        if not os.path.exists(file):
            raise damaged(file, "is missing")
    return files


def _paths(table: DeltaTable, files: pa.Table) -> list[str]:
    """Where the files of a table's add actions lie."""
    folder = Path(unquote(urlsplit(table.table_uri).path))
    return [str(folder / unquote(path)) for path in files.column("path").to_pylist()]


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

    `told`: what the commit says it is. Raises delta-rs's own errors.
    """

    def change(table: DeltaTable, fenced: CommitProperties) -> None:
        declared = pa.schema(table.schema().to_arrow())
        write_deltalake(table, pa.Table.from_pylist(rows, schema=declared), mode="append", commit_properties=fenced)

    return commit_once(path, change, app_id, version, told)


def place_for_files(path: str, declared: StructType) -> FilePlace | None:
    """Where files of the table at the path are written, if files with the declared columns are all that a change of it takes.

    None if the path is no folder, or the table has got other columns, partitions, or what only writers of later protocols can do.
    """
    folder, table = local_folder(path), in_folder(path)
    if folder is None or table is None:
        return None
    protocol, schema = table.protocol(), pa.schema(table.schema().to_arrow())
    plain = protocol.min_reader_version == 1 and protocol.min_writer_version <= 2
    as_declared = schema.equals(pa.schema(Schema.from_json(declared.json()).to_arrow()))
    if not plain or not as_declared or table.metadata().partition_columns:
        return None
    return FilePlace(str(folder.absolute()), schema)


def add_files(path: str, files: list[NewFile], mode: str, app_id: str, version: int, told: str) -> None:
    """Appends files that lie in the table's folder, or puts them in the place of all others, as `append` does with rows.

    `mode`: append or overwrite.
    """
    now = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]

    def change(table: DeltaTable, fenced: CommitProperties) -> None:
        table.create_write_transaction(actions, mode, table.schema(), commit_properties=fenced)

    if not commit_once(path, change, app_id, version, told):
        raise ValueError(f"{path} is no folder")


def has_version(path: str, app_id: str, version: int) -> bool:
    """Whether the table at the path has `version`, or a later one, of `app_id`; False if the path is no folder."""
    table = in_folder(path, of_its_own=True)
    return table is not None and _has_version(table, app_id, version)


def _has_version(table: DeltaTable, app_id: str, version: int) -> bool:
    known = table.transaction_version(app_id)
    return known is not None and known >= version


def commit_once(
    path: str, change: Callable[[DeltaTable, CommitProperties], None], app_id: str, version: int, told: str
) -> bool:
    """Makes the change unless the table has `version`, or a later one, of `app_id`; False if the path is no folder.

    The commit is made on exactly the table that was looked at, across processes, too: whoever comes second looks again.
    """
    fenced = CommitProperties(
        custom_metadata={"userMetadata": told}, max_commit_retries=0, app_transactions=[Transaction(app_id, version)]
    )
    for tries_left in reversed(range(_TRIES)):
        table = in_folder(path, of_its_own=True)
        if table is None:
            return False
        if _has_version(table, app_id, version):
            return True
        try:
            change(table, fenced)
            return True
        except CommitFailedError:
            if not tries_left:
                raise
    return False
