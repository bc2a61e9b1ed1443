"""Rows of a table's files, read in the workers through the object-store client with which delta-rs finds them.

Spark sees no file: it gets the columns that are asked for, already filtered, so that no second client of a store is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import obstore
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.config.store import Store
from spark_jobs.tables.diagnose import damaged
from spark_jobs.tables.parquet_files import LONGEST_TEXTS, place_named

# Python and its socket take 60 ms of every task; of rows of ordinary size 128 MB of files are some millions.
_ROWS_A_TASK = 500_000
_BYTES_A_TASK = 128_000_000
_ROWS_AT_ONCE = 65_536
# Of large rows: what is on its way to the JVM takes several times that.
_BYTES_AT_ONCE = 16_000_000
# Fetched whole; as long as a request takes, a store sends some megabytes.
_WHOLE_BYTES = 1_000_000
# Column chunks are fetched together: on a store each request takes as long as many rows.
PARQUET = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
# What Arrow, and a store that is asked for more than there is, say of a file whose content is not what it was.
_DAMAGED = (
    "deserialize thrift",
    "decompression failed",
    "corrupt data page",
    "corrupt file",
    "range was invalid",
    "InvalidRange",
)


class DataFile(NamedTuple):
    """A file of a table, below its place; `rows`: how many it has; `first`, `last`: its smallest and largest offset, None if not known."""

    name: str
    size: int
    rows: int
    first: int | None = None
    last: int | None = None


class Share(NamedTuple):
    """What one task reads: some files, and of their row groups every `parts`-th from `part` on."""

    files: tuple[DataFile, ...]
    part: int = 0
    parts: int = 1


def shares(files: Iterable[DataFile]) -> list[Share]:
    """The files in portions worth a task: small ones together, a large one in parts."""
    found: list[Share] = []
    waiting: list[DataFile] = []
    for file in files:
        parts = max(-(-file.rows // _ROWS_A_TASK), -(-file.size // _BYTES_A_TASK))
        if parts > 1:
            found += [Share((file,), part, parts) for part in range(parts)]
            continue
        if waiting and not _fit([*waiting, file]):
            found.append(Share(tuple(waiting)))
            waiting = []
        waiting.append(file)
    return [*found, Share(tuple(waiting))] if waiting else found


def _fit(files: Sequence[DataFile]) -> bool:
    return sum(file.rows for file in files) <= _ROWS_A_TASK and sum(file.size for file in files) <= _BYTES_A_TASK


class Summary(NamedTuple):
    """What a worker makes of each piece of the rows that it reads, before they go to Spark; `columns`: of what it makes, in SQL."""

    make: Callable[[pa.RecordBatch], pa.RecordBatch]
    columns: str


def rows_of(
    spark: SparkSession,
    store: Store,
    files: Iterable[DataFile],
    columns: StructType,
    where: ds.Expression | None,
    summary: Summary | None = None,
) -> DataFrame:
    """The columns of the rows that fit, or their summaries, as a DataFrame of one task a share."""
    parts = shares(files)
    returned = summary.columns if summary else columns
    if not parts:
        return spark.createDataFrame([], returned)
    schema = to_arrow_schema(columns, timezone="UTC")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                pieces = read_share(store, parts[number], schema, where)
                yield from map(summary.make, pieces) if summary else pieces

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, returned)


def read_share(store: Store, share: Share, schema: pa.Schema, where: ds.Expression | None) -> Iterator[pa.RecordBatch]:
    """The rows of a share that fit, in pieces of at most some megabytes, with the columns of `schema` in its order.

    Row groups that cannot have such rows are not fetched. Raises NeedsOperator where a file is damaged, else OSError with the table's place.
    """
    for file in share.files:
        pieces = _pieces(store, file, share, schema, where)
        while (piece := _next(pieces, store, file.name)) is not None:
            yield piece


def _next(pieces: Iterator[pa.RecordBatch], store: Store, name: str) -> pa.RecordBatch | None:
    with file_named(store, name):
        return next(pieces, None)


@contextmanager
def file_named(store: Store, name: str) -> Iterator[None]:
    """Raises NeedsOperator with the file where it is missing or damaged, else OSError with the table's place."""
    try:
        with place_named(store):
            yield
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(f"{store.uri}/{name}", "is missing") from None
        if isinstance(error.__cause__, pa.ArrowInvalid) or any(sign in str(error) for sign in _DAMAGED):
            raise damaged(f"{store.uri}/{name}", "is cut off or overwritten") from None
        raise


def _pieces(
    store: Store, file: DataFile, share: Share, schema: pa.Schema, where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    fragment = fragment_of(store, file)
    groups = fragment.row_groups
    if where is not None:
        groups = [
            group
            for each in fragment.split_by_row_group(where, schema=_known(fragment, schema))
            for group in each.row_groups
        ]
    mine = groups[share.part :: share.parts]
    for group in mine:
        at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * group.num_rows // max(group.total_byte_size, 1)))
        part = fragment.subset(row_group_ids=[group.id])
        found = part.to_batches(
            schema=_known(fragment, schema),
            columns=schema.names,
            filter=where,
            batch_size=at_once,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        for rows in found:
            if rows.num_rows:
                yield pa.record_batch([rows[field.name].cast(field.type) for field in schema], schema=schema)


def _known(fragment: ds.ParquetFileFragment, schema: pa.Schema) -> pa.Schema:
    """The file's columns: a filter may need others than those that are asked for."""
    there: pa.Schema = fragment.physical_schema
    return pa.schema(
        [schema.field(name) if name in schema.names else _not_a_view(there.field(name)) for name in there.names]
    )


def _not_a_view(field: pa.Field) -> pa.Field:
    """The field as Arrow can filter it: a DELETE of delta-rs writes texts of another kind, with which it cannot."""
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return field.with_type(views.get(field.type, field.type))


def fragment_of(store: Store, file: DataFile) -> ds.ParquetFileFragment:
    """The file, to be read: a small one is fetched whole, by one request instead of one for its footer and one for each range of its columns."""
    if file.size <= _WHOLE_BYTES:
        return PARQUET.make_fragment(pa.py_buffer(bytes(obstore.get(store.client, file.name).bytes())))
    # A size that is known need not be asked for.
    handler = DeltaStorageHandler(store.uri, store.delta_options, {file.name: file.size})
    return PARQUET.make_fragment(file.name, pafs.PyFileSystem(handler))


def longest_texts(store: Store, files: Sequence[DataFile]) -> int | None:
    """No row of the files has texts of more bytes than this together; None if a file does not tell, as those of other writers do not."""
    longest = 0
    for file in files:
        try:
            known = (fragment_of(store, file).metadata.metadata or {}).get(LONGEST_TEXTS)
        except (OSError, BaseError, pa.ArrowException):
            # Whoever reads its rows says what is wrong with it.
            return None
        if known is None:
            return None
        longest = max(longest, int(known))
    return longest
