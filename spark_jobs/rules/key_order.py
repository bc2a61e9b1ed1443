"""With `key_order: any` the pair (a, b) is the pair (b, a): both have the key (smaller, larger), compared by the bytes of UTF-8.

Raw tables have the key fields of each event as they came. Pairing, and everything that follows from it, has the pair's order, and the direction
of each event: `reversed`, if its own order is the other one. Equal fields have one order only.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.rules import REVERSED

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def order_keys(rows: Rows, pipeline: Pipeline) -> Rows:
    """Rows with key fields as they came, in the pair's order and with the column `reversed`; `as_is`: the rows. A row without a key keeps what it has.

    >>> from dataclasses import replace
    >>> from include.config.pipeline import ANY_ORDER, PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> calls = load_pipeline(PIPELINES / "calls.yaml")
    >>> rows = pa.table({"user1": ["ann", "bob", "bob"], "user2": ["bob", "ann", "bob"]})
    >>> order_keys(rows, replace(calls, key_order=ANY_ORDER)).to_pydict()
    {'user1': ['ann', 'ann', 'bob'], 'user2': ['bob', 'bob', 'bob'], 'reversed': [False, True, False]}
    >>> order_keys(rows, calls) is rows
    True
    """
    if not pipeline.is_unordered:
        return rows
    first, second = (rows[name] for name in pipeline.key)
    # Arrow compares texts byte by byte.
    is_reversed = pc.fill_null(pc.greater(first, second), False)
    columns = {name: rows[name] for name in rows.schema.names}
    ordered = (pc.if_else(is_reversed, second, first), pc.if_else(is_reversed, first, second), is_reversed)
    columns |= dict(zip((*pipeline.key, REVERSED), ordered, strict=True))
    return type(rows).from_arrays(list(columns.values()), list(columns))


def order_key(key: tuple[str, ...], pipeline: Pipeline) -> tuple[str, ...]:
    """The key of the pair that an event with these key fields belongs to."""
    # Texts sort by code points, which is the order of their bytes in UTF-8.
    return tuple(sorted(key)) if pipeline.is_unordered else key
