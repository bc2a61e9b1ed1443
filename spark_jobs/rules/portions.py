"""Rows that may be large, in portions that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_jobs.rules.rules import Ints


def portions(sizes: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """From where (inclusive) to where (exclusive) the rows of each portion go, none empty: at most `limit` and one more row.

    `sizes`: bytes of each row. Together the portions are all rows, in their order.

    >>> list(portions(np.array([4, 4, 4, 30, 1]), 10))
    [(0, 2), (2, 3), (3, 5)]
    """
    portion = np.cumsum(sizes) // limit
    begins = np.append(0, np.flatnonzero(np.diff(portion)) + 1).tolist()
    yield from zip(begins, [*begins[1:], len(sizes)], strict=True)
