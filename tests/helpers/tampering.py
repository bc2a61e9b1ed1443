"""Tables changed behind the back of the jobs, as an operator or another program might."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake


def delete_rows(warehouse: Any, table: str, where: str | None = None) -> None:
    """Deletes the rows that fit (SQL), or all."""
    DeltaTable(warehouse.path(table)).delete(where)


def update_rows(warehouse: Any, table: str, values: dict[str, str], where: str | None = None) -> None:
    """Sets columns (SQL) in the rows that fit."""
    DeltaTable(warehouse.path(table)).update(updates=values, predicate=where)


def change_rows(warehouse: Any, table: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes all rows anew, each as `change` leaves it."""
    known = DeltaTable(warehouse.path(table))
    before = known.to_pyarrow_table()
    rows = before.to_pylist()
    for row in rows:
        change(row)
    write_deltalake(known, pa.Table.from_pylist(rows, schema=before.schema), mode="overwrite")


def append_frame(warehouse: Any, table: str, rows: Any) -> None:
    """Appends rows that Spark has, outside every batch; columns that it does not have are null."""
    known = DeltaTable(warehouse.path(table))
    schema, given = pa.schema(known.schema().to_arrow()), rows.toArrow()
    columns = [
        given[field.name].cast(field.type) if field.name in given.column_names else pa.nulls(given.num_rows, field.type)
        for field in schema
    ]
    write_deltalake(known, pa.table(columns, schema=schema), mode="append")


def replace_rows(warehouse: Any, table: str, rows: pa.Table, files: int) -> None:
    """Puts these rows into the place of all others, in so many files."""
    size = max(1, -(-rows.num_rows // files))
    for first in range(0, max(1, rows.num_rows), size):
        write_deltalake(warehouse.path(table), rows.slice(first, size), mode="append" if first else "overwrite")
