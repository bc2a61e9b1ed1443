"""Files that workers write beside Delta: they are in the table with true statistics once they are committed, once, and not before."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructType

from include.local_machine import REPEATED
from spark_jobs.problems import JobProblem
from spark_jobs.storage.delta_log import add_files, create, place_for_files
from spark_jobs.storage.faults import files_named
from spark_jobs.storage.table_files import FileWriter, longest_texts

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
def path(tmp_path):
    path = f"{tmp_path}/a table"
    create(path, SCHEMA, {"delta.checkpointInterval": "5"})
    return path


def written(path, *batches):
    with FileWriter(path) as writer:
        for each in batches:
            writer.write(each)
        return writer.finish()


def offsets(path):
    return sorted(DeltaTable(path).to_pyarrow_table().column("offset").to_pylist())


def parquet_files(path):
    return sorted(file.name for file in Path(path).glob("*.parquet"))


def test_a_committed_file_is_in_the_table_with_true_statistics(path):
    file = written(path, batch(7, 5, ts=lambda number: None if number == 5 else 1), batch(), batch(3, 1))
    assert offsets(path) == []
    add_files(path, [file], "append", "p.compounds", 1, "compounds of batch 1")
    assert offsets(path) == [1, 3, 5, 7]
    (action,) = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["size_bytes"]) == (4, os.path.getsize(Path(path, file.name)))
    assert (action["min.ts"], action["max.ts"], action["null_count.ts"]) == (1, 30, 1)
    assert (action["min.offset"], action["max.offset"], action["null_count.offset"]) == (1, 7, 0)
    assert json.loads(file.stats)["minValues"].keys() == {"batch_id", "ts", "offset"}
    assert DeltaTable(path).history()[0]["userMetadata"] == "compounds of batch 1"


def test_a_column_without_a_value_has_no_least_and_no_most(path):
    file = written(path, batch(1, 2, ts=lambda number: None))
    stats = json.loads(file.stats)
    assert "ts" not in stats["minValues"] and "ts" not in stats["maxValues"] and stats["nullCount"]["ts"] == 2


def test_files_are_as_spark_is_told_to_write_them(path):
    file = written(path, batch(*range(1000)))
    rows = pq.ParquetFile(Path(path, file.name)).metadata.row_group(0)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    with_dictionary = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert with_dictionary == {"batch_id", "topic"} < set(REPEATED)


def test_files_tell_how_long_the_texts_of_a_row_can_be(path, tmp_path):
    long = batch(1).set_column(4, "payload", pa.array(["ä" * 30]))
    nothing = batch(1).set_column(4, "payload", pa.nulls(1, pa.string()))
    files = [
        f"file://{path.replace(' ', '%20')}/{written(path, *each).name}" for each in ([nothing, long], [batch(10, 200)])
    ]
    # The topic's one letter with them.
    assert [longest_texts([file]) for file in files] == [61, 10]
    assert longest_texts(files) == 61
    assert longest_texts([]) == 0


def test_files_that_cannot_tell_do_not(path, tmp_path):
    ours, spark, broken = (str(tmp_path / name) for name in ("ours", "spark", "broken"))
    Path(ours).symlink_to(Path(path, written(path, batch(1)).name))
    pq.write_table(pa.table({"payload": ["x"]}), spark)
    Path(broken).write_bytes(b"PAR1")
    assert longest_texts([ours]) is not None
    for other in (spark, broken, f"{tmp_path}/gone", "s3://bucket/file.parquet"):
        assert longest_texts([ours, other]) is None


def test_nothing_to_write_is_no_file(path):
    assert written(path) is written(path, batch()) is None
    assert parquet_files(path) == []


def test_an_error_leaves_no_file(path):
    there = []

    def write_and_fail():
        with FileWriter(path) as writer:
            writer.write(batch(1))
            there.extend(parquet_files(path))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert there and parquet_files(path) == []


def test_a_file_that_could_not_even_be_begun_is_gone(path, monkeypatch):
    def begun(file, *_, **__):
        Path(file).touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "ParquetWriter", begun)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        written(path, batch(1))
    assert parquet_files(path) == []


def test_an_error_of_the_folder_is_told_by_name_and_with_its_remedy(path, tmp_path):
    gone = f"{tmp_path}/other"
    with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{gone}'"):
        written(gone, batch(1))
    # As it arrives out of a worker: a text with a trace before it.
    text = f'Traceback\n  File "x.py", line 1\nPermissionError: [Errno 13] Permission denied: {path!r}\n'
    with (
        pytest.raises(JobProblem, match=f"^{path} cannot be written \\(Permission denied\\): make it a folder"),
        files_named("p"),
    ):
        raise RuntimeError(text)


def test_a_version_or_an_older_one_is_added_once(path):
    for version, number in ((1, 1), (2, 2), (2, 3), (1, 4)):
        add_files(path, [written(path, batch(number))], "append", "p.compounds", version, "")
    add_files(path, [written(path, batch(5))], "append", "p.others", 1, "")
    assert offsets(path) == [1, 2, 5]


def test_of_many_writers_of_one_version_one_wins_and_of_different_ones_all(path):
    def add(number, step, version):
        add_files(path, [written(path, batch(number))], "append", f"p.{step}", version, "")

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: add(number, "same", 1), range(8)))
    assert len(offsets(path)) == 1
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda number: add(number, f"step{number}", 1), range(10, 14)))
    assert offsets(path)[1:] == [10, 11, 12, 13]


def test_an_overwrite_puts_its_files_in_the_place_of_all_others(path):
    for number in (1, 2):
        add_files(path, [written(path, batch(number))], "append", "p.open", number, "")
    add_files(path, [written(path, batch(3)), written(path, batch(4))], "overwrite", "p.open", 3, "")
    assert offsets(path) == [3, 4]
    add_files(path, [], "overwrite", "p.open", 4, "")
    assert offsets(path) == []
    before = DeltaTable(path, version=2)
    assert sorted(before.to_pyarrow_table().column("offset").to_pylist()) == [1, 2]


def test_the_log_gets_its_checkpoints(path):
    for number in range(1, 8):
        add_files(path, [written(path, batch(number))], "append", "p.open", number, "")
    assert len(list(Path(path, "_delta_log").glob("*.checkpoint.parquet"))) == 1


def test_only_a_table_as_it_was_made_takes_files(path, tmp_path):
    assert place_for_files(path, SCHEMA) == (path, batch(1).schema)
    assert place_for_files("file://" + path.replace(" ", "%20"), SCHEMA).folder == path
    assert place_for_files("s3a://bucket/table", SCHEMA) is None
    assert place_for_files(path, StructType(SCHEMA.fields[1:])) is None
    partitioned = f"{tmp_path}/partitioned"
    DeltaTable.create(partitioned, pa.schema([("batch_id", pa.int64())]), partition_by=["batch_id"])
    assert place_for_files(partitioned, StructType(SCHEMA.fields[:1])) is None
    # A check on every row, which files do not pass through.
    DeltaTable(path).alter.add_constraint({"positive": "ts > 0"})
    assert place_for_files(path, SCHEMA) is None
