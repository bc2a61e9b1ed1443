"""The one way in which a table changes: a fenced commit of delta-rs, made of files that are complete and files that go.

A commit is a put of the log's next file that must not exist yet, so of two writers one loses and looks again; on a folder, S3, Azure and GCS
alike. Its transaction version (pipeline and step, batch_id) makes sure that no batch changes a table twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame

from include.config.pipeline import Pipeline
from include.config.store import Store
from spark_jobs.faults.fault_points import fault_point
from spark_jobs.tables.delta_log import changed, dataset, holding, place_for_files
from spark_jobs.tables.parquet_files import WRITTEN, FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import DataFile
from spark_jobs.tables.warehouse import TableProblem, Warehouse, declared_schema, raw_table

Action = AddAction | RemoveAction
_TRIES = 20
# Logs are cut by maintenance alone: the hook would list the whole log after each commit.
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class Going(NamedTuple):
    """The rows that a commit takes away: those of the batches first..last, both inclusive; `last` None: of all from first on."""

    first: int
    last: int | None


EVERYTHING = Going(0, None)


def commit(
    warehouse: Warehouse, table: str, files: Iterable[NewFile], step: str, batch_id: int, going: Going | None = None
) -> None:
    """Adds files that were written at the table's place (`Warehouse.place_for_files`), and takes away the rows that go; at most once for
    (`step`, `batch_id`): where the table has seen this version or a later one, nothing is done.
    """
    store, added = warehouse.store(table), list(files)

    def actions(known: DeltaTable) -> list[Action]:
        place = place_for_files(store, known, declared_schema(warehouse.pipeline, table))
        return [*taken(known, place, going), *map(_add, added)]

    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        commit_once(store, actions, *_fence(warehouse, step, batch_id))


def commit_rows(
    warehouse: Warehouse, table: str, rows: list[dict[str, Any]], step: str, batch_id: int, among: str = ""
) -> None:
    """Appends a few rows (column -> value, all declared columns), fenced just like `commit`, among those of one text."""
    store = warehouse.store(table)
    written: list[NewFile] = []

    def actions(known: DeltaTable) -> list[Action]:
        place = place_for_files(store, known, declared_schema(warehouse.pipeline, table))
        if not written:
            with FileWriter(place.store) as writer:
                writer.write(pa.RecordBatch.from_pylist(rows, schema=place.schema))
                file = writer.finish()
            written.extend([file] if file else [])
        return list(map(_add, written))

    with _between_fault_points(warehouse.pipeline, step), warehouse.at_work_on(table):
        commit_once(store, actions, *_fence(warehouse, step, batch_id, among))


def commit_frame(
    warehouse: Warehouse, table: str, rows: DataFrame, step: str, batch_id: int, going: Going | None = None
) -> None:
    """As `commit`, with rows that Spark has: the workers write them. Raises TableProblem if they are not of the declared columns."""
    declared = declared_schema(warehouse.pipeline, table)
    given = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
    wanted = [(field.name, field.dataType.simpleString()) for field in declared.fields]
    if given != wanted:
        raise TableProblem(f"{table}: rows do not have the declared columns: {set(given) ^ set(wanted) or 'other order'}")
    place = warehouse.place_for_files(table)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with FileWriter(place.store) as file:
            for batch in batches:
                file.write(
                    pa.record_batch(
                        [column.cast(field.type) for column, field in zip(batch.columns, place.schema, strict=True)],
                        schema=place.schema,
                    )
                )
            written = file.finish()
        if written is not None:
            yield pa.RecordBatch.from_pylist([written._asdict()])

    with warehouse.at_work_on(table):
        files = [] if is_committed(warehouse, table, step, batch_id) else rows.mapInArrow(write, WRITTEN).collect()
    commit(warehouse, table, [NewFile(*row) for row in files], step, batch_id, going)


def remove_batches(warehouse: Warehouse, table: str, until: int) -> None:
    """Takes the rows of all batches up to `until`, inclusive, out of the table, fenced just like `commit`.

    Under a step of its own: the table's own writes have used up the transaction versions of these batches.
    """
    commit(warehouse, table, [], removal_step(table), until, Going(0, until))


def is_committed(warehouse: Warehouse, table: str, step: str, batch_id: int) -> bool:
    """Whether a change of `table` for (`step`, `batch_id`), or a later batch, would be skipped."""
    with warehouse.at_work_on(table), holding(warehouse.store(table)) as known:
        return _has_version(known, f"{warehouse.pipeline.name}.{step}", batch_id)


def commit_once(
    store: Store, actions: Callable[[DeltaTable], list[Action]], app_id: str, version: int, message: str
) -> None:
    """Makes the change unless the table has `version`, or a later one, of `app_id`.

    The commit is made on exactly the table that was looked at, across processes, too: a writer that comes second looks again. After an error
    whose outcome is unknown, the table is read before anything else: what was committed counts. Raises delta-rs's own errors.
    """
    fenced = CommitProperties(
        custom_metadata={"userMetadata": message}, max_commit_retries=0, app_transactions=[Transaction(app_id, version)]
    )
    for tries_left in reversed(range(_TRIES)):
        with holding(store) as table:
            if _has_version(table, app_id, version):
                return
            changed(store)
            try:
                table.create_write_transaction(
                    actions(table), "append", table.schema(), commit_properties=fenced, post_commithook_properties=_HOOKS
                )
                return
            except CommitFailedError:
                if not tries_left:
                    raise
            except (DeltaError, OSError):
                # The put may have arrived though its answer did not, and what failed may have come after it.
                with holding(store) as again:
                    if _has_version(again, app_id, version):
                        return
                raise


def taken(table: DeltaTable, place: FilePlace, going: Going | None) -> Iterator[Action]:
    """The actions that take rows away: files that have no others go as they are, of the rest the rows that stay are written anew."""
    if going is None:
        return
    now, first, last = _now(), going.first, going.last
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        low, high = file.get("min.batch_id"), file.get("max.batch_id")
        if (high is not None and high < first) or (low is not None and last is not None and low > last):
            continue
        # Delta writes the name down with escapes, once.
        name, size = unquote(file["path"]), file["size_bytes"]
        yield RemoveAction(name, True, now, size)
        inside = low is not None and high is not None and low >= first and (last is None or high <= last)
        if not inside and going != EVERYTHING and (kept := _rows_that_stay(name, size, place, going)):
            yield _add(kept)


def _rows_that_stay(name: str, size: int, place: FilePlace, going: Going) -> NewFile | None:
    """A new file with the rows of this one that do not go; None if there are none."""
    number = ds.field("batch_id")
    stay = number < going.first if going.last is None else (number < going.first) | (number > going.last)
    rows = dataset(place.store, place.schema, [DataFile(name, size, 0)])
    with FileWriter(place.store) as writer:
        # One piece after the other: rows may be large.
        for piece in rows.to_batches(filter=stay, batch_readahead=1, fragment_readahead=1):
            writer.write(piece)
        return writer.finish()


def _add(file: NewFile) -> AddAction:
    return AddAction(file.name, file.size, {}, _now(), True, file.stats)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _has_version(table: DeltaTable, app_id: str, version: int) -> bool:
    known = table.transaction_version(app_id)
    return known is not None and known >= version


def _fence(warehouse: Warehouse, step: str, batch_id: int, among: str = "") -> tuple[str, int, str]:
    """Who changes a table, with which version, and what the commit says it is."""
    return f"{warehouse.pipeline.name}.{step}{among}", batch_id, f"{step} of batch {batch_id}"


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
