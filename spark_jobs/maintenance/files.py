"""The files of one table: merges small ones, deletes old ones, cuts the log; all through delta-rs, on any store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from include.config.store import Store
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.tables.data_files import DataFile, all_files
from spark_jobs.tables.delta_log import Action, commit_actions, lock_in_place, lock_newest
from spark_jobs.tables.parquet_files import FilePlace, NewFile, merge_into_row_groups, write_file
from spark_jobs.tables.read_files import WHOLE_BYTES, Share, read_share
from spark_jobs.tables.schemas import LEDGER, METRICS
from spark_jobs.tables.tables import Tables

_T = TypeVar("_T")
_Lock = Callable[[Store], AbstractContextManager[DeltaTable]]
# Smaller files are merged into files of up to this size, so that merged ones are seldom rewritten.
_FULL_SIZE = 64 * 1024 * 1024
# A report has read as many anyway, so it is only the new file and its commit that merging them costs.
_MANY = 20
_HOUR_MS = 3_600_000
_TRIES = 20
_LOG_RETENTION = "delta.logRetentionDuration"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


# Small files, and the new one with the same rows.
_Merge = tuple[list[DataFile], NewFile]


@between_fault_points("compacted")
def compact(warehouse: Tables, table: str, at_least: int = 2, full_size: int = _FULL_SIZE) -> int:
    """Merges small files, where there are `at_least` so many, into files of up to `full_size` bytes; returns how many there were. Rows and ledger
    stay the same.

    delta-rs's own compaction is no choice: if two merge the same files at once, both succeed, and every row is there twice.
    """
    groups = _small_files(warehouse.files(table), at_least, full_size)
    if not groups:
        return 0
    place = warehouse.place_for_files(table)
    with warehouse.translate_table_errors(table):
        merges = [(files, new) for files in groups if (new := _write_merged(place, files))]
    return _change_newest(warehouse, table, lock_newest, lambda known: _replace(place, known, merges)) if merges else 0


def _small_files(files: Iterable[DataFile], at_least: int, full_size: int) -> list[list[DataFile]]:
    """Groups of small files, neighbours by their batches, together not larger than a full file."""
    groups: list[list[DataFile]] = [[]]
    for file in sorted(files, key=lambda each: (each.first_batch or 0, each.modified_at)):
        if file.size >= full_size:
            continue
        if sum(each.size for each in groups[-1]) + file.size > full_size:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) >= at_least]


def merge_recent(warehouse: Tables) -> None:
    """Merges the newest files of the tables of which every report reads rows of many batches, once there are many of them.

    So what a report asks of a store stays the same however many batches there were since the last maintenance.
    """
    for table in (LEDGER, METRICS):
        compact(warehouse, table, _MANY, WHOLE_BYTES)


def _write_merged(place: FilePlace, files: list[DataFile]) -> NewFile | None:
    pieces = read_share(place.store, Share(tuple(files)), place.schema, None)
    return write_file(place.store, merge_into_row_groups(pieces))


def _replace(place: FilePlace, known: DeltaTable, merges: list[_Merge]) -> int:
    """Commits the merges on exactly this version, without those that lack a file by now; returns how many files it removes."""
    there = {file.name for file in all_files(known)}
    valid = [(files, new) for files, new in merges if there.issuperset(file.name for file in files)]
    if not valid:
        return 0
    now, old = time.time_ns() // 1_000_000, [file for files, _ in valid for file in files]
    # No row changes: programs that follow the table need not read these files.
    actions: list[Action] = [
        *(RemoveAction(file.name, False, now, file.size) for file in old),
        *(AddAction(new.name, new.size, {}, now, False, new.stats) for _, new in valid),
    ]
    as_compaction = CommitProperties(custom_metadata={"userMetadata": "compaction"}, max_commit_retries=0)
    commit_actions(place.store, known, actions, as_compaction, _NO_HOOKS)
    return len(old)


def _change_newest(warehouse: Tables, table: str, lock: _Lock, change: Callable[[DeltaTable], _T]) -> _T:
    """Returns the result of the change on the newest version; if another writer was faster, tries again on the version it left."""
    store = warehouse.store(table)
    with warehouse.translate_table_errors(table):
        for _ in range(_TRIES - 1):
            with suppress(CommitFailedError), lock(store) as known:
                return change(known)
        with lock(store) as known:
            return change(known)


@between_fault_points("vacuumed")
def vacuum(warehouse: Tables, table: str, kept_ms: int) -> None:
    """Deletes files that were removed from the table longer ago than `kept_ms`, and files as old that no commit names."""
    with warehouse.translate_table_errors(table), lock_in_place(warehouse.store(table)) as known:
        hours = -(-kept_ms // _HOUR_MS)
        known.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True, post_commithook_properties=_NO_HOOKS)


@between_fault_points("checkpoint")
def make_checkpoint(warehouse: Tables, table: str, kept_ms: int | None) -> None:
    """Makes a checkpoint, and deletes the log before it that is older than `kept_ms`; None: keeps all of it."""
    _change_newest(warehouse, table, lock_in_place, lambda known: _cut_log(known, kept_ms))


def _cut_log(known: DeltaTable, kept_ms: int | None) -> None:
    wanted = None if kept_ms is None else f"interval {-(-kept_ms // 1000)} seconds"
    # Each change is a commit.
    if wanted and known.metadata().configuration.get(_LOG_RETENTION) != wanted:
        known.alter.set_table_properties(
            {_LOG_RETENTION: wanted},
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=_NO_HOOKS,
        )
        known.update_incremental()
    known.create_checkpoint()
    if wanted:
        known.cleanup_metadata()
