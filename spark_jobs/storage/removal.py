"""Rows of old batches in a folder's Delta table: read piece by piece, and taken out by their files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql.types import StructType

from spark_jobs.storage.delta_log import commit_once, files_with, in_folder, place_for_files
from spark_jobs.storage.table_files import FilePlace, FileWriter, NewFile


def remove_up_to(path: str, declared: StructType, column: str, until: int, app_id: str, version: int, told: str) -> bool:
    """Removes the rows whose number in the column is at most `until`, fenced as `append` does: files that have no others go as they are,
    of the rest the rows that stay are written anew, each file by itself. False if files alone cannot do it (`place_for_files`).
    """
    place = place_for_files(path, declared)
    if place is None:
        return False

    def change(table: DeltaTable, fenced: CommitProperties) -> None:
        now, actions = time.time_ns() // 1_000_000, list[AddAction | RemoveAction]()
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
            if low is not None and low > until:
                continue
            actions.append(RemoveAction(file["path"], True, now, file["size_bytes"]))
            if high is None or high > until:
                kept = _rows_beyond(str(Path(place.folder) / unquote(file["path"])), place, column, until)
                actions += [AddAction(kept.name, kept.size, {}, now, True, kept.stats)] if kept else []
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=fenced)

    return commit_once(path, change, app_id, version, told)


def _rows_beyond(file: str, place: FilePlace, column: str, until: int) -> NewFile | None:
    """A new file with the rows of this one whose number is larger than `until`; None if there are none."""
    rows = ds.dataset([file], schema=place.schema, format="parquet")
    with FileWriter(place.folder) as writer:
        # One piece after the other: rows may be large.
        for piece in rows.to_batches(filter=ds.field(column) > until, batch_readahead=1, fragment_readahead=1):
            writer.write(piece)
        return writer.finish()


def rows_of_batches(path: str, column: str, first: int, last: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]] | None:
    """The table's columns, and its rows with a number in first..last, both inclusive, piece by piece; None if the path is no folder."""
    table = in_folder(path)
    if table is None:
        return None
    schema = pa.schema(table.schema().to_arrow())
    files = files_with(table, column, lambda low, high: (high is None or high >= first) and (low is None or low <= last))
    fits = (ds.field(column) >= first) & (ds.field(column) <= last)
    rows = ds.dataset(files, schema=schema, format="parquet") if files else None
    return schema, rows.to_batches(filter=fits, batch_readahead=1, fragment_readahead=1) if rows else iter(())
