"""The files of one table: small ones put together, old ones deleted, the log cut; all by delta-rs, on any store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.tables.delta_log import all_files, changed, dataset, holding
from spark_jobs.tables.parquet_files import FilePlace, FileWriter, NewFile, worth_row_groups
from spark_jobs.tables.read_files import DataFile
from spark_jobs.tables.warehouse import Warehouse

_T = TypeVar("_T")
_MB = 1024 * 1024
# Smaller files are put together, up to so much: what was put together once is seldom rewritten.
_FULL_SIZE = 64 * _MB
_HOUR_MS = 3_600_000
_TRIES = 20
_LOG_RETENTION = "delta.logRetentionDuration"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class _Together(NamedTuple):
    """Small files, and the new one with the same rows."""

    files: list[DataFile]
    new: NewFile


def compact(warehouse: Warehouse, table: str) -> int:
    """Puts the small files together; returns how many there were. The rows stay the same, and so does what stands in the ledger.

    Not by delta-rs's own way: of two that put the same files together at once it lets both win, and every row is there twice.
    """
    fault_point("before_compacted")
    place = warehouse.place_for_files(table)
    with warehouse.at_work_on(table):
        with suppress(CommitFailedError), holding(place.store) as known:
            groups = list(_small_files(known))
        found = [_Together(files, new) for files in groups if (new := _written(place, files))]
    removed = _on_the_newest(warehouse, table, lambda known: _replaced(known, found)) if found else 0
    fault_point("after_compacted")
    return removed


def _small_files(known: DeltaTable) -> Iterator[list[DataFile]]:
    """Two or more at a time that are not larger than a full one, neighbours by their batches."""
    files = pa.table(known.get_add_actions(flatten=True)).to_pylist()
    waiting: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.get("min.batch_id") or 0, file["modification_time"])):
        size = file["size_bytes"]
        if size >= _FULL_SIZE:
            continue
        if waiting and sum(each.size for each in waiting) + size > _FULL_SIZE:
            if len(waiting) > 1:
                yield waiting
            waiting = []
        waiting.append(DataFile(unquote(file["path"]), size, file["num_records"] or 0))
    if len(waiting) > 1:
        yield waiting


def _written(place: FilePlace, files: list[DataFile]) -> NewFile | None:
    pieces = dataset(place.store, place.schema, files).to_batches(batch_readahead=1, fragment_readahead=1)
    with FileWriter(place.store) as writer:
        for rows in worth_row_groups(pieces):
            writer.write(rows)
        return writer.finish()


def _replaced(known: DeltaTable, found: list[_Together]) -> int:
    """Makes one commit of it, on exactly this version; gives how many files go. Where one has gone meanwhile, its neighbours stay."""
    there = {file.name for file in all_files(known)}
    valid = [each for each in found if there.issuperset(file.name for file in each.files)]
    if not valid:
        return 0
    now, going = time.time_ns() // 1_000_000, [file for each in valid for file in each.files]
    # No row changes: whoever follows the table need not look at them again.
    known.create_write_transaction(
        [
            *(RemoveAction(file.name, False, now, file.size) for file in going),
            *(AddAction(each.new.name, each.new.size, {}, now, False, each.new.stats) for each in valid),
        ],
        "append",
        known.schema(),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": "compaction"}, max_commit_retries=0),
        post_commithook_properties=_NO_HOOKS,
    )
    return len(going)


def _on_the_newest(warehouse: Warehouse, table: str, change: Callable[[DeltaTable], _T]) -> _T:
    """What the change answers. Where another writer was faster, what it left is looked at anew."""
    store = warehouse.store(table)
    with warehouse.at_work_on(table):
        for _ in range(_TRIES - 1):
            with suppress(CommitFailedError), holding(store) as known:
                changed(store)
                return change(known)
        with holding(store) as known:
            changed(store)
            return change(known)


def keep(warehouse: Warehouse, table: str, kept_ms: int) -> None:
    """Deletes the files that left the table longer ago than `kept_ms`, and those as old that no commit ever named."""
    fault_point("before_vacuumed")
    with warehouse.at_work_on(table), holding(warehouse.store(table)) as known:
        hours = -(-kept_ms // _HOUR_MS)
        known.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True, post_commithook_properties=_NO_HOOKS)
    fault_point("after_vacuumed")


def checkpoint(warehouse: Warehouse, table: str, kept_ms: int | None) -> None:
    """Makes a checkpoint, and deletes what is older than `kept_ms` of the log before it; None: nothing. Nobody else ever deletes any of it."""
    fault_point("before_checkpoint")
    _on_the_newest(warehouse, table, lambda known: _cut(known, kept_ms))
    fault_point("after_checkpoint")


def _cut(known: DeltaTable, kept_ms: int | None) -> None:
    if kept_ms is not None:
        _keep_log(known, kept_ms)
    known.create_checkpoint()
    if kept_ms is not None:
        known.cleanup_metadata()


def _keep_log(known: DeltaTable, kept_ms: int) -> None:
    wanted = f"interval {-(-kept_ms // 1000)} seconds"
    # Each change is a commit.
    if known.metadata().configuration.get(_LOG_RETENTION) != wanted:
        known.alter.set_table_properties(
            {_LOG_RETENTION: wanted},
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=_NO_HOOKS,
        )
        known.update_incremental()
