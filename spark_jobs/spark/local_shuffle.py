"""Brings rows together by a number, their bucket, through files that the workers of this machine write and read.

The files have no name, so the kernel frees their space when the job ends, however it ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import IO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jobs.spark.local_workers import own_scratch, run_parts, scratch_files

T = TypeVar("T")
BucketOf = Callable[[pa.RecordBatch], npt.NDArray[np.int64]]
# A worker holds a bucket as a whole, and takes a few times as much: for 2 million events of one key about a gigabyte, as a worker of Spark does.
BYTES_OF_A_BUCKET = 400_000_000
# What whoever numbers buckets aims at: rows, and bytes of files, which are compressed to a quarter or less.
ROWS_OF_A_BUCKET = 65_536
COMPRESSED_OF_A_BUCKET = 16_000_000
# Arrow's buffers are aligned so.
_ALIGNED = 64
_PIECE = pa.schema(dict.fromkeys(("bucket", "file", "begin", "size"), pa.int64()))


class TooLarge(Exception):
    """No worker can hold a bucket, or the disk has no room for all of them: it is work for Spark, which sorts on disk."""


class Buckets(NamedTuple):
    """Rows in the workers' files. `pieces`: bucket -> file, first byte and bytes of each of its pieces."""

    schema: pa.Schema
    pieces: dict[int, list[tuple[int, int, int]]]

    def read(self, wanted: Iterable[int]) -> Iterator[pa.Table]:
        """In a worker: all rows of each of these buckets, one after the other; an empty one has no table."""
        opened = {file: _mapped(scratch_files[file]) for file in self._files()}
        for bucket in wanted:
            found = [
                pa.ipc.read_record_batch(opened[file].slice(begin, size), self.schema)
                for file, begin, size in self.pieces.get(bucket, ())
            ]
            if found:
                yield pa.Table.from_batches(found, self.schema)

    def only(self, wanted: Iterable[int]) -> Buckets:
        """These buckets, to be handed over to a worker."""
        return self._replace(pieces={bucket: self.pieces[bucket] for bucket in wanted if bucket in self.pieces})

    def _files(self) -> set[int]:
        return {file for pieces in self.pieces.values() for file, _, _ in pieces}


@contextmanager
def shuffled(
    parts: Iterable[T], read: Callable[[T], Iterable[pa.RecordBatch]], bucket_of: BucketOf, schema: pa.Schema
) -> Iterator[Buckets]:
    """The rows that `read` returns of the parts, in the buckets that `bucket_of` says for each row; gone after the block.

    Raises TooLarge, and as `run_parts`.
    """
    limit = BYTES_OF_A_BUCKET

    def write(part: T) -> Iterator[pa.RecordBatch]:
        number, file = own_scratch()
        yield write_pieces(file, number, read(part), bucket_of, limit)

    buckets, sizes = Buckets(schema, {}), Counter[int]()
    try:
        with closing(run_parts(parts, write)) as written:
            for rows in written:
                for bucket, file, begin, size in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    buckets.pieces.setdefault(bucket, []).append((file, begin, size))
                    _add(sizes, bucket, size, limit)
        yield buckets
    finally:
        for each in scratch_files:
            each.truncate(0)


def write_pieces(
    file: IO[bytes], number: int, pieces: Iterable[pa.RecordBatch], bucket_of: BucketOf, limit: int
) -> pa.RecordBatch:
    """Appends each piece, cut by bucket, to the worker's file; returns what was written (`_PIECE`). Raises TooLarge."""
    written: list[tuple[int, int, int, int]] = []
    sizes = Counter[int]()
    # Another part may have been written before.
    end = os.fstat(file.fileno()).st_size
    for rows in pieces:
        buckets = bucket_of(rows)
        order = np.argsort(buckets, kind="stable")
        ordered, sorted_rows = buckets[order], rows.take(pa.array(order))
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        for start, stop in zip(starts, [*starts[1:], len(ordered)], strict=True) if len(ordered) else ():
            message, bucket = sorted_rows.slice(start, stop - start).serialize(), int(ordered[start])
            _append(file, message, end)
            written.append((bucket, number, end, message.size))
            end += -(-message.size // _ALIGNED) * _ALIGNED
            _add(sizes, bucket, message.size, limit)
    columns = zip(*written, strict=True) if written else ([] for _ in _PIECE)
    return pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=_PIECE)


def _add(sizes: Counter[int], bucket: int, size: int, limit: int) -> None:
    sizes[bucket] += size
    if sizes[bucket] > limit:
        raise TooLarge(f"more than {limit // 1_000_000} MB come together in one worker")


def _append(file: IO[bytes], message: pa.Buffer, begin: int) -> None:
    left = memoryview(message)
    try:
        while left:
            # All workers share the file's position, so it is named.
            count = os.pwrite(file.fileno(), left, begin)
            left, begin = left[count:], begin + count
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TooLarge(f"no room in {tempfile.gettempdir()} for the rows that workers bring together") from None


def _mapped(file: IO[bytes]) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
