"""Commits that changed rows and are of no pipeline's step: named by table, version and operation; everything else is not."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructType

from include.config.store import Store
from spark_jobs.tables.commit import commit_once
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.foreign_commits import foreign_commits
from spark_jobs.tables.parquet_files import FilePlace
from tests.helpers.table_in_a_folder import add_of, written

SCHEMA = pa.schema([("batch_id", pa.int64()), ("payload", pa.string())])


@pytest.fixture
def place(tmp_path):
    """Of a table with three commits of the pipeline `calls` (versions 1 to 3), a row each."""
    store = Store(str(tmp_path / "compound_events"))
    create(store, StructType().add("batch_id", LongType()).add("payload", StringType()), {})
    for batch in (1, 2, 3):
        rows = pa.RecordBatch.from_pylist([{"batch_id": batch, "payload": "p"}], schema=SCHEMA)
        file = add_of(written(FilePlace(store, SCHEMA).store, rows))
        commit_once(store, lambda _, file=file: [file], "calls.compound_events", batch, "said")
    return store


def found(store, after=0, until=None, pipeline="calls"):
    until = DeltaTable(store.uri).version() if until is None else until
    return [*foreign_commits(store, pipeline, after, until)]


def test_steps_of_the_pipeline_are_none_and_those_of_another_are(place):
    assert found(place) == []
    assert found(place, pipeline="call") == [(1, "WRITE"), (2, "WRITE"), (3, "WRITE")]


def test_whatever_changes_rows_is_named(place):
    table = DeltaTable(place.uri)
    table.delete("batch_id = 2")
    table.update(updates={"payload": "'q'"}, predicate="batch_id = 3")
    write_deltalake(table, pa.table({"batch_id": [9], "payload": ["new"]}, schema=SCHEMA), mode="append")
    assert found(place) == [(4, "DELETE"), (5, "UPDATE"), (6, "WRITE")]
    assert found(place, after=4, until=5) == [(5, "UPDATE")]


def test_what_changes_no_row_is_none(place):
    table = DeltaTable(place.uri)
    table.optimize.compact()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert table.version() > 4 and found(place) == []


def test_versions_that_the_log_no_longer_has_are_left_out(place, tmp_path):
    DeltaTable(place.uri).delete("batch_id = 2")
    (tmp_path / "compound_events/_delta_log" / f"{4:020}.json").unlink()
    assert found(place, until=4) == []
