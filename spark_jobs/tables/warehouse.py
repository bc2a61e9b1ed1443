"""The tables of one pipeline, each a folder below `<warehouse>/<pipeline>/`: small reads through delta-rs, large ones through Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from include.config.pipeline import Pipeline
from include.config.store import Store, warehouse_store
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.spark.session import LazySession, tune_for_row_count
from spark_jobs.spark.workers import are_few, read_in_tasks
from spark_jobs.tables import delta_log
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.read_files import (
    BYTES_OF_FEW,
    DataFile,
    InWorker,
    Share,
    read_few,
    read_share,
    read_small_files,
    shares,
)
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
        return int(self.newest(table).version())

    def table_id(self, table: str) -> str:
        """The id that the table got when it was created; another id means another table."""
        return str(self.newest(table).metadata().id)

    def files(self, table: str, batches: Sequence[int] | None = None, version: int | None = None) -> list[DataFile]:
        """The files of a version (None: the newest) that can have rows of the batches, ascending (None: of all)."""
        with self.translate_table_errors(table):
            known = self.newest(table) if version is None else delta_log.table_at_version(self.store(table), version)
            delta_log.place_for_files(self.store(table), known, declared_schema(self.pipeline, table))
            return delta_log.all_files(known) if batches is None else delta_log.files_of(known, batches)

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
        newest = delta_log.newest_batch(known)
        return [] if newest is None else self._rows(table, known, newest - before, None, columns)

    def _rows(
        self, table: str, known: DeltaTable, first: int, last: int | None, columns: list[str] | None
    ) -> list[dict[str, Any]]:
        schema = pa.schema(known.schema().to_arrow())
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        with self.translate_table_errors(table):
            files = delta_log.files_between(known, first, last)
            return list(read_small_files(self.store(table), files, wanted, _between(first, last)).to_pylist())

    def stream_rows(self, table: str, first: int, last: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The table's columns, and its rows of the batches first..last, both inclusive, in pieces of some megabytes."""
        known = self.newest(table)
        schema = pa.schema(known.schema().to_arrow())

        def rows() -> Iterator[pa.RecordBatch]:
            with self.translate_table_errors(table):
                share = Share(tuple(delta_log.files_between(known, first, last)))
                yield from read_share(self.store(table), share, schema, _between(first, last))

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
                for rows in read_share(self.store(table), Share((file,)), schema, _among(batches)):
                    counted.update(rows["batch_id"].to_numpy().tolist())
        return counted

    def select_rows(self, table: str, columns: list[str], where: Condition) -> list[dict[str, Any]]:
        """Some columns of the rows that fit. Of a large table only the parts are read that can fit."""
        with self.translate_table_errors(table):
            return list(self.newest(table).to_pyarrow_dataset().to_table(columns, filter=where(pc.field)).to_pylist())

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
            files = tuple(file for file in delta_log.all_files(known) if file.can_have_times(times))
            for rows in read_share(store, Share(files), wanted, condition):
                found.append(rows)
                if sum(each.num_rows for each in found) > at_most or sum(each.nbytes for each in found) > BYTES_OF_FEW:
                    return None
        return pa.Table.from_batches(found, wanted)


class Rows(TypedDict, total=False):
    """Which rows of a table: by default all of the newest version. Only files that can have such batches and times are opened."""

    batches: Iterable[int] | None  # None: of all
    times: Window | None  # in which their `ts` is; None: any, or none
    where: Condition | None  # that holds for them
    version: int | None  # of Delta; None: the newest
    made: InWorker | None  # what is made of them; nothing else is returned then


class Reading(NamedTuple):
    """Rows of a table, to be read in this process, by the job's own workers (`shares`, `read`), or by those of Spark."""

    warehouse: Warehouse
    table: str
    files: list[DataFile]  # that can have the rows
    types: StructType  # of the columns that are read
    condition: ds.Expression | None
    made: InWorker | None

    @property
    def rows(self) -> int:
        """How many its files have."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def shares(self) -> list[Share]:
        """What one worker reads at a time."""
        return shares(self.files)

    @property
    def columns(self) -> pa.Schema:
        """Those that reading returns."""
        return self.made.columns if self.made and self.made.columns else self._read_columns

    @property
    def read(self) -> Callable[[Share], Iterator[pa.RecordBatch]]:
        """A function for workers, which get no warehouse: it reads a share."""
        store, columns, condition, made = self._store, self._read_columns, self.condition, self.made

        def rows(share: Share) -> Iterator[pa.RecordBatch]:
            pieces = read_share(store, share, columns, condition)
            return map(made.make, pieces) if made else pieces

        return rows

    def few(self) -> pa.Table | None:
        """The rows, read in this process; None if the files have more than a few, or large ones."""
        if not are_few(self.rows):
            return None
        with self.warehouse.translate_table_errors(self.table):
            return read_few(self._store, self.files, self._read_columns, self.condition, self.made)

    def in_spark(self) -> DataFrame:
        """The rows in Spark, which cannot see into the reading and gets exactly what was asked for."""
        made, spark = self.made, self.warehouse.spark
        # Of a summary the JVM gets few rows.
        tune_for_row_count(spark, 0 if made and made.is_summary else self.rows)
        returned = from_arrow_schema(made.columns) if made and made.columns else self.types
        return read_in_tasks(spark, self.shares, self.read, returned)

    def to_arrow(self) -> pa.Table:
        """The rows, read by Spark only if they are more than few."""
        few = self.few()
        return self.in_spark().toArrow() if few is None else few

    @property
    def _store(self) -> Store:
        return self.warehouse.store(self.table)

    @property
    def _read_columns(self) -> pa.Schema:
        return to_arrow_schema(self.types, timezone="UTC")


@dataclass(frozen=True)
class Warehouse(Tables):
    """The tables, with a Spark session that reads their rows."""

    session: SparkSession | LazySession

    @property
    def spark(self) -> SparkSession:
        return self.session() if isinstance(self.session, LazySession) else self.session

    def start_spark(self) -> None:
        """Starts the session now if it starts when it is needed."""
        _ = self.spark

    def reading(self, table: str, columns: Sequence[str] | None = None, **which: Unpack[Rows]) -> Reading:
        """These columns (None: all) of these rows."""
        batches, times, where = which.get("batches"), which.get("times"), which.get("where")
        wanted = None if batches is None else sorted(set(batches))
        files = self.files(table, wanted, which.get("version"))
        conditions = [] if wanted is None else [_among(wanted)]
        if times is not None:
            files = [file for file in files if file.can_have_times(times)]
            conditions.append(times.has(pc.field("ts")))
        if where is not None:
            conditions.append(where(pc.field))
        condition = reduce(and_, conditions) if conditions else None
        return Reading(self, table, files, self._columns(table, columns), condition, which.get("made"))

    def read(self, table: str, columns: Sequence[str] | None = None, **which: Unpack[Rows]) -> DataFrame:
        """The rows of `reading` in Spark."""
        return self.reading(table, columns, **which).in_spark()

    def _columns(self, table: str, columns: Sequence[str] | None) -> StructType:
        declared = declared_schema(self.pipeline, table)
        return StructType([declared[name] for name in (declared.names if columns is None else columns)])


def _among(batches: Sequence[int]) -> ds.Expression:
    if batches and batches[-1] - batches[0] < len(batches):
        return _between(batches[0], batches[-1])
    return pc.field("batch_id").isin(list(batches))


def _between(first: int, last: int | None) -> ds.Expression:
    number = pc.field("batch_id")
    return number >= first if last is None else (number >= first) & (number <= last)
