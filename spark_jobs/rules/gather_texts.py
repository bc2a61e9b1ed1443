"""Texts of many rows out of a column of many chunks, however large the column is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_jobs.rules.rules import Ints


def gather_texts(column: pa.ChunkedArray, row: Ints) -> pa.Array:
    """The texts of these rows, null for row -1; together they must be less than 2 GB, the column may be more.

    Arrow's own `take` on several chunks joins them all first: a copy of everything, and refused from 2 GB on.

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
