"""The one function through which every Delta table is changed."""

from __future__ import annotations

from pyspark.sql import DataFrame

from include.pipeline_config import Pipeline
from spark_jobs.fault_points import fault_point
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
    name = _of_any_pipeline(warehouse.pipeline, step)
    fault_point(f"before_{name}")
    with warehouse.at_work_on(table):
        # Delta would make a table that was deleted anew, with the rows of one batch.
        warehouse.read(table)
        writer = (
            rows.write.format("delta")
            .mode(mode)
            .option("txnAppId", f"{warehouse.pipeline.name}.{step}")
            .option("txnVersion", batch_id)
            .option("userMetadata", f"{step} of batch {batch_id}")
        )
        (writer if replacing is None else writer.option("replaceWhere", replacing)).save(warehouse.path(table))
    fault_point(f"after_{name}")


def _of_any_pipeline(pipeline: Pipeline, step: str) -> str:
    """The step as fault points call it: raw tables by their side, for their names are the pipeline's own."""
    return {raw_table(pipeline.left): "raw_left", raw_table(pipeline.right): "raw_right"}.get(step, step)
