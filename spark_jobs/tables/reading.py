"""Rows of a table, to be read in this process, by the job's own workers, or by those of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from include.config.store import Store
from spark_jobs.spark.session import tune_for_row_count
from spark_jobs.spark.workers import are_few, read_in_tasks
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.read_files import InWorker, Share, read_few, read_share, shares
from spark_jobs.tables.records import Window
from spark_jobs.tables.tables import Condition, Tables


class Rows(TypedDict, total=False):
    """Which rows of a table: by default all of the newest version. Only files that can have such batches and times are opened."""

    batches: Iterable[int] | None  # None: of all
    times: Window | None  # in which their `ts` is; None: any, or none
    where: Condition | None  # that holds for them
    version: int | None  # of Delta; None: the newest
    made: InWorker | None  # what is made of them; nothing else is returned then


class Reading(NamedTuple):
    """Rows of a table, to be read in this process, by the job's own workers (`shares`, `read`), or by those of Spark."""

    tables: Tables
    session: Callable[[], SparkSession]  # called only for Spark's workers
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
        with self.tables.translate_table_errors(self.table):
            return read_few(self._store, self.files, self._read_columns, self.condition, self.made)

    def in_spark(self) -> DataFrame:
        """The rows in Spark, which cannot see into the reading and gets exactly what was asked for."""
        made, spark = self.made, self.session()
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
        return self.tables.store(self.table)

    @property
    def _read_columns(self) -> pa.Schema:
        return to_arrow_schema(self.types, timezone="UTC")
