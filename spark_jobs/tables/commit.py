"""The one way to change a table: a fenced commit of delta-rs that adds complete files and removes others.

A commit is a put of the log's next file that must not exist yet, so one of two writers loses and reads the table again; on a folder, S3,
Azure and GCS alike. Its transaction version (pipeline and step, batch_id) makes sure that no batch changes a table twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from obstore.exceptions import BaseError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from include.config.pipeline import Pipeline
from include.config.store import Store
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.tables.data_files import DataFile, all_files, files_of
from spark_jobs.tables.delta_log import Action, commit_actions, lock_newest, place_for_files
from spark_jobs.tables.parquet_files import NEW_FILE, FilePlace, NewFile, merge_into_row_groups, write_file
from spark_jobs.tables.read_files import Share, read_share
from spark_jobs.tables.schemas import declared_schema, raw_table
from spark_jobs.tables.tables import TableProblem, Tables

_TRIES = 20
# Only maintenance cuts logs: the hook would list the whole log after each commit.
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class BatchRange(NamedTuple):
    """The batches first..last, both inclusive; `last` None: all from `first` on."""

    first: int
    last: int | None


ALL_BATCHES = BatchRange(0, None)


def commit(
    warehouse: Tables, table: str, files: Iterable[NewFile], step: str, batch_id: int, remove: BatchRange | None = None
) -> None:
    """Adds files that were written at the table's place (`Tables.place_for_files`), and removes the rows of the batches `remove`.

    Does nothing if the table has a change of (`step`, `batch_id`) or of a later batch.
    """
    added = list(files)

    def actions(known: DeltaTable, place: FilePlace) -> list[Action]:
        return [*removal_actions(known, place, remove), *map(_add, added)]

    _commit(warehouse, table, actions, step, batch_id)


def commit_rows(
    warehouse: Tables, table: str, rows: list[dict[str, Any]], step: str, batch_id: int, among: str = ""
) -> None:
    """Appends a few rows (column -> value, all declared columns), fenced as by `commit`, among the commits with the same text `among`."""
    written: list[NewFile] = []

    def write_once(known: DeltaTable, place: FilePlace) -> list[Action]:
        if not written:
            pieces = [pa.RecordBatch.from_pylist(rows, schema=place.schema)]
            written.extend(filter(None, [write_file(place.store, pieces)]))
        return [_add(file) for file in written]

    _commit(warehouse, table, write_once, step, batch_id, among=among)


class Rewrite(NamedTuple):
    """What becomes of some rows of a table. `finds` says of rows with these `columns` which they are; `make` returns all rows as they are to be,
    of rows with all columns and what `finds` said of them. Only files that can have rows of the `batches` (ascending) are read.
    """

    batches: Sequence[int]
    columns: Sequence[str]
    finds: Callable[[pa.RecordBatch], pa.BooleanArray]
    make: Callable[[pa.RecordBatch, pa.BooleanArray], pa.RecordBatch]


def commit_rewritten(warehouse: Tables, table: str, rewrite: Rewrite, step: str, batch_id: int) -> None:
    """Puts a new file in the place of each that has rows which the rewrite finds; fenced as by `commit`. Reads and writes in this process."""

    def actions(known: DeltaTable, place: FilePlace) -> list[Action]:
        return [action for file in files_of(known, rewrite.batches) for action in _rewritten(file, place, rewrite)]

    _commit(warehouse, table, actions, step, batch_id)


def _rewritten(file: DataFile, place: FilePlace, rewrite: Rewrite) -> Iterator[Action]:
    share, names = Share((file,)), pa.schema([place.schema.field(name) for name in rewrite.columns])
    if not any(pc.any(rewrite.finds(rows)).as_py() for rows in read_share(place.store, share, names, None)):
        return
    rows = (rewrite.make(rows, rewrite.finds(rows)) for rows in read_share(place.store, share, place.schema, None))
    yield RemoveAction(file.name, True, _now(), file.size)
    if new := write_file(place.store, merge_into_row_groups(rows)):
        yield _add(new)


def _commit(
    warehouse: Tables,
    table: str,
    change: Callable[[DeltaTable, FilePlace], list[Action]],
    step: str,
    batch_id: int,
    among: str = "",
) -> None:
    store = warehouse.store(table)

    def actions(known: DeltaTable) -> list[Action]:
        return change(known, place_for_files(store, known, declared_schema(warehouse.pipeline, table)))

    app_id = f"{warehouse.pipeline.name}.{step}{among}"
    point = _step_of_any_pipeline(warehouse.pipeline, step)
    with between_fault_points(point), warehouse.translate_table_errors(table):
        commit_once(store, actions, app_id, batch_id, f"{step} of batch {batch_id}")


def commit_frame(
    warehouse: Tables, table: str, rows: DataFrame, step: str, batch_id: int, remove: BatchRange | None = None
) -> None:
    """As `commit`, with rows of Spark, which its workers write. Raises TableProblem if they do not have the declared columns."""
    declared = declared_schema(warehouse.pipeline, table)
    given, wanted = ([(each.name, each.dataType.simpleString()) for each in columns] for columns in (rows.schema, declared))
    if given != wanted:
        raise TableProblem(f"{table}: rows do not have the declared columns: {set(given) ^ set(wanted) or 'other order'}")
    place = warehouse.place_for_files(table)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = ([column.cast(field.type) for column, field in zip(batch, place.schema, strict=True)] for batch in batches)
        file = write_file(place.store, (pa.record_batch(each, schema=place.schema) for each in columns))
        if file is not None:
            yield file.as_row()

    with warehouse.translate_table_errors(table):
        done = is_committed(warehouse, table, step, batch_id)
        files = [] if done else NewFile.all_of(rows.mapInArrow(write, from_arrow_schema(NEW_FILE)).toArrow())
    commit(warehouse, table, files, step, batch_id, remove)


def remove_batches(warehouse: Tables, table: str, until: int) -> None:
    """Removes the rows of all batches up to `until`, inclusive, fenced as by `commit`.

    The fence is of a step of its own: the table's own writes have used the transaction versions of these batches.
    """
    commit(warehouse, table, [], _removal_step(table), until, BatchRange(0, until))


def is_committed(warehouse: Tables, table: str, step: str, batch_id: int) -> bool:
    """Whether the table has a change of (`step`, `batch_id`) or of a later batch, so that `commit` would do nothing."""
    with warehouse.translate_table_errors(table), lock_newest(warehouse.store(table)) as known:
        return _has_version(known, f"{warehouse.pipeline.name}.{step}", batch_id)


def commit_once(
    store: Store, actions: Callable[[DeltaTable], list[Action]], app_id: str, version: int, message: str
) -> None:
    """Commits the actions unless the table has `version`, or a later one, of `app_id`.

    The commit is made on exactly the version that `actions` got, across processes, too: the slower of two writers reads the table again.
    After an error whose outcome is unknown, the table decides: what was committed counts. Raises delta-rs's own errors.
    """
    fenced = CommitProperties(
        custom_metadata={"userMetadata": message}, max_commit_retries=0, app_transactions=[Transaction(app_id, version)]
    )
    for tries_left in reversed(range(_TRIES)):
        with lock_newest(store) as table:
            if _has_version(table, app_id, version):
                return
            try:
                commit_actions(store, table, actions(table), fenced, _HOOKS)
                return
            except CommitFailedError:
                if not tries_left:
                    raise
            except (DeltaError, OSError, BaseError):
                # The put may have arrived without its answer, or the error may have come after it.
                with lock_newest(store) as again:
                    if _has_version(again, app_id, version):
                        return
                raise


def removal_actions(table: DeltaTable, place: FilePlace, remove: BatchRange | None) -> Iterator[Action]:
    """Yields the actions that remove the rows of the batches. A file that has other rows, too, is replaced by one with these."""
    if remove is None:
        return
    now, first, last = _now(), remove.first, remove.last
    for file in all_files(table):
        if not file.can_have(first, last):
            continue
        low, high = file.first_batch, file.last_batch
        yield RemoveAction(file.name, True, now, file.size)
        inside = low is not None and high is not None and low >= first and (last is None or high <= last)
        if not inside and remove != ALL_BATCHES and (kept := _copy_others(file, place, remove)):
            yield _add(kept)


def _copy_others(file: DataFile, place: FilePlace, remove: BatchRange) -> NewFile | None:
    """A new file with the rows of this one that stay; None if there are none."""
    number = ds.field("batch_id")
    stay = number < remove.first if remove.last is None else (number < remove.first) | (number > remove.last)
    # Piece by piece: rows may be large.
    return write_file(place.store, read_share(place.store, Share((file,)), place.schema, stay))


def _add(file: NewFile) -> AddAction:
    return AddAction(file.name, file.size, {}, _now(), True, file.stats)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _has_version(table: DeltaTable, app_id: str, version: int) -> bool:
    known = table.transaction_version(app_id)
    return known is not None and known >= version


def _step_of_any_pipeline(pipeline: Pipeline, step: str) -> str:
    """The step's name in FAULT_POINTS, where raw tables are named by their side: their own names differ by pipeline."""
    for side, name in ((pipeline.left, "raw_left"), (pipeline.right, "raw_right")):
        if step in (raw_table(side), _removal_step(raw_table(side))):
            return step.removesuffix(raw_table(side)) + name
    return step


def _removal_step(table: str) -> str:
    return f"removed_{table}"
