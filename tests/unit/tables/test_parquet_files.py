"""Files that workers write beside Delta: they are complete or not there at all, and true to what is said of them."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from obstore.exceptions import GenericError
from pyspark.sql.types import LongType, StringType, StructType

from include.config.store import Store
from spark_jobs.faults.problems import JobProblem
from spark_jobs.tables import parquet_files as table_files
from spark_jobs.tables.commit import commit_once
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.parquet_files import LONGEST_TEXTS, REPEATED, FileWriter
from tests.helpers.table_in_a_folder import add_of, written

SCHEMA = (
    StructType()
    .add("batch_id", LongType())
    .add("ts", LongType())
    .add("offset", LongType())
    .add("topic", StringType())
    .add("payload", StringType())
)


def batch(*numbers, batch_id=1, ts=lambda number: number * 10):
    return pa.record_batch(
        {
            "batch_id": pa.array([batch_id] * len(numbers), pa.int64()),
            "ts": pa.array([ts(number) for number in numbers], pa.int64()),
            "offset": pa.array(numbers, pa.int64()),
            "topic": pa.array(["a"] * len(numbers)),
            "payload": pa.array([f'{{"n":{number}}}' for number in numbers]),
        }
    )


@pytest.fixture
def store(tmp_path):
    store = Store(f"{tmp_path}/a table")
    create(store, SCHEMA, {"delta.checkpointInterval": "5"})
    return store


def unreplayed_events(store):
    """Whatever is in the table's folder, half-written or whole."""
    return sorted(file.name for file in Path(store.uri).iterdir() if file.is_file())


def test_a_committed_file_is_in_the_table_with_true_statistics(store):
    file = written(store, batch(7, 5, ts=lambda number: None if number == 5 else 1), batch(), batch(3, 1))
    assert DeltaTable(store.uri).to_pyarrow_table().num_rows == 0
    commit_once(store, lambda _: [add_of(file)], "p.compounds", 1, "compounds of batch 1")
    table = DeltaTable(store.uri)
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == [1, 3, 5, 7]
    (action,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["size_bytes"]) == (4, Path(store.uri, file.name).stat().st_size)
    assert (action["min.ts"], action["max.ts"], action["null_count.ts"]) == (1, 30, 1)
    assert (action["min.offset"], action["max.offset"], action["null_count.offset"]) == (1, 7, 0)
    assert json.loads(file.stats)["minValues"].keys() == {"batch_id", "ts", "offset"}
    assert table.history()[0]["userMetadata"] == "compounds of batch 1"


def test_a_column_without_a_value_has_no_least_and_no_most(store):
    file = written(store, batch(1, 2, ts=lambda number: None))
    stats = json.loads(file.stats)
    assert "ts" not in stats["minValues"] and "ts" not in stats["maxValues"] and stats["nullCount"]["ts"] == 2


def test_only_what_is_repeated_has_a_dictionary_and_only_what_is_searched_has_statistics(store):
    file = written(store, batch(*range(1000)))
    rows = pq.ParquetFile(Path(store.uri, file.name)).metadata.row_group(0)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    with_dictionary = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert with_dictionary == {"batch_id", "topic"} < set(REPEATED)
    assert {column.path_in_schema for column in columns if column.is_stats_set} == {"batch_id", "ts", "offset"}


def test_files_say_how_long_the_texts_of_a_row_can_be(store):
    long = batch(1).set_column(4, "payload", pa.array(["ä" * 30]))
    nothing = batch(1).set_column(4, "payload", pa.nulls(1, pa.string()))
    files = [written(store, *each) for each in ([nothing, long], [batch(10, 200)])]
    said = [pq.read_metadata(Path(store.uri, file.name)).metadata[LONGEST_TEXTS] for file in files]
    # The topic's one letter with them.
    assert said == [b"61", b"10"]


def test_nothing_to_write_is_no_file(store):
    assert written(store) is written(store, batch()) is None
    assert unreplayed_events(store) == []


# In MB: less than what is kept back before an upload begins, and more.
@pytest.mark.parametrize("size", [1, 32], ids=["before the upload", "during the upload"])
def test_an_error_leaves_no_file_and_nobody_sees_one_before_its_end(size, store):
    there, begun = [], []

    def write_and_fail():
        with FileWriter(store) as writer:
            for _ in range(size):
                writer.write(pa.record_batch({"value": pa.array([os.urandom(1_000_000)])}))
            there.extend(file for file in unreplayed_events(store) if file.endswith(".parquet"))
            begun.extend(unreplayed_events(store))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert there == []
    assert bool(begun) == (size > 1)
    assert unreplayed_events(store) == []


class FullDisk:
    """What an upload says whose disk is full, as obstore words it."""

    def __init__(self, *_, **__):
        pass

    def write(self, data):
        raise GenericError(
            "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)\n\nDebug source:\nGeneric {…}"
        )


def test_an_error_of_the_store_is_told_by_number_and_place(store, monkeypatch):
    monkeypatch.setattr(table_files, "open_writer", FullDisk)
    with pytest.raises(OSError, match=f"No space left on device: '{store.uri}'$") as raised:
        written(store, batch(1))
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, store.uri)
    assert unreplayed_events(store) == []


def test_an_error_of_the_store_without_a_number_is_told_in_one_line(store, monkeypatch):
    def refused(*_, **__):
        raise GenericError("Generic S3 error: \n  AccessDenied  \n\nDebug source:\nGeneric {…}")

    monkeypatch.setattr(table_files, "open_writer", refused)
    with pytest.raises(OSError, match=f"Generic S3 error: AccessDenied: '{store.uri}'$"):
        written(store, batch(1))


def test_an_error_of_the_folder_is_told_by_name_and_with_its_remedy(store, tmp_path):
    gone = f"{tmp_path}/other"
    with pytest.raises(OSError, match=f"is not there: '{gone}'"):
        written(Store(gone), batch(1))
    assert not Path(gone).exists()
    # As it arrives out of a worker: a text with a trace before it.
    text = f'Traceback\n  File "x.py", line 1\nPermissionError: [Errno 13] Permission denied: {store.uri!r}\n'
    with (
        pytest.raises(JobProblem, match=f"^{store.uri} cannot be written \\(Permission denied\\): make it a folder"),
        translate_file_errors("p"),
    ):
        raise RuntimeError(text)
