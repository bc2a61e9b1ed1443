"""Rows of old batches leave a table by their files; what is younger in the same file stays, as it was."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StructType

from spark_jobs.storage.delta_log import append
from spark_jobs.storage.removal import remove_up_to, rows_of_batches

DECLARED = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("batch_id", "long"), ("value", "binary"), ("payload", "string"))
        ],
    }
)


@pytest.fixture
def table(tmp_path):
    """Files of the batches 1; 2 and 3; 3 and 4; 5."""
    path = str(tmp_path / "a table")
    for batches in ((1,), (2, 3), (3, 4), (5,)):
        rows = [{"batch_id": each, "value": bytes([each]), "payload": None if each == 3 else f"p{each}"} for each in batches]
        schema = pa.schema([("batch_id", pa.int64()), ("value", pa.binary()), ("payload", pa.string())])
        write_deltalake(path, pa.Table.from_pylist(rows, schema=schema), mode="append")
    return path


def rows(path):
    return Counter(map(str, DeltaTable(path).to_pyarrow_table().to_pylist()))


def left(path):
    return sorted(row["batch_id"] for row in DeltaTable(path).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize(
    ("until", "batches", "new_files"),
    [
        (0, [1, 2, 3, 3, 4, 5], 0),
        (1, [2, 3, 3, 4, 5], 0),
        (2, [3, 3, 4, 5], 1),
        (3, [4, 5], 1),
        (4, [5], 0),
        (5, [], 0),
        (9, [], 0),
    ],
)
def test_whole_files_go_as_they_are_and_others_are_written_anew(table, until, batches, new_files):
    before, files = rows(table), set(DeltaTable(table).file_uris())
    assert remove_up_to(table, DECLARED, "batch_id", until, "app", until, "told")
    assert left(table) == batches
    assert rows(table) - before == Counter()
    assert len(set(DeltaTable(table).file_uris()) - files) == new_files
    added = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    least = min(batches, default=None)
    assert min(added.column("min.batch_id").to_pylist(), default=None) == least
    # Once more, by somebody who does not know: nothing.
    version = DeltaTable(table).version()
    assert remove_up_to(table, DECLARED, "batch_id", until, "app", until, "told")
    assert DeltaTable(table).version() == version


def test_two_at_once_do_it_once_and_a_writer_beside_them_loses_nothing(table):
    young = {"batch_id": 6, "value": b"6", "payload": "p6"}

    def write():
        for number in range(6, 12):
            assert append(table, [{**young, "batch_id": number}], "live", number, "told")

    def remove():
        assert remove_up_to(table, DECLARED, "batch_id", 3, "app", 3, "told")

    with ThreadPoolExecutor(max_workers=3) as pool:
        for done in [pool.submit(write), pool.submit(remove), pool.submit(remove)]:
            done.result()
    assert left(table) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert DeltaTable(table).version() == 3 + 6 + 1


def test_a_table_with_other_columns_is_left_to_spark(table):
    other = StructType(DECLARED.fields[:2])
    assert not remove_up_to(table, other, "batch_id", 3, "app", 3, "told")
    assert not remove_up_to("s3://bucket/table", DECLARED, "batch_id", 3, "app", 3, "told")
    assert len(left(table)) == 6


def test_rows_are_read_by_batch(table):
    schema, pieces = rows_of_batches(table, "batch_id", 2, 3)
    found = pa.Table.from_batches(pieces, schema)
    assert sorted(found.column("batch_id").to_pylist()) == [2, 3, 3]
    assert schema.names == ["batch_id", "value", "payload"]
    assert list(rows_of_batches(table, "batch_id", 8, 9)[1]) == []
    assert rows_of_batches("s3://bucket/table", "batch_id", 1, 2) is None
