"""What the workers run on the rows of a task, and how the rows come to them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.spark.session import BYTES_TO_PYTHON, temporarily_set

# For `mapInArrow`: batches in, batches out.
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

# What a worker has after any task on messages of ordinary size.
_KEPT_BYTES = 500_000_000
_ROWS_AT_ONCE = 10_000
_COUNTED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_AT_ONCE),
    # The one value at which Spark does not look at the size at all.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


@contextmanager
def only_counted(spark: SparkSession, longest: int | None) -> Iterator[None]:
    """Until it is left, rows handed over to Python are counted but not sized, if they are all small. `longest`: no row has texts of more
    bytes than this together; None if that is not known.

    With every row that it adds Spark asks each column of a batch for its size: an eighth of the time of pairing.
    """
    if longest is None or longest * _ROWS_AT_ONCE > BYTES_TO_PYTHON:
        yield
        return
    with temporarily_set(spark, _COUNTED):
        yield


def give_back_memory() -> None:
    """Called at the begin of a task: what allocators keep of an earlier one's large payloads would come on top of what this one needs.

    Below half a gigabyte nothing is done, for fetching it again would take longer than all else that a task does by the way.
    """
    if int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > _KEPT_BYTES:
        pa.default_memory_pool().release_unused()
        # Of the C library, which librdkafka and Python ask; not every one has it.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
