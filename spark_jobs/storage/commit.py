"""The functions through which every Delta table is changed: by rows that Spark has, by a few that are here, by files of workers, by age."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter

from include.pipeline_config import Pipeline
from spark_jobs.fault_points import fault_point
from spark_jobs.session import expect_rows
from spark_jobs.storage.delta_log import add_files, append, has_version
from spark_jobs.storage.removal import remove_up_to
from spark_jobs.storage.table_files import NewFile
from spark_jobs.storage.tables import TableProblem, Warehouse, declared_schema, raw_table


def commit(
    warehouse: Warehouse,
    table: str,
    rows: DataFrame,
    step: str,
    batch_id: int,
    mode: str = "append",
    replacing: str | None = None,
) -> None:
    """Changes `table` at most once for (`step`, `batch_id`): Delta skips a version it has seen, or an older one, silently.

    `mode` is append or overwrite; `replacing`: with overwrite, the SQL condition of the rows that go, which the new ones must
    fulfil, too. Raises TableProblem if the rows are not of the table's declared schema, or the table cannot be written. Whoever
    must know what is in the table afterwards reads it: a skipped write looks like a successful one.
    """
    declared = declared_schema(warehouse.pipeline, table)
    given = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
    wanted = [(field.name, field.dataType.simpleString()) for field in declared.fields]
    if given != wanted:
        raise TableProblem(f"{table}: rows do not have the declared columns: {set(given) ^ set(wanted) or 'other order'}")
    writer = rows.write.mode(mode)
    if replacing is not None:
        writer = writer.option("replaceWhere", replacing)
    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        _save(warehouse, table, writer, step, batch_id)


def commit_rows(
    warehouse: Warehouse, table: str, rows: list[dict[str, Any]], step: str, batch_id: int, among: str = ""
) -> None:
    """Appends a few rows (column -> value, all declared columns in their order), fenced just like `commit`, among those of one text."""
    app_id = _app_id(warehouse, step) + among
    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        if append(warehouse.path(table), rows, app_id, batch_id, _told(step, batch_id)):
            return
        # The batch's own plans may have been compiled; for a handful of rows that takes longer than the write.
        expect_rows(warehouse.spark, len(rows))
        declared = declared_schema(warehouse.pipeline, table)
        frame = warehouse.spark.createDataFrame([tuple(row[name] for name in declared.names) for row in rows], declared)
        _save(warehouse, table, frame.write.mode("append"), step, batch_id, among)


def commit_files(
    warehouse: Warehouse, table: str, files: list[NewFile], step: str, batch_id: int, mode: str = "append"
) -> None:
    """As `commit`, by files that workers have written into the table's folder (`Warehouse.place_for_files`)."""
    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        add_files(warehouse.path(table), files, mode, _app_id(warehouse, step), batch_id, _told(step, batch_id))


def remove_batches(warehouse: Warehouse, table: str, until: int) -> None:
    """Takes the rows of all batches up to `until`, inclusive, out of the table, fenced just like `commit`.

    Under a step of its own: the table's own writes have used up the transaction versions of these batches.
    """
    step, declared = removal_step(table), declared_schema(warehouse.pipeline, table)
    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        once = _app_id(warehouse, step), until, _told(step, until)
        if not remove_up_to(warehouse.path(table), declared, "batch_id", until, *once):
            nothing = warehouse.spark.createDataFrame([], declared)
            writer = nothing.write.mode("overwrite").option("replaceWhere", f"batch_id <= {until}")
            _save(warehouse, table, writer, step, until)


def is_committed(warehouse: Warehouse, table: str, step: str, batch_id: int) -> bool:
    """Whether a change of `table` for (`step`, `batch_id`), or a later batch, would be skipped; False where only Delta knows."""
    with warehouse.at_work_on(table):
        return has_version(warehouse.path(table), _app_id(warehouse, step), batch_id)


def _save(warehouse: Warehouse, table: str, writer: DataFrameWriter, step: str, batch_id: int, among: str = "") -> None:
    fenced = (
        writer.format("delta")
        .option("txnAppId", _app_id(warehouse, step) + among)
        .option("txnVersion", batch_id)
        .option("userMetadata", _told(step, batch_id))
    )
    # Delta would make a table that was deleted anew, with the rows of one batch.
    warehouse.read(table)
    try:
        fenced.save(warehouse.path(table))
    except Exception as error:
        # Spark Connect and py4j each have a class of their own for what Delta throws.
        if "DELTA_CONCURRENT_TRANSACTION" not in str(error):
            raise
        # Somebody has made this very commit a moment earlier, so now it is skipped.
        fenced.save(warehouse.path(table))


def _app_id(warehouse: Warehouse, step: str) -> str:
    return f"{warehouse.pipeline.name}.{step}"


def _told(step: str, batch_id: int) -> str:
    return f"{step} of batch {batch_id}"


@contextmanager
def _between_fault_points(pipeline: Pipeline, step: str) -> Iterator[None]:
    name = _of_any_pipeline(pipeline, step)
    fault_point(f"before_{name}")
    yield
    fault_point(f"after_{name}")


def _of_any_pipeline(pipeline: Pipeline, step: str) -> str:
    """The step as fault points call it: raw tables by their side, for their names are the pipeline's own."""
    sides = {raw_table(pipeline.left): "raw_left", raw_table(pipeline.right): "raw_right"}
    return next(
        (step.removesuffix(table) + name for table, name in sides.items() if step in (table, removal_step(table))), step
    )


def removal_step(table: str) -> str:
    """The step under which rows of a table are removed for their age."""
    return f"removed_{table}"
