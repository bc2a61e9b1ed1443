"""The log of a Delta table, read through delta-rs in 1 to 20 ms, where a Spark job takes 300: its newest version, and commits to it.

A table that was opened stays in memory: opening one with hundreds of files takes ten times as long as seeing that nothing was added to it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import obstore
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from include.config.store import Store, read_bytes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.diagnose import damaged, log_file
from spark_jobs.tables.log_copy import COMMIT, LAST_CHECKPOINT, LOG, LogCopy, LogFile
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.read_files import keep_small_files
from spark_jobs.tables.table_format import MARK, check_format

Action = AddAction | RemoveAction
_VERSION = re.compile(r"(\d{20})\.(json|crc|checkpoint\..*(?:parquet|json))")
# With it a table asks for this version of writers, and for no more of what jobs write.
_FEED, _FEED_WRITER, _CONSTRAINTS = "delta.enableChangeDataFeed", 4, "delta.constraints."


class _Listed(NamedTuple):
    """The newest files of a log."""

    files: list[LogFile]
    last: int  # the newest version, -1 if there is none


@dataclass
class _CachedTable:
    """A table at the newest version that this process has read."""

    # A commit holds it from reading the newest version to its end.
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    table: DeltaTable | None = None
    mark: tuple[Any, ...] = ()  # of the version's commit
    copy: LogCopy | None = None  # whose table it is; None: it is read where it lies


_cache: dict[str, _CachedTable] = {}
# URI -> what counts as the newest of its log; None outside of `trust_cache`.
_trusted: dict[str, _Listed] | None = None


@contextmanager
def trust_cache() -> Iterator[None]:
    """During the block, `newest_table` and `newest_version` look at each log once, and again after this process has changed the table. A look is a
    request, which users of a store pay for and wait for. Changes by other writers are not seen meanwhile, as if they came later; commits always
    look at the log. Small files are kept, too.
    """
    global _trusted
    _trusted = {}
    try:
        with keep_small_files():
            yield
    finally:
        _trusted = None


def newest_version(store: Store) -> int:
    """The newest version of the table at the place by the names in its log, of which no file is read. Raises as `newest_table`."""
    with _looked_at(store, trusted=_trusted) as (_, log):
        return log.last


def newest_table(store: Store) -> DeltaTable:
    """The newest version of the table at the place; a later call may move the same object on.

    Raises NeedsOperator if files of the log are missing or empty, which delta-rs and Delta take for an older version, or cut off, and if the
    table has the format of a later version; otherwise delta-rs's own errors.
    """
    with _looked_at(store, trusted=_trusted) as (cached, log):
        return _moved_on(store, cached, log)


@contextmanager
def lock_newest(store: Store) -> Iterator[DeltaTable]:
    """As `newest_table`, of a log that is looked at now; no other thread of this process moves the table on during the block."""
    with _looked_at(store, trusted=None) as (cached, log):
        yield _moved_on(store, cached, log)


@contextmanager
def _looked_at(store: Store, trusted: Mapping[str, _Listed] | None) -> Iterator[tuple[_CachedTable, _Listed]]:
    """What this process has of the table, and its log as it is now, or as it is in `trusted`; no other thread changes them during the block."""
    cached = _cache.setdefault(store.uri, _CachedTable())
    with cached.lock:
        log = (trusted or {}).get(store.uri)
        if log is None:
            since, files = 0, list[LogFile]()
            if cached.table is not None:
                since = cached.table.version()
                files = _list_log(store, since)
                # Another table than before, or one that was put back from a backup, is opened anew.
                if _mark(files, since) != cached.mark:
                    cached.table = cached.copy = None
            if cached.table is None:
                since, files = _list_from_checkpoint(store)
            log = _Listed(files, _check_log(store, files, since))
            if log.last < 0:
                raise TableNotFoundError(f"no table is at {store.uri}")
            if _trusted is not None:
                _trusted[store.uri] = log
        yield cached, log


def _moved_on(store: Store, cached: _CachedTable, log: _Listed) -> DeltaTable:
    """The table, read up to the log's newest version."""
    table, copy = cached.table, cached.copy
    # What cannot be moved on is of no more use.
    cached.table = cached.copy = None
    if table is not None and table.version() < log.last and not _read_log(store, partial(_move_on, table, copy, log.files)):
        table = copy = None
    if table is None and store.folder is None and LogCopy.can_be_made(log.files):
        copy = _read_log(store, partial(LogCopy, store, log.files))
        table = copy.table
    elif table is None:
        table = _read_log(store, partial(_open, store))
    check_format(store.uri, table.metadata().configuration)
    cached.table, cached.copy, cached.mark = table, copy, _mark(log.files, table.version())
    return table


def _move_on(table: DeltaTable, copy: LogCopy | None, files: Sequence[LogFile]) -> bool:
    if copy is not None:
        return copy.move_on(files)
    table.update_incremental()
    return True


def _open(store: Store, version: int | None = None) -> DeltaTable:
    return DeltaTable(store.uri, version, store.delta_options)


@contextmanager
def lock_in_place(store: Store) -> Iterator[DeltaTable]:
    """As `lock_newest`, of a table that is read where it lies, which can be changed by all that delta-rs offers."""
    with lock_newest(store) as table:
        invalidate(store)
        yield table if _cache[store.uri].copy is None else _read_log(store, partial(_open, store))


def commit_actions(
    store: Store, table: DeltaTable, actions: list[Action], fenced: CommitProperties, hooks: PostCommitHookProperties
) -> None:
    """Commits the actions on exactly the version of the table, which is that of `lock_newest`; call within it.

    Raises CommitFailedError if another writer was faster. After another error (of delta-rs, OSError, of the store) the commit may be there.
    """
    invalidate(store)
    cached = _cache[store.uri]
    if (copy := cached.copy) is None:
        table.create_write_transaction(
            actions, "append", table.schema(), commit_properties=fenced, post_commithook_properties=hooks
        )
        return
    # Unless all goes well, it is another log than the store's.
    cached.table = cached.copy = None
    copy.commit(actions, fenced, hooks)
    cached.table, cached.copy = copy.table, copy


def invalidate(store: Store) -> None:
    """Call when this process changes the table: its log is looked at again."""
    if _trusted is not None:
        _trusted.pop(store.uri, None)


def _list_from_checkpoint(store: Store) -> tuple[int, list[LogFile]]:
    """The version of the last checkpoint (0 if there is none that can be read), and the files of the log from there on."""
    try:
        version = json.loads(read_bytes(store, f"{LOG}/{LAST_CHECKPOINT}"))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        version = 0
    if isinstance(version, int) and version > 0:
        files = _list_log(store, version)
        if any(file.version == version and file.is_checkpoint for file in files):
            return version, files
    return 0, _list_log(store, 0)


def _list_log(store: Store, since: int) -> list[LogFile]:
    """The files of the log from version `since` on."""
    found: list[LogFile] = []
    if (folder := store.folder) is not None and not folder.is_dir():
        return found
    for file in obstore.list(store.client, LOG, offset=f"{LOG}/{since:020d}").collect():
        if name := _VERSION.fullmatch(file["path"].removeprefix(f"{LOG}/")):
            mark = file["size"], file["last_modified"], file["e_tag"]
            found.append(LogFile(int(name[1]), name[2], f"{store.uri}/{file['path']}", file["size"], mark))
    return found


def _mark(files: Sequence[LogFile], version: int) -> tuple[Any, ...]:
    return next((file.mark for file in files if (file.version, file.kind) == (version, COMMIT)), ())


def _check_log(store: Store, files: Sequence[LogFile], since: int) -> int:
    """The newest version, -1 if there is none. `since`: the version from which on `files` were listed. Raises NeedsOperator."""
    # A checkpoint holds everything that came before it.
    last = max((file.version for file in files if file.is_checkpoint), default=-1)
    read = [file for file in files if file.version >= last]
    for file in read:
        # Delta takes an empty file for a version that changed nothing.
        if not file.size:
            raise damaged(file.path, "is empty")
    commits = {file.version for file in read if file.kind == COMMIT}
    newest_version = max((file.version for file in read), default=-1)
    # A checksum is written after its commit.
    for version in range(max(last + 1, since), newest_version + 1):
        if version not in commits:
            raise damaged(log_file(store.uri, version), "is missing")
    return newest_version


def _read_log(store: Store, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except TableNotFoundError:
        raise
    except DeltaError:
        # delta-rs does not say which file it cannot read.
        for file in _list_log(store, 0):
            if file.kind == COMMIT and not _is_whole(store, file):
                raise damaged(file.path, "is cut off or overwritten") from None
        raise


def _is_whole(store: Store, commit: LogFile) -> bool:
    try:
        text = read_bytes(store, f"{LOG}/{commit.name}").decode()
        return all(isinstance(json.loads(line), dict) for line in text.splitlines())
    except ValueError:
        return False


def table_at_version(store: Store, version: int) -> DeltaTable:
    """The table at an earlier version. Raises delta-rs's own errors where its log was deleted."""
    with _looked_at(store, trusted=_trusted) as (cached, log):
        table = _moved_on(store, cached, log)
        if table.version() == version:
            return table
        return (cached.copy and cached.copy.at(version)) or _open(store, version)


def create(store: Store, declared: StructType, properties: dict[str, str | None]) -> None:
    """Creates the table at the place, with the mark of its format, unless there is one."""
    uri, schema, options = store.made().uri, Schema.from_json(declared.json()), store.delta_options
    DeltaTable.create(
        uri,
        schema,
        mode="ignore",
        configuration=properties | MARK,
        storage_options=options,
        # Delta does not know the mark.
        raise_if_key_not_exists=False,
    )


def mark_format(store: Store) -> None:
    """Gives the table the mark of this version's format, unless it has it: call before something is written that older ones would misread."""
    with lock_in_place(store) as table:
        if not MARK.items() <= table.metadata().configuration.items():
            once = CommitProperties(max_commit_retries=0)
            table.alter.set_table_properties(dict(MARK), raise_if_not_exists=False, commit_properties=once)


def place_for_files(store: Store, table: DeltaTable, declared: StructType) -> FilePlace:
    """Where files of the table are written.

    Raises NeedsOperator if another program has given the table other columns, partitions, or a protocol version in which files with the
    declared columns are not all that a change of the table takes.
    """
    protocol, schema = table.protocol(), pa.schema(table.schema().to_arrow())
    configuration, what = table.metadata().configuration, None
    # A reader of the feed takes rows of added files as inserted and those of removed ones as deleted; constraints would have to be checked.
    has_feed = configuration.get(_FEED) == "true" and not any(name.startswith(_CONSTRAINTS) for name in configuration)
    if protocol.min_reader_version > 1 or protocol.min_writer_version > (_FEED_WRITER if has_feed else 2):
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
