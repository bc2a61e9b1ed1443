"""The tables of a pipeline: where they are, their declared schemas, and how they come to be.

Every table is a folder below `<warehouse>/<pipeline>/`. Column names live here; a write is checked against the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.config.pipeline import Pipeline, Side
from include.config.store import Store, warehouse_store
from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables.delta_log import (
    all_files,
    at_version,
    create,
    dataset,
    files_between,
    files_of,
    largest,
    newest,
    place_for_files,
    small_rows,
    smallest,
)
from spark_jobs.tables.diagnose import files_named
from spark_jobs.tables.parquet_files import SEARCHED, FilePlace
from spark_jobs.tables.read_files import DataFile, Summary, rows_of
from spark_jobs.tables.records import OUTPUT_COLUMNS, PLAN_COLUMNS

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
# What was committed since the last checkpoint is read file by file: a small batch took 11.5 s after some 35 of them, 10.5 s after none.
CHECKPOINT_EVERY = "20"


# Makes a condition from what gives a column by its name.
Condition = Callable[[Callable[[str], Any]], ds.Expression]


class TableProblem(JobProblem):
    """A table is missing or not as declared; the text says which and what to do."""


class MissingTable(TableProblem, NeedsOperator):
    """There is no Delta table at the path."""


@dataclass(frozen=True)
class Warehouse:
    """The tables of one pipeline. `root`: a folder or URI, without a slash at the end. `spark`: of no use to what only asks logs and small tables."""

    spark: SparkSession
    root: str
    pipeline: Pipeline

    def store(self, table: str) -> Store:
        """Where a table lies, and how it is reached."""
        return warehouse_store(self.root).at(self.pipeline.name, table)

    def path(self, table: str) -> str:
        """Folder or URI of a table."""
        return self.store(table).uri

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        batches: Iterable[int] | None = None,
        where: Condition | None = None,
        version: int | None = None,
        summary: Summary | None = None,
    ) -> DataFrame:
        """The table's rows, of the newest Delta version if none is given. Spark gets what is asked for and no more, since it cannot see
        into the reading: `columns` (None: all), the rows of these `batches`, and those of which the condition holds; or the `summary`
        that the workers make of them.
        """
        declared = declared_schema(self.pipeline, table)
        wanted = None if batches is None else sorted(set(batches))
        files, conditions = self.files(table, wanted, version), [] if wanted is None else [_is_of(wanted)]
        if where is not None:
            conditions.append(where(pc.field))
        condition = reduce(lambda one, other: one & other, conditions) if conditions else None
        names = declared.names if columns is None else columns
        wanted_columns = StructType([declared[name] for name in names])
        return rows_of(self.spark, self.store(table), files, wanted_columns, condition, summary)

    def files(self, table: str, batches: Sequence[int] | None = None, version: int | None = None) -> list[DataFile]:
        """The files of a version (None: the newest) that can have rows of the batches, ascending (None: of any)."""
        with self.at_work_on(table):
            known = self.newest(table) if version is None else at_version(self.store(table), version)
            place_for_files(self.store(table), known, declared_schema(self.pipeline, table))
            return all_files(known) if batches is None else files_of(known, "batch_id", batches)

    def place_for_files(self, table: str) -> FilePlace:
        """Where workers write files of the table. Raises NeedsOperator where another program has made the table another one."""
        with self.at_work_on(table):
            return place_for_files(self.store(table), self.newest(table), declared_schema(self.pipeline, table))

    @contextmanager
    def at_work_on(self, table: str) -> Iterator[None]:
        """Raises MissingTable or another JobProblem where the block fails because the table or its files are not as they should."""
        try:
            with files_named(self.path(table)):
                yield
        except TableNotFoundError:
            raise self.missing(table) from None
        except CommitFailedError:
            raise TableProblem(
                f"{self.path(table)} was changed by others each time that it was to be changed, so nothing was written: run this again"
            ) from None
        except DeltaError as error:
            # The lines after the first are a stack trace.
            raise TableProblem(f"{self.path(table)} cannot be used: {str(error).splitlines()[0]}") from None

    def newest(self, table: str) -> DeltaTable:
        """The newest version of a table."""
        with self.at_work_on(table):
            return newest(self.store(table))

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
            self.newest(table)
        except MissingTable:
            return False
        return True

    def version(self, table: str) -> int:
        """The table's latest Delta version."""
        return int(self.newest(table).version())

    def table_id(self, table: str) -> str:
        """The id that the table got when it was created; another id means another table."""
        return str(self.newest(table).metadata().id)

    def newest_batch(self, table: str) -> int | None:
        """The largest batch_id of a table; None if it has no rows."""
        return largest(self.newest(table), "batch_id")

    def oldest_batch(self, table: str) -> int | None:
        """The smallest batch_id of a table; None if it has no rows."""
        return smallest(self.newest(table), "batch_id")

    def small_rows(
        self, table: str, first: int, last: int | None = None, columns: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of the batches first..last, both inclusive, of a table with few rows a batch; `last` None: to the newest.

        `columns`: only these. Maps are lists of pairs. Only files are opened that can have such rows: of a table that grows, the newest ones.
        """
        return list(self.rows_between(table, first, last, columns).to_pylist())

    def rows_between(self, table: str, first: int, last: int | None, columns: list[str] | None = None) -> pa.Table:
        """As `small_rows`, as an Arrow table."""
        number = pc.field("batch_id")
        fits = number >= first if last is None else (number >= first) & (number <= last)
        with self.at_work_on(table):
            known = self.newest(table)
            return small_rows(self.store(table), known, files_between(known, "batch_id", first, last), fits, columns)

    def pieces(self, table: str, first: int, last: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The table's columns, and its rows of the batches first..last, both inclusive, piece by piece: rows may be large."""
        known = self.newest(table)
        schema, number = pa.schema(known.schema().to_arrow()), pc.field("batch_id")
        rows = dataset(self.store(table), schema, files_between(known, "batch_id", first, last))
        fits = (number >= first) & (number <= last)
        return schema, rows.to_batches(filter=fits, batch_readahead=1, fragment_readahead=1)

    def newest_rows(self, table: str, before: int, columns: list[str] | None = None) -> list[dict[str, Any]]:
        """As `small_rows`, of the newest batch and the `before` batch_ids ahead of it."""
        with self.at_work_on(table):
            known = self.newest(table)
            last = largest(known, "batch_id")
            if last is None:
                return []
            fits, files = pc.field("batch_id") >= last - before, files_between(known, "batch_id", last - before, None)
            return list(small_rows(self.store(table), known, files, fits, columns).to_pylist())

    def found(self, table: str, columns: list[str], where: Condition) -> list[dict[str, Any]]:
        """Some columns of the rows that fit. Of a large table this reads what the condition and the columns need, and no more."""
        with self.at_work_on(table):
            return list(self.newest(table).to_pyarrow_dataset().to_table(columns, filter=where(pc.field)).to_pylist())

    def create_missing(self) -> None:
        """Creates what is not there. The ledger comes last: where it exists, all the others were created.

        Called when there is no ledger; raises TableProblem if the other tables show that there was one.
        """
        others = [table for table in schemas(self.pipeline) if table != LEDGER]
        # On a store each of them takes as long as all.
        with ThreadPoolExecutor(max_workers=len(others)) as beside:
            list(beside.map(self._create_empty, others))
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
        # Maintenance cuts the logs.
        properties = {
            "delta.checkpointInterval": CHECKPOINT_EVERY,
            "delta.dataSkippingStatsColumns": searched,
            "delta.enableExpiredLogCleanup": "false",
        }
        with self.at_work_on(table):
            create(self.store(table), declared, properties)


def _is_of(batches: Sequence[int]) -> ds.Expression:
    number = pc.field("batch_id")
    if batches and batches[-1] - batches[0] < len(batches):
        return (number >= batches[0]) & (number <= batches[-1])
    return number.isin(list(batches))


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
        METRICS: (
            "batch_id BIGINT, judged_at TIMESTAMP, success BOOLEAN, metrics MAP<STRING, DOUBLE>, "
            "breakdowns ARRAY<STRUCT<family: STRING, number: BIGINT, bucket: BIGINT, field: STRING, value: STRING>>"
        ),
        LEDGER: (
            f"batch_id BIGINT, kind STRING, step STRING, plan {PLAN_COLUMNS}, offsets {_OFFSETS}, wall_time BIGINT, clock BIGINT, "
            f"counts MAP<STRING, BIGINT>, output {OUTPUT_COLUMNS}, versions MAP<STRING, BIGINT>, started_at TIMESTAMP, finished_at TIMESTAMP, "
            "config_hash STRING, config STRING"
        ),
    }
