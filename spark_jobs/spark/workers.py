"""Functions that workers run on the rows of a task, and how Spark hands the rows over to them.

Few rows take no worker: the job calls the same functions itself. A task costs as much as some ten thousand rows, on a cluster several times
that. More are worked on by the job's own workers, if it has any (`local_workers`), and by Spark's otherwise.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.spark.executors import check_executors, is_cluster, name_host_in_errors
from spark_jobs.spark.local_workers import has_workers, run_parts
from spark_jobs.spark.session import BYTES_TO_PYTHON, override_settings

T = TypeVar("T")
# A function for `mapInArrow`.
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# How many rows a job works on without Spark, and how many of them without workers; 0: none.
FEW_VARIABLE = "PAIRING_ROWS_WITHOUT_SPARK"
ALONE_VARIABLE = "PAIRING_ROWS_WITHOUT_WORKERS"
_ALONE = 250_000
_BY_OWN_WORKERS = 50_000_000

# A worker has less than this after any task on messages of ordinary size.
_KEPT_BYTES = 500_000_000
_ROWS_AT_ONCE = 10_000
_NOT_SIZED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_AT_ONCE),
    # The only value at which Spark does not compute sizes.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


@contextmanager
def skip_size_checks(spark: SparkSession, longest: int | None) -> Iterator[None]:
    """During the block Spark counts rows for Python without computing their sizes, if all rows are small.

    `longest`: an upper bound of the bytes of all texts of one row; None if not known. Spark otherwise asks each column of a batch for its
    size with every row that it adds: an eighth of the time of pairing.
    """
    if longest is None or longest * _ROWS_AT_ONCE > BYTES_TO_PYTHON:
        yield
        return
    with override_settings(spark, _NOT_SIZED):
        yield


def are_few(rows: int) -> bool:
    """Whether a job works on so many rows by itself: at most $PAIRING_ROWS_WITHOUT_WORKERS (250,000). Raises NeedsOperator."""
    return rows <= min(_given(ALONE_VARIABLE, _ALONE), _given(FEW_VARIABLE, _ALONE)) and os.environ.get(FEW_VARIABLE) != "0"


def are_for_own_workers(rows: int) -> bool:
    """Whether the job's own workers work on so many rows: at most $PAIRING_ROWS_WITHOUT_SPARK (50 million). Raises NeedsOperator."""
    return has_workers() and rows <= _given(FEW_VARIABLE, _BY_OWN_WORKERS)


def _given(variable: str, otherwise: int) -> int:
    given = os.environ.get(variable) or str(otherwise)
    if not given.isdecimal():
        raise NeedsOperator(f"not a number of rows: {variable}={given}; with {FEW_VARIABLE}=0 Spark does everything")
    return int(given)


def work_on(
    session: Callable[[], SparkSession],
    parts: Sequence[T],
    work: Callable[[T], Iterable[pa.RecordBatch]],
    columns: pa.Schema,
    rows: int,
) -> pa.Table:
    """What `work` makes of each part. Few `rows` in all are worked on here, one part after the other; otherwise each part has a task."""
    if are_few(rows):
        return pa.Table.from_batches([batch for part in parts for batch in work(part)], columns)
    if are_for_own_workers(rows):
        return pa.Table.from_batches(run_parts(parts, work), columns)
    return read_in_tasks(session(), parts, work, from_arrow_schema(columns)).toArrow().cast(columns)


def read_in_tasks(
    spark: SparkSession, parts: Sequence[T], read: Callable[[T], Iterable[pa.RecordBatch]], columns: StructType | str
) -> DataFrame:
    """The rows that `read` returns of each part, which has a task of its own. Raises as `check_executors`."""
    if not parts:
        # The condition has Spark plan nothing for it, and ask no executor.
        return spark.createDataFrame([], columns).where(F.lit(False))
    check_executors(spark)
    on_cluster = is_cluster(spark)

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with name_host_in_errors(on_cluster):
            for batch in batches:
                for number in batch["id"].to_pylist():
                    yield from read(parts[number])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(stage, columns)


def release_memory() -> None:
    """Call first in a task: returns memory cached from an earlier task's large payloads to the OS.

    Does nothing below half a gigabyte: allocating that again would take longer than all other overhead of a task.
    """
    if int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > _KEPT_BYTES:
        pa.default_memory_pool().release_unused()
        # For librdkafka and Python, which use the C library's allocator; not every C library has this function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
