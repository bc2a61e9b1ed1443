"""Brings the key fields of raw rows into the pair's order where the rows are read, so that the rest of a job sees one key for each pair."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from include.config.pipeline import Pipeline
from spark_jobs.rules.key_order import order_keys
from spark_jobs.rules.rules import REVERSED
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.schemas import declared_schema, raw_table


def in_key_order(pipeline: Pipeline, columns: Sequence[str], made: InWorker | None = None) -> InWorker | None:
    """What workers make of these columns of raw rows: the rows of `order_keys`, or what is `made` of those.

    With `as_is` that is `made` itself: where the order of the key fields matters, nothing is done.
    """
    if not pipeline.is_unordered:
        return made
    # Both raw tables have the same columns.
    whole = to_arrow_schema(declared_schema(pipeline, raw_table(pipeline.left)))
    ordered = pa.schema([whole.field(name) for name in columns]).append(pa.field(REVERSED, pa.bool_()))
    if made is None:
        return InWorker(lambda rows: order_keys(rows, pipeline), ordered)
    return InWorker(lambda rows: made.make(order_keys(rows, pipeline)), made.columns or ordered, made.is_summary)
