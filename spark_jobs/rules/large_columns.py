"""Columns of texts that may be large: measures and reads rows, and divides all rows into portions that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.rules.rules import Ints


def text_bytes(column: pa.ChunkedArray) -> Ints:
    """The size of each row's text; 0 for null."""
    return np.concatenate([pc.binary_length(chunk).fill_null(0).to_numpy() for chunk in column.chunks])


def gather_texts(column: pa.ChunkedArray, row: Ints) -> pa.Array:
    """The texts of these rows, null for row -1. Together they must be smaller than 2 GB; the column may be larger.

    Arrow's `take` joins all chunks first: it copies everything, and fails from 2 GB on.

    >>> gather_texts(pa.chunked_array([["a", "b"], ["c"]]), np.array([2, -1, 0])).to_pylist()
    ['c', None, 'a']
    """
    if column.num_chunks == 1:
        return column.chunk(0).take(pa.array(row, mask=row < 0))
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    wanted = np.flatnonzero(row >= 0)
    chunk_of = np.searchsorted(ends, row[wanted], side="right")
    by_chunk = wanted[np.argsort(chunk_of, kind="stable")]
    numbers, counts = np.unique(chunk_of, return_counts=True)
    parts, done = [pa.nulls(0, column.type)], 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        chunk = column.chunk(number)
        inside = row[by_chunk[done : done + count]] - (ends[number] - len(chunk))
        parts.append(chunk.take(pa.array(inside)))
        done += count
    place = np.full(len(row), -1)
    place[by_chunk] = np.arange(len(by_chunk))
    return pa.concat_arrays(parts).take(pa.array(place, mask=place < 0))


def portions(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Begin (inclusive) and end (exclusive) of each portion of rows: at most `limit` bytes and one more row, never empty.

    `sizes`: bytes of each row, at least one row. The portions cover all rows in order.

    >>> list(portions(np.array([4, 4, 4, 30, 1]), 10))
    [(0, 2), (2, 3), (3, 5)]
    """
    portion = np.cumsum(sizes) // limit
    begins = np.append(0, np.flatnonzero(np.diff(portion)) + 1).tolist()
    yield from zip(begins, [*begins[1:], len(sizes)], strict=True)
