"""The warehouse of a job: the tables of its pipeline, with Spark for rows that are more than few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Unpack

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.spark.session import LazySession
from spark_jobs.tables.reading import Reading, Rows
from spark_jobs.tables.schemas import declared_schema
from spark_jobs.tables.tables import Tables, among


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
        conditions = [] if wanted is None else [among(wanted)]
        if times is not None:
            files = [file for file in files if file.can_have_times(times)]
            conditions.append(times.has(pc.field("ts")))
        if where is not None:
            conditions.append(where(pc.field))
        condition = reduce(and_, conditions) if conditions else None
        return Reading(self, lambda: self.spark, table, files, self._columns(table, columns), condition, which.get("made"))

    def read(self, table: str, columns: Sequence[str] | None = None, **which: Unpack[Rows]) -> DataFrame:
        """The rows of `reading` in Spark."""
        return self.reading(table, columns, **which).in_spark()

    def _columns(self, table: str, columns: Sequence[str] | None) -> StructType:
        declared = declared_schema(self.pipeline, table)
        return StructType([declared[name] for name in (declared.names if columns is None else columns)])
