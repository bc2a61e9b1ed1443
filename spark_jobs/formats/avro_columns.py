"""The JSON texts of a column of Avro values, as pyruhvro gives them for the plain schema. Texts are the same as those of `avro_values`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_jobs.formats.avro_schema import Node
from spark_jobs.formats.avro_values import bytes_text, constant_text, decimal_text
from spark_jobs.formats.json_text import (
    UnescapedTexts,
    booleans,
    field_strings,
    flat,
    lists,
    maps,
    numbers,
    objects,
    strings,
)
from spark_jobs.formats.wanted import Tree, below, is_wanted


def column_texts(node: Node, column: pa.Array, wanted: Tree | None) -> pa.Array:
    """One text a row, null where the value is null or its parent is."""
    if node.kind == "record":
        values = dict(zip(column.type.names, column.flatten(), strict=True))
        fields = [
            (name, _field(part, values.get(f"f{rank}"), len(column), below(name, wanted)), None)
            for rank, (name, part) in enumerate(node.fields)
            if is_wanted(name, wanted)
        ]
        return objects(fields, column.is_valid())
    if node.kind == "union":
        assert node.optional, "only unions of null and one type are decoded in bulk"
        return column_texts(node.optional, column, wanted)
    if node.kind == "array":
        return lists(column, column_texts(node.parts[0], flat(column), None))
    if node.kind == "map":
        keys, values = flat(column).flatten()
        # A map whose values take no byte is not decoded in bulk.
        return maps(column, strings(keys), column_texts(node.parts[0], values, None))
    return _scalars(node, column)


def _field(node: Node, column: pa.Array | None, rows: int, wanted: Tree | None) -> pa.Array | UnescapedTexts:
    if column is None:
        return pa.repeat(pa.scalar(constant_text(node), pa.string()), rows)
    if node.kind in ("string", "enum"):
        return field_strings(column)
    return column_texts(node, column, wanted)


def _scalars(node: Node, column: pa.Array) -> pa.Array:
    if node.kind == "boolean":
        return booleans(column)
    if node.kind in ("string", "enum"):
        return strings(column)
    if node.kind != "bytes":
        return numbers(column)
    values: list[Any] = column.view(pa.binary()).to_pylist()
    scale = node.scale if node.is_decimal else None
    texts = [None if v is None else bytes_text(v) if scale is None else decimal_text(v, scale) for v in values]
    return pa.array(texts, pa.string())


def check_texts(node: Node, column: pa.Array) -> None:
    """Raises ArrowInvalid (a ValueError) if a string is not UTF-8, wanted or not: pyruhvro does not look."""
    if node.kind == "string":
        column.view(pa.binary()).cast(pa.string())
    elif node.kind == "union":
        assert node.optional, "only unions of null and one type are decoded in bulk"
        check_texts(node.optional, column)
    elif node.kind == "array":
        check_texts(node.parts[0], flat(column))
    elif node.kind == "map":
        keys, values = flat(column).flatten()
        check_texts(Node("string"), keys)
        check_texts(node.parts[0], values)
    elif node.kind == "record":
        for name, value in zip(column.type.names, column.flatten(), strict=True):
            check_texts(node.fields[int(name.removeprefix("f"))][1], value)
