"""Tables in a folder, read and appended to without Spark; the fence holds whoever writes beside."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from spark_jobs.problems import NeedsOperator
from spark_jobs.storage.delta_log import append, create, files_at, files_of, in_folder, largest, rows_between

SCHEMA = (
    StructType()
    .add("batch_id", LongType())
    .add("step", StringType())
    .add("counts", MapType(StringType(), LongType()))
    .add("at", TimestampType())
)
PROPERTIES = {"delta.checkpointInterval": "10", "delta.dataSkippingStatsColumns": "batch_id"}


def row(batch_id, step="planned"):
    return {"batch_id": batch_id, "step": step, "counts": {"a": batch_id}, "at": None}


@pytest.fixture
def path(tmp_path):
    path = f"{tmp_path}/a table"
    assert create(path, SCHEMA, PROPERTIES)
    return path


def rows(path):
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def test_a_table_is_made_once(path):
    append(path, [row(1)], "p.planned", 1, "planned of batch 1")
    made = in_folder(path).metadata()
    assert create(path, SCHEMA, {})
    assert in_folder(path).metadata().id == made.id
    assert (made.configuration, rows(path)) == (PROPERTIES, [{**row(1), "counts": [("a", 1)]}])


def test_what_others_append_is_seen_and_what_was_put_back_is_read_anew(path, tmp_path):
    append(path, [row(1)], "p.planned", 1, "planned of batch 1")
    assert largest(in_folder(path), "batch_id") == 1
    shutil.copytree(path, tmp_path / "backup")
    for batch_id in (2, 3):
        append(path, [row(batch_id)], "p.planned", batch_id, f"planned of batch {batch_id}")
        assert (in_folder(path).version(), largest(in_folder(path), "batch_id")) == (batch_id, batch_id)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    assert (in_folder(path).version(), largest(in_folder(path), "batch_id")) == (1, 1)
    append(path, [row(7)], "p.planned", 7, "planned of batch 7")
    append(path, [row(8)], "p.planned", 8, "planned of batch 8")
    assert (in_folder(path).version(), largest(in_folder(path), "batch_id")) == (3, 8)
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        in_folder(path)


def test_a_version_or_an_older_one_is_appended_once(path):
    for batch_id in (1, 2, 2, 1):
        append(path, [row(batch_id)], "p.planned", batch_id, f"planned of batch {batch_id}")
    append(path, [row(1, "landed")], "p.landed", 1, "landed of batch 1")
    assert sorted((found["batch_id"], found["step"]) for found in rows(path)) == [
        (1, "landed"),
        (1, "planned"),
        (2, "planned"),
    ]
    told = [entry.get("userMetadata") for entry in DeltaTable(path).history()]
    assert told[:3] == ["landed of batch 1", "planned of batch 2", "planned of batch 1"]


def test_of_many_writers_of_one_version_one_wins_and_of_different_ones_all(path):
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda n: append(path, [row(1)], "p.planned", 1, f"{n}"), range(8)))
    assert len(rows(path)) == 1
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda n: append(path, [row(n)], f"p.step{n}", 1, f"{n}"), range(4)))
    assert sorted(found["batch_id"] for found in rows(path)) == [0, 1, 1, 2, 3]


def test_the_largest_number_is_known_without_reading_a_row(path):
    assert largest(in_folder(path), "batch_id") is None
    # More commits than there are between two checkpoints.
    for batch_id in range(1, 13):
        append(path, [row(batch_id)], "p.planned", batch_id, "")
    for file in Path(path).glob("*.parquet"):
        file.write_bytes(b"")
    assert largest(in_folder(path), "batch_id") == 12


def test_what_is_no_folder_is_left_to_spark():
    assert in_folder("s3a://bucket/table") is None
    assert not create("s3a://bucket/table", SCHEMA, {})
    assert not append("s3a://bucket/table", [row(1)], "p.planned", 1, "")


def test_a_missing_table_and_a_broken_log_are_told(path, tmp_path):
    with pytest.raises(TableNotFoundError):
        in_folder(f"{tmp_path}/other")
    for batch_id in (1, 2, 3):
        append(path, [row(batch_id)], "p.planned", batch_id, "")
    log = tmp_path / "a table" / "_delta_log"
    cut = log / "00000000000000000003.json"
    cut.write_text(cut.read_text()[:200])
    with pytest.raises(NeedsOperator, match=f"{cut} is cut off or overwritten: the table is damaged"):
        in_folder(path)
    cut.write_text('{"unknown": 1}\n{"add": 2}\n')
    with pytest.raises(DeltaError):
        in_folder(path)
    cut.write_text("")
    with pytest.raises(NeedsOperator, match=f"{cut} is empty: the table is damaged"):
        in_folder(path)
    (log / "00000000000000000001.json").unlink()
    cut.write_text("{}")
    with pytest.raises(NeedsOperator, match=r"00000000000000000001\.json is missing: the table is damaged"):
        in_folder(path)


def test_a_file_uri_is_a_folder(path):
    assert in_folder("file://" + path.replace(" ", "%20")).version() == 0


def test_only_the_files_that_can_have_the_rows_are_opened(path):
    for batch_id in range(1, 6):
        append(path, [row(batch_id), row(batch_id, "landed")], "p.planned", batch_id, f"planned of batch {batch_id}")

    def found(first, last=None, columns=None):
        return rows_between(in_folder(path), "batch_id", first, last, columns)

    assert sorted(each["batch_id"] for each in found(2, 3)) == [2, 2, 3, 3]
    assert found(5, columns=["step"]) == [{"step": "planned"}, {"step": "landed"}]
    assert found(6) == found(3, 2) == []
    # The others might as well not be there.
    for file in map(unquote, DeltaTable(path).file_uris()):
        if not any(each["batch_id"] > 3 for each in pq.read_table(file).to_pylist()):
            Path(file).unlink()
    assert sorted(each["batch_id"] for each in found(4)) == [4, 4, 5, 5]
    with pytest.raises(FileNotFoundError):
        found(1)


def test_the_files_of_an_earlier_version_are_told_by_name(path):
    create(path, SCHEMA, PROPERTIES)
    for batch_id in (1, 2):
        append(path, [row(batch_id)], "a", batch_id, "told")
    rows = in_folder(path).to_pyarrow_table()
    write_deltalake(path, rows.slice(0, 1), mode="overwrite")

    def batches(version):
        return sorted(row["batch_id"] for file in files_at(path, version) for row in pq.read_table(file).to_pylist())

    assert [batches(version) for version in range(4)] == [[], [1], [1, 2], [rows["batch_id"][0].as_py()]]
    Path(files_at(path, 1)[0]).unlink()
    assert len(files_at(path, 3)) == 1
    with pytest.raises(NeedsOperator, match=r"part-.*\.parquet is missing: the table is damaged"):
        files_at(path, 2)
    with pytest.raises(DeltaError):
        files_at(path, 4)


def test_of_some_batches_only_the_files_are_told_that_can_have_rows_of_them(path):
    for batch_id in (1, 2, 4, 5, 9):
        append(path, [row(batch_id)], "a", batch_id, "told")
    append(path, [row(6), row(8)], "a", 10, "told")

    def batches(*numbers):
        return sorted(
            row["batch_id"] for file in files_of(path, "batch_id", numbers) for row in pq.read_table(file).to_pylist()
        )

    assert (batches(1), batches(3), batches(), batches(2, 3, 4, 9)) == ([1], [], [], [2, 4, 9])
    # By the least and the most of a file, 7 could be among its rows.
    assert (batches(7), batches(8), batches(*range(3, 6))) == ([6, 8], [6, 8], [4, 5])
    Path(files_of(path, "batch_id", [5])[0]).unlink()
    assert batches(4) == [4]
    with pytest.raises(NeedsOperator, match=r"part-.*\.parquet is missing: the table is damaged"):
        batches(5)


def test_a_file_without_statistics_can_have_any_row(tmp_path):
    path = str(tmp_path / "table")
    create(path, SCHEMA, {"delta.dataSkippingNumIndexedCols": "0"})
    append(path, [row(1)], "a", 1, "told")
    write_deltalake(path, pa.table({"batch_id": pa.nulls(1, pa.int64())}), mode="append", schema_mode="merge")
    assert len(files_of(path, "batch_id", [1])) == 2


def test_files_that_do_not_tell_all_are_left_to_spark(tmp_path):
    for name, properties in (("a[b]", {}), ("deleted", {"delta.enableDeletionVectors": "true"})):
        path = str(tmp_path / name)
        create(path, SCHEMA, PROPERTIES | properties)
        assert files_at(path, 0) is files_of(path, "batch_id", [1]) is None
    assert files_at("s3://bucket/table", 0) is files_of("s3://bucket/table", "batch_id", [1]) is None


def test_a_table_without_rows_has_none(path):
    assert rows_between(in_folder(path), "batch_id", 1, None, None) == []
