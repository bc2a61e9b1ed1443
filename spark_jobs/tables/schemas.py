"""The tables of a pipeline: their names and their columns. Every write is checked against these declarations."""

from __future__ import annotations

from functools import cache

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from include.config.pipeline import Pipeline, Side
from spark_jobs.rules.rules import REVERSED, SOURCE, source_names
from spark_jobs.tables.records import OUTPUT_COLUMNS, PLAN_COLUMNS

LEDGER = "batch_ledger"
COMPOUNDS = "compound_events"
REJECTED = "rejected_events"
OPEN = "open_events"
METRICS = "quality_metrics"

# One struct an input partition; `OffsetRange` in ledger.py documents the fields.
_OFFSETS = (
    "array<struct<topic: string, partition: int, from_offset: bigint, until_offset: bigint, end_offset: bigint, "
    "max_ts: bigint, lost: bigint, began: bigint, cut_from: bigint, cut: bigint, epoch: int>>"
)
_TYPES: dict[str, type[DataType]] = {
    "bigint": LongType,
    "binary": BinaryType,
    "boolean": BooleanType,
    "double": DoubleType,
    "int": IntegerType,
    "string": StringType,
    "timestamp": TimestampType,
}
_SOURCE_TYPES = dict(zip(SOURCE.names, ("STRING", "INT"), strict=True))


def raw_table(side: Side) -> str:
    return f"raw_{side.payload}"


def declared_schema(pipeline: Pipeline, table: str) -> StructType:
    return _columns(schemas(pipeline)[table])


def declared_columns(pipeline: Pipeline, table: str) -> list[tuple[str, str]]:
    """Name and SQL type of each column, without Spark."""
    parts = (each.partition(" ") for each in _outer_parts(schemas(pipeline)[table]))
    return [(name.strip("`"), kind) for name, _, kind in parts]


def _outer_parts(declaration: str) -> list[str]:
    """The columns of a declaration in SQL: split where a comma is in no `<…>`.

    >>> _outer_parts("a STRING, b ARRAY<STRUCT<c: INT, d: INT>>, e INT")
    ['a STRING', 'b ARRAY<STRUCT<c: INT, d: INT>>', 'e INT']
    """
    parts, depth = [""], 0
    for character in declaration:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


@cache
def _columns(declaration: str) -> StructType:
    """The columns of a declaration in SQL. Spark would parse it, too, but only in a session."""
    columns = StructType()
    for part in _outer_parts(declaration):
        # In a STRUCT<…> a colon follows the name.
        name, kind = part.split(maxsplit=1)
        columns.add(name.strip("`:"), _type(kind))
    return columns


def _type(declared: str) -> DataType:
    """A type in SQL. Raises ValueError for one that no table has."""
    name, _, rest = declared.strip().partition("<")
    inner = rest[:-1]
    match name.lower():
        case "array":
            return ArrayType(_type(inner))
        case "map":
            key, value = map(_type, _outer_parts(inner))
            return MapType(key, value)
        case "struct":
            return _columns(inner)
    if rest or name.lower() not in _TYPES:
        raise ValueError(f"not a type of these tables: {declared}")
    return _TYPES[name.lower()]()


def schemas(pipeline: Pipeline) -> dict[str, str]:
    """Table name -> columns in SQL. Times are epoch ms (BIGINT), payloads JSON texts as they came, null where there is none."""
    key = ", ".join(f"`{name}` STRING" for name in pipeline.key)
    source = "".join(f", {name} {_SOURCE_TYPES[name]}" for name in source_names(pipeline))
    raw = (
        "topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
        f"headers ARRAY<STRUCT<`key`: STRING, value: BINARY>>, ts BIGINT, {key}, payload STRING, problem STRING, batch_id BIGINT{source}"
    )
    left, right = pipeline.sides
    coordinates = ", ".join(
        f"{side}_ts BIGINT, {side}_topic STRING, {side}_partition INT, {side}_offset BIGINT"
        + f", {side}_{REVERSED} BOOLEAN" * pipeline.is_unordered
        + "".join(f", {side}_{name} {_SOURCE_TYPES[name]}" for name in source_names(pipeline))
        for side in ("left", "right")
    )
    direction = f"{REVERSED} BOOLEAN, " * pipeline.is_unordered
    return {
        raw_table(left): raw,
        raw_table(right): raw,
        OPEN: f"{key}, side STRING, topic STRING, partition INT, offset BIGINT, ts BIGINT, payload STRING, {direction}batch_id BIGINT{source}",
        COMPOUNDS: (
            f"pair_id STRING, revision INT, op STRING, kind STRING, {key}, ts BIGINT, `{left.payload}` STRING, "
            f"`{right.payload}` STRING, {coordinates}, batch_id BIGINT"
        ),
        REJECTED: (
            "reason STRING, topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
            "batch_id BIGINT"
        ),
        METRICS: (
            "batch_id BIGINT, judged_at TIMESTAMP, success BOOLEAN, metrics MAP<STRING, DOUBLE>, "
            "breakdowns ARRAY<STRUCT<family: STRING, number: BIGINT, bucket: BIGINT, field: STRING, value: STRING>>"
        ),
        LEDGER: (
            f"batch_id BIGINT, kind STRING, step STRING, plan {PLAN_COLUMNS}, offsets {_OFFSETS}, wall_time BIGINT, clock BIGINT, "
            f"counts MAP<STRING, BIGINT>, output {OUTPUT_COLUMNS}, versions MAP<STRING, BIGINT>, started_at TIMESTAMP, finished_at TIMESTAMP, "
            "config_hash STRING, config STRING"
        ),
    }
