"""The tables of one pipeline, each a folder below `<warehouse>/<pipeline>/`, as their logs describe them, and small reads of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from include.config.pipeline import Pipeline
from include.config.store import Store, warehouse_store
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables import delta_log
from spark_jobs.tables.data_files import DataFile, all_files, files_between, files_of, newest_batch
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.read_files import BYTES_OF_FEW, Share, file_system, read_share, read_small_files
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import LEDGER, declared_schema

# Makes a condition out of a function that returns a column for its name.
Condition = Callable[[Callable[[str], Any]], ds.Expression]


class TableProblem(JobProblem):
    """A table is missing or not as declared; the text says which and what to do."""


class MissingTable(TableProblem, NeedsOperator):
    """There is no Delta table at the path."""


@dataclass(frozen=True)
class Tables:
    """The tables as their logs describe them, and small reads of their rows; needs no Spark."""

    root: str  # folder or URI above the pipelines' tables, without a slash at the end
    pipeline: Pipeline

    def store(self, table: str) -> Store:
        return warehouse_store(self.root).at(self.pipeline.name, table)

    def path(self, table: str) -> str:
        return self.store(table).uri

    @contextmanager
    def translate_table_errors(self, table: str) -> Iterator[None]:
        """Raises MissingTable or another JobProblem if the block fails because of the table or its files."""
        try:
            with translate_file_errors(self.path(table)):
                yield
        except TableNotFoundError:
            if table == LEDGER:
                raise MissingTable(
                    f"there is no table {self.path(table)}: land_events creates the tables, run it first"
                ) from None
            raise MissingTable(
                f"{self.path(table)} is gone, but {self.path(LEDGER)} is there: put all tables of the pipeline back from one backup"
            ) from None
        except CommitFailedError:
            raise TableProblem(
                f"other writers changed {self.path(table)} before each attempt to commit, so nothing was written: run this again"
            ) from None
        except DeltaError as error:
            # The lines after the first are a stack trace.
            raise TableProblem(f"{self.path(table)} cannot be used: {str(error).splitlines()[0]}") from None

    def newest(self, table: str) -> DeltaTable:
        """The newest version of a table. Raises MissingTable."""
        with self.translate_table_errors(table):
            return delta_log.newest_table(self.store(table))

    def exists(self, table: str) -> bool:
        """Whether there is a Delta table at the path."""
        try:
            self.newest(table)
        except MissingTable:
            return False
        return True

    def version(self, table: str) -> int:
        """The newest version of a table, which is not opened. Raises MissingTable."""
        with self.translate_table_errors(table):
            return delta_log.newest_version(self.store(table))

    def table_id(self, table: str) -> str:
        """The id that the table got when it was created; another id means another table."""
        return str(self.newest(table).metadata().id)

    def files(self, table: str, batches: Sequence[int] | None = None, version: int | None = None) -> list[DataFile]:
        """The files of a version (None: the newest) that can have rows of the batches, ascending (None: of all)."""
        with self.translate_table_errors(table):
            known = self.newest(table) if version is None else delta_log.table_at_version(self.store(table), version)
            delta_log.place_for_files(self.store(table), known, declared_schema(self.pipeline, table))
            return all_files(known) if batches is None else files_of(known, batches)

    def place_for_files(self, table: str) -> FilePlace:
        """Where workers write files of the table. Raises NeedsOperator if another program has changed its columns."""
        with self.translate_table_errors(table):
            return delta_log.place_for_files(self.store(table), self.newest(table), declared_schema(self.pipeline, table))

    def small_rows(
        self, table: str, first: int, last: int | None = None, columns: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of the batches first..last, both inclusive, of a table with few rows a batch; `last` None: up to the newest.

        `columns` None: all. Maps are lists of pairs. Opens only files that can have such rows.
        """
        return self._rows(table, self.newest(table), first, last, columns)

    def newest_rows(self, table: str, before: int, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """As `small_rows`, of the newest batch and the `before` batch_ids ahead of it."""
        known = self.newest(table)
        newest = newest_batch(known)
        return [] if newest is None else self._rows(table, known, newest - before, None, columns)

    def _rows(
        self, table: str, known: DeltaTable, first: int, last: int | None, columns: list[str] | None
    ) -> list[dict[str, Any]]:
        schema = pa.schema(known.schema().to_arrow())
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with self.translate_table_errors(table):
            files = files_between(known, first, last)
            return list(read_small_files(self.store(table), files, wanted, between(first, last)).to_pylist())

    def stream_rows(self, table: str, first: int, last: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The table's columns, and its rows of the batches first..last, both inclusive, in pieces of some megabytes."""
        known = self.newest(table)
        schema = pa.schema(known.schema().to_arrow())

        def rows() -> Iterator[pa.RecordBatch]:
            with self.translate_table_errors(table):
                share = Share(tuple(files_between(known, first, last)))
                yield from read_share(self.store(table), share, schema, between(first, last))

        return schema, rows()

    def count_rows(self, table: str, batches: Sequence[int]) -> Counter[int]:
        """batch_id -> its rows, of these batches (ascending). Opens only files with rows of several batches, as maintenance makes them."""
        counted: Counter[int] = Counter()
        schema = pa.schema([("batch_id", pa.int64())])
        with self.translate_table_errors(table):
            for file in self.files(table, batches):
                if file.first_batch is not None and file.first_batch == file.last_batch:
                    counted[file.first_batch] += file.rows
                    continue
                for rows in read_share(self.store(table), Share((file,)), schema, among(batches)):
                    counted.update(rows["batch_id"].to_numpy().tolist())
        return counted

    def select_rows(self, table: str, columns: list[str], where: Condition) -> list[dict[str, Any]]:
        """Some columns of the rows that fit. Of a large table only the parts are read that can fit."""
        with self.translate_table_errors(table):
            known = self.newest(table)
            files = file_system(self.store(table), all_files(known))
            rows = known.to_pyarrow_dataset(filesystem=files).to_table(columns, filter=where(pc.field))
            return list(rows.to_pylist())

    def rows_up_to(
        self,
        table: str,
        at_most: int,
        columns: Sequence[str] | None,
        times: Window,
        where: Condition | None = None,
        version: int | None = None,
    ) -> pa.Table | None:
        """The rows with a `ts` in `times` for which `where` holds, as the table has its columns; None if there are more than `at_most`, or large ones,
        or if a column is missing.

        Reads only the parts of the table that can have such rows, and no more than it takes to see that. `columns` None: all.
        """
        store, condition, found = self.store(table), times.has(pc.field("ts")), list[pa.RecordBatch]()
        if where is not None:
            condition = condition & where(pc.field)
        with self.translate_table_errors(table):
            known = self.newest(table) if version is None else delta_log.table_at_version(store, version)
            schema = pa.schema(known.schema().to_arrow())
            if not {"ts", *(columns or ())} <= {*schema.names}:
                return None
            wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
            files = tuple(file for file in all_files(known) if file.can_have_times(times))
            for rows in read_share(store, Share(files), wanted, condition):
                found.append(rows)
                if sum(each.num_rows for each in found) > at_most or sum(each.nbytes for each in found) > BYTES_OF_FEW:
                    return None
        return pa.Table.from_batches(found, wanted)


def among(batches: Sequence[int]) -> ds.Expression:
    """That the row is of one of the batches, ascending."""
    if batches and batches[-1] - batches[0] < len(batches):
        return between(batches[0], batches[-1])
    return pc.field("batch_id").isin(list(batches))


def between(first: int, last: int | None) -> ds.Expression:
    """That the row is of the batches first..last, both inclusive; `last` None: of any from `first` on."""
    number = pc.field("batch_id")
    return number >= first if last is None else (number >= first) & (number <= last)
