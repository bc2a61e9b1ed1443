"""Reads rows of a table's files through the object-store client of delta-rs, in the workers or in this process.

Spark opens no file: workers hand it the requested columns, already filtered, so that no second client of a store is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError

from include.config.store import Store, read_bytes
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.diagnose import damaged
from spark_jobs.tables.parquet_files import LONGEST_TEXTS, name_place_in_errors

# Python and its socket take 60 ms of every task; 128 MB of files are some millions of rows of ordinary size.
_ROWS_A_TASK = 500_000
_BYTES_A_TASK = 128_000_000
_ROWS_AT_ONCE = 65_536
# For large rows: a piece on its way to the JVM takes several times that.
_BYTES_AT_ONCE = 16_000_000
# Files up to this size are fetched whole: a store sends some megabytes in the time of one request.
WHOLE_BYTES = 1_000_000
_KEPT_BYTES = 16_000_000
_FILES_AT_ONCE = 8
# A DELETE of delta-rs writes views of texts, which Arrow cannot filter.
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
BYTES_OF_FEW = 64_000_000
# Column chunks are fetched together: on a store each request takes as long as many rows.
_PARQUET = ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))
# Errors of Arrow, and of a store asked for more than there is, about a file whose content has changed.
_DAMAGED = (
    "deserialize thrift",
    "decompression failed",
    "corrupt data page",
    "corrupt file",
    "range was invalid",
    "InvalidRange",
)


# (place of the table, name) -> what is in the file; None outside of `keep_small_files`.
_kept: dict[tuple[str, str], pa.Buffer] | None = None


@contextmanager
def keep_small_files() -> Iterator[None]:
    """During the block, a small file is fetched once: a file of a table never changes, and a job reads the newest ones of its ledger again and again."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


class Share(NamedTuple):
    """What one task reads: some files, and every `parts`-th of their row groups from `part` on."""

    files: tuple[DataFile, ...]
    part: int = 0
    parts: int = 1


def shares(files: Iterable[DataFile]) -> list[Share]:
    """Divides the files into portions for tasks: small files together, a large one in parts."""
    found: list[Share] = []
    waiting: list[DataFile] = []
    for file in files:
        parts = max(-(-file.rows // _ROWS_A_TASK), -(-file.size // _BYTES_A_TASK))
        if parts > 1:
            found += [Share((file,), part, parts) for part in range(parts)]
            continue
        together = [*waiting, file]
        if sum(each.rows for each in together) > _ROWS_A_TASK or sum(each.size for each in together) > _BYTES_A_TASK:
            found.append(Share(tuple(waiting)))
            together = [file]
        waiting = together
    return [*found, Share(tuple(waiting))] if waiting else found


class InWorker(NamedTuple):
    """A function that a worker applies to each piece of rows that it has read. Spark gets only its results."""

    make: Callable[[pa.RecordBatch], pa.RecordBatch]
    columns: pa.Schema | None = None  # those that it returns; None: those that it gets
    is_summary: bool = False  # whether it returns far fewer rows than it gets


def read_share(store: Store, share: Share, schema: pa.Schema, where: ds.Expression | None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a share that fit, in pieces of at most some megabytes, with the columns of `schema` in its order.

    Row groups that cannot have such rows are not fetched. Raises NeedsOperator if a file is damaged, otherwise OSError with the table's place.
    """
    for file in share.files:
        pieces = _pieces(store, file, share, schema, where)
        while (piece := _next(pieces, store, file.name)) is not None:
            yield piece


def read_few(
    store: Store, files: Sequence[DataFile], schema: pa.Schema, where: ds.Expression | None, made: InWorker | None
) -> pa.Table | None:
    """All rows of the files that fit, or what is `made` of them, read into this process; None if they are more than about 64 MB.

    Errors as `read_share`.
    """
    room = BYTES_OF_FEW

    def rows_of(file: DataFile) -> Iterator[pa.RecordBatch]:
        nonlocal room
        for rows in read_share(store, Share((file,)), schema, where):
            room -= rows.nbytes
            # Compressed rows tell nothing of their size.
            if room < 0:
                return
            yield made.make(rows) if made else rows

    rows, columns = _side_by_side(rows_of, files), (made and made.columns) or schema
    return None if room < 0 else pa.Table.from_batches([each.cast(columns) for each in rows], columns)


def read_small_files(store: Store, files: Sequence[DataFile], schema: pa.Schema, where: ds.Expression | None) -> pa.Table:
    """All rows of the files that fit, read into this process: for as few rows as a ledger has of some batches. Errors as `read_share`."""
    rows = _side_by_side(lambda file: read_share(store, Share((file,)), schema, where), files)
    return pa.Table.from_batches(rows, schema)


def _side_by_side(
    rows_of: Callable[[DataFile], Iterable[pa.RecordBatch]], files: Sequence[DataFile]
) -> list[pa.RecordBatch]:
    """The rows of all files, in the order of the files."""
    # On a store reading one of them takes as long as all.
    with ThreadPoolExecutor(max_workers=_FILES_AT_ONCE) as pool:
        return list(chain.from_iterable(pool.map(lambda file: list(rows_of(file)), files)))


def _next(pieces: Iterator[pa.RecordBatch], store: Store, name: str) -> pa.RecordBatch | None:
    try:
        with name_place_in_errors(store):
            return next(pieces, None)
    except OSError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise damaged(f"{store.uri}/{name}", "is missing") from None
        if isinstance(error.__cause__, pa.ArrowInvalid) or any(sign in str(error) for sign in _DAMAGED):
            raise damaged(f"{store.uri}/{name}", "is cut off or overwritten") from None
        raise


def _pieces(
    store: Store, file: DataFile, share: Share, schema: pa.Schema, where: ds.Expression | None
) -> Iterator[pa.RecordBatch]:
    fragment = _open_fragment(store, file)
    groups, in_file = fragment.row_groups, _file_schema(fragment, schema)
    # Arrow compares neither views nor their statistics with a text, so rows of the few such files are filtered when they are read.
    with suppress(pa.ArrowNotImplementedError):
        if where is not None:
            groups = [group for each in fragment.split_by_row_group(where, schema=in_file) for group in each.row_groups]
    has_views = where is not None and not _VIEWS.keys().isdisjoint(fragment.physical_schema.types)
    # No filter needs lists, which may have views within.
    whole = pa.schema([each for each in in_file if each.name in schema.names or not pa.types.is_nested(each.type)])
    columns, early = (whole.names, None) if has_views else (schema.names, where)
    for group in groups[share.part :: share.parts]:
        at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * group.num_rows // max(group.total_byte_size, 1)))
        part = fragment.subset(row_group_ids=[group.id])
        found = part.to_batches(
            schema=in_file,
            columns=columns,
            filter=early,
            batch_size=at_once,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        for piece in found:
            late = pa.Table.from_batches([piece.cast(whole)]).filter(where).to_batches() if has_views else [piece]
            for rows in late:
                if rows.num_rows:
                    yield pa.record_batch([rows[field.name].cast(field.type) for field in schema], schema=schema)


def _file_schema(fragment: ds.ParquetFileFragment, schema: pa.Schema) -> pa.Schema:
    """The columns of the file: a filter may need other columns than `schema` has."""
    there: pa.Schema = fragment.physical_schema
    others = {field.name: field.with_type(_VIEWS.get(field.type, field.type)) for field in there}
    return pa.schema([schema.field(name) if name in schema.names else others[name] for name in there.names])


def _open_fragment(store: Store, file: DataFile) -> ds.ParquetFileFragment:
    """Opens the file. A small one is fetched whole, by one request instead of one for its footer and one for each range of its columns."""
    if file.size <= WHOLE_BYTES:
        return _PARQUET.make_fragment(_whole(store, file))
    return _PARQUET.make_fragment(file.name, file_system(store, [file]))


def _whole(store: Store, file: DataFile) -> pa.Buffer:
    kept, place = _kept, (store.uri, file.name)
    if kept is not None and place in kept:
        return kept[place]
    content = pa.py_buffer(read_bytes(store, file.name))
    # Other threads add to it meanwhile, so it is copied before it is gone through.
    if kept is not None and sum(each.size for each in [*kept.values()]) + content.size <= _KEPT_BYTES:
        kept[place] = content
    return content


def file_system(store: Store, files: Iterable[DataFile]) -> pafs.FileSystem:
    """For Arrow: below the table's place. The known sizes save a request for each file."""
    return pafs.PyFileSystem(DeltaStorageHandler(store.uri, store.delta_options, {file.name: file.size for file in files}))


def longest_texts(store: Store, files: Sequence[DataFile]) -> int | None:
    """An upper bound of the bytes of all texts of one row; None if a file does not say, as files of other programs."""
    longest = 0
    for file in files:
        try:
            known = (_open_fragment(store, file).metadata.metadata or {}).get(LONGEST_TEXTS)
        except (OSError, BaseError, pa.ArrowException):
            # Reading its rows reports the problem.
            return None
        if known is None:
            return None
        longest = max(longest, int(known))
    return longest
