"""The data files of a version of a table, with what its log says of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.tables.records import Window


class DataFile(NamedTuple):
    """A data file of a version of a table, with its statistics; None where one is not known."""

    name: str  # below the table's place
    size: int  # bytes
    rows: int
    first: int | None = None  # smallest offset of its rows
    last: int | None = None  # largest one
    first_batch: int | None = None  # smallest batch_id of its rows
    last_batch: int | None = None  # largest one
    modified_at: int = 0  # epoch ms
    first_ts: int | None = None  # smallest timestamp of its rows
    last_ts: int | None = None  # largest one

    def can_have(self, first: int, last: int | None) -> bool:
        """Whether it can have rows of the batches first..last, both inclusive; `last` None: of any from `first` on."""
        begins_later = last is not None and self.first_batch is not None and self.first_batch > last
        return not begins_later and (self.last_batch is None or self.last_batch >= first)

    def can_have_times(self, times: Window) -> bool:
        """Whether it can have rows with a timestamp in the interval."""
        begins_later = self.first_ts is not None and self.first_ts >= times.end
        return not begins_later and (self.last_ts is None or self.last_ts >= times.start)


def all_files(table: DeltaTable) -> list[DataFile]:
    """All data files of this version of the table."""
    actions = pa.table(table.get_add_actions(flatten=True))
    unknown = pa.nulls(actions.num_rows)
    # In the order of DataFile's fields.
    wanted = (
        "path size_bytes num_records min.offset max.offset min.batch_id max.batch_id modification_time min.ts max.ts".split()
    )
    columns = [(actions.column(name) if name in actions.column_names else unknown).to_pylist() for name in wanted]
    # Delta escapes names, once.
    return [DataFile(unquote(name), size, rows or 0, *more) for name, size, rows, *more in zip(*columns, strict=True)]


def files_of(table: DeltaTable, batches: Sequence[int]) -> list[DataFile]:
    """The files that can have rows of one of the batches (ascending), by their statistics."""
    return [
        file
        for file in all_files(table)
        if file.first_batch is None
        or file.last_batch is None
        or bisect_left(batches, file.first_batch) < bisect_right(batches, file.last_batch)
    ]


def files_between(table: DeltaTable, first: int, last: int | None) -> list[DataFile]:
    """The files that can have rows of the batches first..last, both inclusive; `last` None: all from `first` on."""
    return [file for file in all_files(table) if file.can_have(first, last)]


def newest_batch(table: DeltaTable) -> int | None:
    """The largest batch_id, by the statistics of the files; None if there are no rows."""
    return max((file.last_batch for file in all_files(table) if file.last_batch is not None), default=None)


def oldest_batch(table: DeltaTable) -> int | None:
    """The smallest batch_id, by the statistics of the files; None if there are no rows."""
    return min((file.first_batch for file in all_files(table) if file.first_batch is not None), default=None)
