"""What the log of a Delta table says, by delta-rs: its newest version, its files, small sets of its rows; 1 to 20 ms where a Spark job takes 300."""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyspark.sql.types import StructType

from include.config.store import Store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.diagnose import damaged, log_file
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.read_files import PARQUET, DataFile, file_named, fragment_of

_VERSION = re.compile(r"(\d{20})\.(json|crc|checkpoint\..*(?:parquet|json))")
_AT_ONCE = 8
_LAST_CHECKPOINT = "_delta_log/_last_checkpoint"

# Whether a file or row group can have wanted rows, by the smallest and largest number in a column; None where one is not known.
CanHave = Callable[[int | None, int | None], bool]


class Entry(NamedTuple):
    """A file of a log. `mark`: changes when the file is replaced, even by an equal one."""

    version: int
    kind: str
    path: str
    size: int
    mark: tuple[Any, ...]


class _Opened:
    """The newest version of a table that was opened, and the mark of its commit. Opening a table with hundreds of files takes ten times
    as long as seeing that nothing was added to it. `lock`: held by a commit from its look at the table to its end.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.table: DeltaTable | None = None
        self.mark: tuple[Any, ...] = ()


_opened: dict[str, _Opened] = {}


# Set by `looking_once`: the tables that were looked at in the block, and that this process has not changed since.
_looked: set[str] | None = None


@contextmanager
def looking_once() -> Iterator[None]:
    """For the time of a job: questions look at each table's log once, and again when the job has changed the table. A look is a request, which
    users of a store pay for and wait for. What other writers do meanwhile is not seen, as if it came later; commits always look.
    """
    global _looked
    _looked = set()
    try:
        yield
    finally:
        _looked = None


def newest(store: Store) -> DeltaTable:
    """The newest version of the table at the place; later calls move it on.

    Raises NeedsOperator if files of the log are missing or empty, which delta-rs and Delta take for an older version, or cut off; and
    delta-rs's own errors.
    """
    opened = _opened.get(store.uri)
    if opened is not None and opened.table is not None and _looked is not None and store.uri in _looked:
        return opened.table
    with holding(store) as table:
        return table


@contextmanager
def holding(store: Store) -> Iterator[DeltaTable]:
    """As `newest`; until the block is left, no other thread of this process moves the table on."""
    opened = _opened.setdefault(store.uri, _Opened())
    with opened.lock:
        known, since, entries = opened.table, 0, list[Entry]()
        if known is not None:
            since = known.version()
            entries = _log(store, since)
            # Another table than before, or one that was put back from a backup, is opened anew.
            known = known if _mark(entries, since) == opened.mark else None
        if known is None:
            since, entries = _from_checkpoint(store)
        last = _check_log(store, entries, since)
        if known is None:
            known = _reading_log(store, lambda: DeltaTable(store.uri, storage_options=store.delta_options))
        elif known.version() < last:
            _reading_log(store, known.update_incremental)
        opened.table, opened.mark = known, _mark(entries, known.version())
        if _looked is not None:
            _looked.add(store.uri)
        yield known


def forget() -> None:
    """Closes all tables, as a process does with its end."""
    _opened.clear()


def changed(store: Store) -> None:
    """Called when this process has changed the table: the next question looks again."""
    if _looked is not None:
        _looked.discard(store.uri)


def _from_checkpoint(store: Store) -> tuple[int, list[Entry]]:
    """The version of the last checkpoint, before which nothing is read (0 if there is none, or none that can be read), and the log from there."""
    try:
        version = json.loads(bytes(obstore.get(store.client, _LAST_CHECKPOINT).bytes()))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        version = 0
    if isinstance(version, int) and version > 0:
        entries = _log(store, version)
        if any(entry.version == version and entry.kind not in ("json", "crc") for entry in entries):
            return version, entries
    return 0, _log(store, 0)


def _log(store: Store, since: int) -> list[Entry]:
    """The files of the log from a version on."""
    found: list[Entry] = []
    if (folder := store.folder) is not None and not folder.is_dir():
        return found
    for file in obstore.list(store.client, "_delta_log", offset=f"_delta_log/{since:020d}").collect():
        if name := _VERSION.fullmatch(file["path"].removeprefix("_delta_log/")):
            mark = file["size"], file["last_modified"], file["e_tag"]
            found.append(Entry(int(name[1]), name[2], f"{store.uri}/{file['path']}", file["size"], mark))
    return found


def _mark(entries: Sequence[Entry], version: int) -> tuple[Any, ...]:
    return next((entry.mark for entry in entries if (entry.version, entry.kind) == (version, "json")), ())


def _check_log(store: Store, entries: Sequence[Entry], since: int) -> int:
    """The newest version, -1 if there is none. `since`: the version from which on `entries` were listed. Raises NeedsOperator."""
    # A checkpoint holds all that came before it, which may be much.
    last = max((entry.version for entry in entries if entry.kind not in ("json", "crc")), default=-1)
    read = [entry for entry in entries if entry.version >= last]
    for entry in read:
        # Delta takes an empty file for a version that changed nothing.
        if not entry.size:
            raise damaged(entry.path, "is empty")
    commits = {entry.version for entry in read if entry.kind == "json"}
    newest_version = max((entry.version for entry in read), default=-1)
    # A checksum is written after its commit.
    for version in range(max(last + 1, since), newest_version + 1):
        if version not in commits:
            raise damaged(log_file(store.uri, version), "is missing")
    return newest_version


def _reading_log(store: Store, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except TableNotFoundError:
        raise
    except DeltaError:
        # It does not say which file it cannot read.
        for entry in _log(store, 0):
            if entry.kind == "json" and not _is_whole(store, entry):
                raise damaged(entry.path, "is cut off or overwritten") from None
        raise


def _is_whole(store: Store, commit: Entry) -> bool:
    try:
        text = bytes(obstore.get(store.client, commit.path.removeprefix(f"{store.uri}/")).bytes()).decode()
        return all(isinstance(json.loads(line), dict) for line in text.splitlines())
    except ValueError:
        return False


def at_version(store: Store, version: int) -> DeltaTable:
    """The table at an earlier version. Raises delta-rs's own errors where its log is gone."""
    table = newest(store)
    return table if table.version() == version else DeltaTable(store.uri, version, store.delta_options)


def create(store: Store, schema: StructType, properties: dict[str, str]) -> None:
    """Creates the table at the place unless there is one."""
    DeltaTable.create(
        store.made().uri,
        Schema.from_json(schema.json()),
        mode="ignore",
        configuration={**properties},
        storage_options=store.delta_options,
    )


def place_for_files(store: Store, table: DeltaTable, declared: StructType) -> FilePlace:
    """Where files of the table are written. Raises NeedsOperator where files with the declared columns are not all that a change of it
    takes: somebody has given it other columns, partitions, or what only readers and writers of later protocols can do.
    """
    protocol, schema = table.protocol(), pa.schema(table.schema().to_arrow())
    what = None
    if protocol.min_reader_version > 1 or protocol.min_writer_version > 2:
        what = f"reader version {protocol.min_reader_version} and writer version {protocol.min_writer_version}, not 1 and 2"
    elif not schema.equals(pa.schema(Schema.from_json(declared.json()).to_arrow())):
        mine = {field.name for field in declared.fields}
        what = f"other columns than the pipeline's ({', '.join(sorted(mine ^ set(schema.names))) or 'other types or order'})"
    elif table.metadata().partition_columns:
        what = f"partitions (by {', '.join(table.metadata().partition_columns)})"
    if what:
        raise NeedsOperator(
            f"{store.uri} has {what}: another program has changed the table; only the jobs may write it, others read it. Put all tables of "
            "the pipeline back from one backup"
        )
    return FilePlace(store, schema)


def largest(table: DeltaTable, column: str) -> int | None:
    """The largest number of a column, by the statistics of the files; None if there are no rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pc.max(files.column(f"max.{column}")).as_py() if files.num_rows else None


def smallest(table: DeltaTable, column: str) -> int | None:
    """The smallest number of a column, by the statistics of the files; None if there are no rows."""
    files = pa.table(table.get_add_actions(flatten=True))
    return pc.min(files.column(f"min.{column}")).as_py() if files.num_rows else None


def all_files(table: DeltaTable) -> list[DataFile]:
    """The files of the version of the table."""
    return files_with(table, "", lambda *_: True)


def files_of(table: DeltaTable, column: str, numbers: Sequence[int]) -> list[DataFile]:
    """The files that can have rows with one of the numbers (ascending) in the column, by their statistics."""
    return files_with(
        table,
        column,
        lambda low, high: low is None or high is None or bisect_left(numbers, low) < bisect_right(numbers, high),
    )


def files_between(table: DeltaTable, column: str, first: int, last: int | None) -> list[DataFile]:
    """The files that can have rows with a number of the column in first..last, both inclusive; `last` None: from first on."""
    return files_with(
        table,
        column,
        lambda low, high: (high is None or high >= first) and (last is None or low is None or low <= last),
    )


def files_with(table: DeltaTable, column: str, can_have: CanHave) -> list[DataFile]:
    """The files whose smallest and largest number in the column, None if that is not known, are as wanted."""
    files = pa.table(table.get_add_actions(flatten=True))
    unknown = pa.nulls(files.num_rows)
    wanted = ("path", "size_bytes", "num_records", "min.offset", "max.offset", f"min.{column}", f"max.{column}")
    columns = [(files.column(name) if name in files.column_names else unknown).to_pylist() for name in wanted]
    return [
        DataFile(unquote(name), size, rows or 0, first, last)
        for name, size, rows, first, last, low, high in zip(*columns, strict=True)
        if can_have(low, high)
    ]


def small_rows(
    store: Store, table: DeltaTable, files: Sequence[DataFile], where: ds.Expression | None, columns: list[str] | None
) -> pa.Table:
    """The rows of some files that fit, read here. `columns` None: all of them. For as few rows as a ledger has of some batches."""
    schema = pa.schema(table.schema().to_arrow())
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])

    def rows_of(file: DataFile) -> pa.Table:
        with file_named(store, file.name):
            return fragment_of(store, file).to_table(schema=schema, columns=wanted.names, filter=where)

    if len(files) < 2:
        return pa.concat_tables([*map(rows_of, files), wanted.empty_table()])
    # On a store each of them takes as long as all.
    with ThreadPoolExecutor(max_workers=min(len(files), _AT_ONCE)) as beside:
        return pa.concat_tables(beside.map(rows_of, files))


def dataset(store: Store, schema: pa.Schema, files: Sequence[DataFile]) -> ds.Dataset:
    """Some files of a table, to be read here."""
    there = PyFileSystem(DeltaStorageHandler(store.uri, store.delta_options, {file.name: file.size for file in files}))
    return ds.FileSystemDataset([PARQUET.make_fragment(file.name, there) for file in files], schema, PARQUET, there)
