"""The files of one table: small ones put together, old ones deleted, the log cut. Only SQL, so on any Spark and file system."""

from __future__ import annotations

from spark_jobs.fault_points import fault_point
from spark_jobs.storage.tables import CHECKPOINT_EVERY, Warehouse

_MB = 1024 * 1024
_NEVER = "1000000000"
# Files that are smaller are put together, up to so much: what was put together once is seldom rewritten.
MAINTENANCE_SETTINGS = {
    "spark.databricks.delta.optimize.minFileSize": str(32 * _MB),
    "spark.databricks.delta.optimize.maxFileSize": str(128 * _MB),
    # By default VACUUM starts 10,000 tasks to list a folder.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def compact(warehouse: Warehouse, table: str) -> int:
    """Puts the small files together; gives how many there were. The rows stay the same, and so does what stands in the ledger."""
    fault_point("before_compacted")
    with warehouse.at_work_on(table):
        done = warehouse.spark.sql(f"OPTIMIZE {warehouse.sql_name(table)}").select("metrics.numFilesRemoved").collect()
    fault_point("after_compacted")
    return sum(row[0] for row in done)


def keep(warehouse: Warehouse, table: str, kept_ms: int, needed_ms: int = 0) -> None:
    """Deletes the files that left the table longer ago than `kept_ms`, or `needed_ms` if that is longer, and sets how long its log is kept."""
    longest = max(kept_ms, needed_ms)
    fault_point("before_vacuumed")
    # Not by RETAIN, which Delta does not heed any more.
    kept = {"delta.logRetentionDuration": _interval(longest), "delta.deletedFileRetentionDuration": _interval(longest)}
    _set(warehouse, table, {**kept, "delta.checkpointInterval": _NEVER})
    with warehouse.at_work_on(table):
        warehouse.spark.sql(f"VACUUM {warehouse.sql_name(table)}").collect()
    fault_point("after_vacuumed")


def checkpoint(warehouse: Warehouse, table: str, cut_log: bool) -> None:
    """Makes a checkpoint; `cut_log`: and deletes what is too old of the log, as `keep` has set. Other writers never delete any of it.

    Delta has no command for either: it makes a checkpoint after a commit whose number the interval divides, and then deletes the log up to
    the last checkpoint before which all is too old. That must not be the one that follows the version in use: hence the commit of `keep` makes none.
    """
    fault_point("before_checkpoint")
    _set(warehouse, table, {"delta.checkpointInterval": "1", "delta.enableExpiredLogCleanup": str(cut_log).lower()})
    _set(warehouse, table, {"delta.checkpointInterval": CHECKPOINT_EVERY, "delta.enableExpiredLogCleanup": "false"})
    fault_point("after_checkpoint")


def _set(warehouse: Warehouse, table: str, properties: dict[str, str]) -> None:
    told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    with warehouse.at_work_on(table):
        warehouse.spark.sql(f"ALTER TABLE {warehouse.sql_name(table)} SET TBLPROPERTIES ({told})").collect()


def _interval(milliseconds: int) -> str:
    return f"interval {-(-milliseconds // 1000)} seconds"
