"""Histograms of durations: the buckets that the report counts by, and what its breakdowns have in them."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.quality.numbers import Breakdown

# Upper ends of a histogram's buckets, inclusive.
BOUNDS_MS = (
    *(100, 250, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 45_000, 60_000, 75_000, 90_000, 120_000, 150_000),
    *(180_000, 240_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
)

# Families of breakdowns: how far the closest unpaired event of the other side was, for the orphans of each side.
MISSES = ("miss_left", "miss_right")


def bound(column: str) -> Column:
    """The bucket of a duration, by its upper end (inclusive); null beyond the last one, or of null. `column`: a plain name."""
    # As a text: built as columns it takes a hundred calls, and a duration that is an expression would be in the plan once for each end.
    return F.expr(f"CASE {' '.join(f'WHEN {column} <= {each}L THEN {each}L' for each in BOUNDS_MS)} END")


def histogram(breakdowns: Iterable[Breakdown], *families: str) -> dict[int, int]:
    """Upper bound (ms, inclusive) -> number, of several families together; without what lies beyond the last bound, or has none.

    >>> rows = [Breakdown("miss_left", 2, 100), Breakdown("miss_right", 1, 100), Breakdown("miss_left", 5)]
    >>> histogram(rows, "miss_left", "miss_right")[100]
    3
    """
    numbers = dict.fromkeys(BOUNDS_MS, 0)
    for row in breakdowns:
        if row.family in families and row.bucket in numbers:
            numbers[row.bucket] += row.number
    return numbers
