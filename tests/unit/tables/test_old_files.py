"""Which files go at once: those that a commit removed, and old ones that no commit names; never one that somebody may still commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import obstore
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from include.config.store import Store
from spark_jobs.tables.commit import ALL_BATCHES, commit_once, removal_actions
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.old_files import delete_old_files
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.tables import Tables
from tests.helpers.table_in_a_folder import add_of, written
from tests.helpers.timeline import CALLS

SCHEMA = pa.schema([("batch_id", pa.int64())])


def new_file(store, number):
    return written(store, pa.RecordBatch.from_pylist([{"batch_id": number}], schema=SCHEMA))


@pytest.fixture
def tables(tmp_path):
    """open_events with one row, a new file with every one of three commits."""
    found = Tables(str(tmp_path), CALLS)
    store = found.store("open_events")
    create(store.made(), StructType().add("batch_id", LongType()), {})
    for number in range(3):
        file = new_file(store, number)
        commit_once(
            store,
            lambda known, file=file: [*removal_actions(known, FilePlace(store, SCHEMA), ALL_BATCHES), add_of(file)],
            "test",
            number,
            "test",
        )
    return found


def there(store: Store) -> set[str]:
    return {file["path"] for file in obstore.list(store.client).collect() if file["path"].endswith(".parquet")}


def test_removed_files_go_and_those_of_kept_versions_stay(tables):
    store = tables.store("open_events")
    long_ago = datetime.now(UTC) - timedelta(days=1)
    assert len(there(store)) == 3
    assert delete_old_files(tables, "open_events", long_ago, range(2, 4)) == 1
    assert delete_old_files(tables, "open_events", long_ago) == 1
    assert len(there(store)) == 1
    assert [row["batch_id"] for row in tables.newest("open_events").to_pyarrow_table().to_pylist()] == [2]


def test_a_file_without_a_commit_goes_if_it_is_older(tables):
    store = tables.store("open_events")
    delete_old_files(tables, "open_events", datetime.now(UTC) - timedelta(days=1))
    left = new_file(store, 9)
    assert delete_old_files(tables, "open_events", datetime.now(UTC) - timedelta(days=1)) == 0
    assert left.name in there(store)
    assert delete_old_files(tables, "open_events", datetime.now(UTC) + timedelta(days=1)) == 1
    assert left.name not in there(store) and len(there(store)) == 1
