"""The tables of a pipeline: where they are, their declared schemas, and how they come to be.

Every table is a folder below `<warehouse>/<pipeline>/`. Column names live here; a write is checked against the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.pipeline_config import Pipeline, Side
from spark_jobs.fault_points import fault_point
from spark_jobs.problems import JobProblem, NeedsOperator
from spark_jobs.storage.delta_log import (
    create,
    files_at,
    files_of,
    in_folder,
    largest,
    place_for_files,
    rows_between,
    smallest,
)
from spark_jobs.storage.faults import files_named
from spark_jobs.storage.table_files import SEARCHED, FilePlace

LEDGER = "batch_ledger"
COMPOUNDS = "compound_events"
REJECTED = "rejected_events"
OPEN = "open_events"
METRICS = "quality_metrics"

# One struct an input partition. until_offset is exclusive; end_offset is the read_committed end asked for after W; max_ts the
# largest accepted timestamp landed so far; lost: records before from_offset that the broker no longer had, accepted by hand; began: the
# first offset that there was when the pipeline began; cut: offsets from cut_from on that the log had and lost, accepted by hand; epoch: the
# leader epoch of end_offset.
_OFFSETS = (
    "array<struct<topic: string, partition: int, from_offset: bigint, until_offset: bigint, end_offset: bigint, "
    "max_ts: bigint, lost: bigint, began: bigint, cut_from: bigint, cut: bigint, epoch: int>>"
)
_NO_TABLE = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND")

# What was committed since the last checkpoint is read file by file: a small batch took 11.5 s after some 35 of them, 10.5 s after none.
CHECKPOINT_EVERY = "20"


# Makes a condition from what gives a column by its name, pyarrow's or Spark's, with what both have: comparisons, &, | and isin.
Condition = Callable[[Callable[[str], Any]], Any]


class TableProblem(JobProblem):
    """A table is missing or not as declared; the text says which and what to do."""


class MissingTable(TableProblem, NeedsOperator):
    """There is no Delta table at the path."""


@dataclass(frozen=True)
class Warehouse:
    """The tables of one pipeline. `root`: a folder or URI, without a slash at the end."""

    spark: SparkSession
    root: str
    pipeline: Pipeline

    def path(self, table: str) -> str:
        """Folder or URI of a table."""
        return f"{self.root}/{self.pipeline.name}/{table}"

    def sql_name(self, table: str) -> str:
        """How SQL names the table."""
        return f"delta.`{self.path(table).replace('`', '``')}`"

    def read(self, table: str, version: int | None = None) -> DataFrame:
        """The table, at a Delta version if one is given."""
        reader = self.spark.read.format("delta")
        with self.at_work_on(table):
            rows = (reader if version is None else reader.option("versionAsOf", version)).load(self.path(table))
            # Through Spark Connect nothing is looked at before the schema is asked for.
            rows.schema  # noqa: B018
            return rows

    def read_at(self, table: str, version: int) -> DataFrame:
        """The table at an earlier Delta version, for what every batch does.

        Of a local warehouse only the names of the files are asked for. Delta lists the log three times to travel in time and reads it anew: 0.3 s
        and more, the longer the log the longer.
        """
        with self.at_work_on(table):
            files = files_at(self.path(table), version)
        return self.read(table, version) if files is None else self._rows_of(table, files)

    def read_batches(self, table: str, batch_ids: Iterable[int]) -> DataFrame:
        """The rows of these batches, of the newest version.

        As `read_at`: the scan of a Delta table takes 0.2 s before it begins, however little there is.
        """
        wanted = sorted(set(batch_ids))
        with self.at_work_on(table):
            files = files_of(self.path(table), "batch_id", wanted)
        number = F.col("batch_id")
        all_between = bool(wanted) and wanted[-1] - wanted[0] < len(wanted)
        mine = number.between(wanted[0], wanted[-1]) if all_between else number.isin(wanted)
        return (self.read(table) if files is None else self._rows_of(table, files)).where(mine)

    def _rows_of(self, table: str, files: list[str]) -> DataFrame:
        declared = declared_schema(self.pipeline, table)
        return self.spark.read.schema(declared).parquet(*files) if files else self.spark.createDataFrame([], declared)

    def place_for_files(self, table: str) -> FilePlace | None:
        """Where workers can write files of the table; None if only Spark can write it."""
        with self.at_work_on(table):
            return place_for_files(self.path(table), declared_schema(self.pipeline, table))

    @contextmanager
    def at_work_on(self, table: str) -> Iterator[None]:
        """Raises MissingTable or another JobProblem where the block fails because the table or its files are not as they should."""
        try:
            with files_named(self.path(table)):
                yield
        except TableNotFoundError:
            raise self.missing(table) from None
        except DeltaError as error:
            # The lines after the first are a stack trace.
            raise TableProblem(f"{self.path(table)} cannot be used: {str(error).splitlines()[0]}") from None
        except AnalysisException as error:
            if error.getCondition() not in _NO_TABLE:
                raise
            raise self.missing(table) from None

    def _in_folder(self, table: str) -> DeltaTable | None:
        with self.at_work_on(table):
            return in_folder(self.path(table))

    def missing(self, table: str) -> MissingTable:
        """The problem of a table that is not there."""
        if table == LEDGER:
            return MissingTable(f"there is no table {self.path(table)}: land_events creates the tables, run it first")
        return MissingTable(
            f"{self.path(table)} is gone, but {self.path(LEDGER)} is there: put all tables of the pipeline back from one backup"
        )

    def exists(self, table: str) -> bool:
        """Whether a Delta table is at the path."""
        try:
            return bool(self._in_folder(table) or self.read(table).columns)
        except MissingTable:
            return False

    def version(self, table: str) -> int:
        """The table's latest Delta version."""
        if known := self._in_folder(table):
            return known.version()
        with self.at_work_on(table):
            newest = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name(table)} LIMIT 1").select("version").first()
        if newest is None:
            raise TableProblem(f"{self.path(table)} has no history; was its _delta_log deleted?")
        return int(newest["version"])

    def table_id(self, table: str) -> str:
        """The id that Delta gave the table when it was created; another id means another table."""
        if known := self._in_folder(table):
            return str(known.metadata().id)
        with self.at_work_on(table):
            detail = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").select("id").first()
        if detail is None:
            raise TableProblem(f"{self.path(table)} has no detail; was its _delta_log deleted?")
        return str(detail["id"])

    def newest_batch(self, table: str) -> int | None:
        """The largest batch_id of a table; None if it has no rows."""
        if known := self._in_folder(table):
            return largest(known, "batch_id")
        newest = self.read(table).agg(F.max("batch_id")).first()
        return None if newest is None or newest[0] is None else int(newest[0])

    def oldest_batch(self, table: str) -> int | None:
        """The smallest batch_id of a table; None if it has no rows."""
        if known := self._in_folder(table):
            return smallest(known, "batch_id")
        oldest = self.read(table).agg(F.min("batch_id")).first()
        return None if oldest is None or oldest[0] is None else int(oldest[0])

    def small_rows(
        self, table: str, first: int, last: int | None = None, columns: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of the batches first..last, both inclusive, of a table with few rows a batch; `last` None: to the newest.

        `columns`: only these. Maps are dicts or lists of pairs.
        """
        if known := self._in_folder(table):
            with self.at_work_on(table):
                return rows_between(known, "batch_id", first, last, columns)
        number = F.col("batch_id")
        mine = number >= first if last is None else number.between(first, last)
        rows = self.read(table).where(mine)
        return [row.asDict(recursive=True) for row in (rows.select(*columns) if columns else rows).collect()]

    def newest_rows(self, table: str, before: int, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """As `small_rows`, of the newest batch and the `before` batch_ids ahead of it."""
        if known := self._in_folder(table):
            with self.at_work_on(table):
                newest = largest(known, "batch_id")
                return [] if newest is None else rows_between(known, "batch_id", newest - before, None, columns)
        newest = self.newest_batch(table)
        return [] if newest is None else self.small_rows(table, newest - before, columns=columns)

    def found(self, table: str, columns: list[str], where: Condition) -> list[dict[str, Any]]:
        """Some columns of the rows that fit. Of a large table this reads what the condition and the columns need, and no more."""
        if known := self._in_folder(table):
            with self.at_work_on(table):
                return list(known.to_pyarrow_dataset().to_table(columns, filter=where(pc.field)).to_pylist())
        return [row.asDict(recursive=True) for row in self.read(table).where(where(F.col)).select(*columns).collect()]

    def create_missing(self) -> None:
        """Creates what is not there. The ledger comes last: where it exists, all the others were created.

        Called when there is no ledger; raises TableProblem if the other tables show that there was one.
        """
        for table in schemas(self.pipeline):
            if table != LEDGER:
                self._create_empty(table)
        fault_point("before_ledger_created")
        self._create_empty(LEDGER)
        fault_point("after_ledger_created")

    def _create_empty(self, table: str) -> None:
        if self.exists(table):
            if self.version(table) > 0:
                raise TableProblem(
                    f"{self.path(table)} has been written to, but {self.path(LEDGER)} is gone: restore the ledger; without it "
                    "nobody knows what was landed and published"
                )
            return
        declared = declared_schema(self.pipeline, table)
        searched = ",".join(name for name in SEARCHED if name in declared.fieldNames())
        properties = {"delta.checkpointInterval": CHECKPOINT_EVERY, "delta.dataSkippingStatsColumns": searched}
        if not create(self.path(table), declared, properties):
            told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
            columns = schemas(self.pipeline)[table]
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING delta TBLPROPERTIES ({told})"
            )


def raw_table(side: Side) -> str:
    """Name of the raw table of one side."""
    return f"raw_{side.payload}"


def declared_schema(pipeline: Pipeline, table: str) -> StructType:
    """The declared schema of a table."""
    return _columns(schemas(pipeline)[table])


@cache
def _columns(declaration: str) -> StructType:
    # Spark is asked each time, and a job asks a dozen times.
    columns = StructType.fromDDL(declaration)
    if not isinstance(columns, StructType):
        raise TypeError(f"{declaration} is no list of columns")
    return columns


def schemas(pipeline: Pipeline) -> dict[str, str]:
    """Table name -> columns in SQL. Times are epoch ms (BIGINT), payloads JSON texts as they came, null where there is none."""
    key = ", ".join(f"`{name}` STRING" for name in pipeline.key)
    raw = (
        "topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
        f"headers ARRAY<STRUCT<`key`: STRING, value: BINARY>>, ts BIGINT, {key}, payload STRING, problem STRING, batch_id BIGINT"
    )
    left, right = pipeline.sides
    coordinates = ", ".join(
        f"{side}_ts BIGINT, {side}_topic STRING, {side}_partition INT, {side}_offset BIGINT" for side in ("left", "right")
    )
    return {
        raw_table(left): raw,
        raw_table(right): raw,
        OPEN: f"{key}, side STRING, topic STRING, partition INT, offset BIGINT, ts BIGINT, payload STRING, batch_id BIGINT",
        COMPOUNDS: (
            f"pair_id STRING, revision INT, op STRING, kind STRING, {key}, ts BIGINT, `{left.payload}` STRING, "
            f"`{right.payload}` STRING, {coordinates}, batch_id BIGINT"
        ),
        REJECTED: (
            "reason STRING, topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
            "batch_id BIGINT"
        ),
        METRICS: "batch_id BIGINT, judged_at TIMESTAMP, success BOOLEAN, metrics MAP<STRING, DOUBLE>",
        LEDGER: (
            f"batch_id BIGINT, kind STRING, step STRING, offsets {_OFFSETS}, wall_time BIGINT, clock BIGINT, "
            "counts MAP<STRING, BIGINT>, versions MAP<STRING, BIGINT>, started_at TIMESTAMP, finished_at TIMESTAMP, "
            "config_hash STRING, config STRING"
        ),
    }
