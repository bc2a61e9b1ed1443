"""What the workers run on the rows of a task, and how the rows come to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_jobs.session import with_settings
from spark_jobs.storage.table_files import longest_texts

# For `mapInArrow`: batches in, batches out.
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ROWS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 64_000_000
_COUNTED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_AT_ONCE),
    # The one value at which Spark does not look at the size at all.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


@contextmanager
def only_counted(rows: DataFrame) -> Iterator[None]:
    """Until it is left, rows handed over to Python are counted but not sized, if the files of `rows` tell that they are all small.

    With every row that it adds Spark asks each column of a batch for its size: an eighth of the time of pairing.
    """
    longest = longest_texts(rows.inputFiles())
    if longest is None or longest * _ROWS_AT_ONCE > _BYTES_AT_ONCE:
        yield
        return
    with with_settings(rows.sparkSession, _COUNTED):
        yield
