"""Deletes the files of older versions of a table at once, where maintenance waits until nobody can be reading them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import obstore

from spark_jobs.tables.delta_log import lock_in_place
from spark_jobs.tables.tables import Tables


def delete_old_files(warehouse: Tables, table: str, before: datetime, kept: Sequence[int] | None = None) -> int:
    """Deletes every file that was removed from the table, and those older than `before` that no commit names; returns how many.

    Files of the newest version stay, and of the versions `kept`. A younger file may be one that a job is about to commit.
    """
    store = warehouse.store(table)
    with warehouse.translate_table_errors(table), lock_in_place(store) as known:
        versions = None if kept is None else list(kept)
        list_old = partial(known.vacuum, 0, dry_run=True, enforce_retention_duration=False, keep_versions=versions)
        removed, unnamed = set(list_old(full=False)), set(list_old(full=True))
        there = {file["path"]: file["last_modified"] for file in obstore.list(store.client).collect()}
        old = {name for name in unnamed if name in there and there[name] < before.astimezone(UTC)}
        gone = sorted(there.keys() & (removed | old))
        if gone:
            obstore.delete(store.client, gone)
        return len(gone)
