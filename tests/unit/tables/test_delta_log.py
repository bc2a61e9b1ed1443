"""Tables read by what their logs say, and the log itself: nothing is taken for an older version, or for another table, in silence."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from include.config.store import Store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables import delta_log
from spark_jobs.tables.commit import commit_once
from spark_jobs.tables.data_files import all_files, files_between, files_of, newest_batch, oldest_batch
from spark_jobs.tables.delta_log import create, newest_table, newest_version, place_for_files, table_at_version
from spark_jobs.tables.read_files import read_small_files
from spark_jobs.tables.records import Window
from spark_jobs.tables.table_format import MARK
from tests.helpers.table_in_a_folder import add_of, written

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
def store(tmp_path):
    store = Store(f"{tmp_path}/a table")
    create(store, SCHEMA, PROPERTIES)
    return store


def append(store, rows, version):
    schema = pa.schema(newest_table(store).schema().to_arrow())
    file = written(store, pa.RecordBatch.from_pylist(rows, schema=schema))
    commit_once(store, lambda _: [add_of(file)], "p.planned", version, f"planned of batch {version}")


def rows(store):
    return DeltaTable(store.uri).to_pyarrow_table().to_pylist()


def found(store, first, last=None, columns=None):
    number = pc.field("batch_id")
    fits = number >= first if last is None else (number >= first) & (number <= last)
    table = newest_table(store)
    schema = pa.schema(table.schema().to_arrow())
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return read_small_files(store, files_between(table, first, last), wanted, fits).to_pylist()


def batches_in(store, files):
    return sorted(row["batch_id"] for file in files for row in pq.read_table(f"{store.uri}/{file.name}").to_pylist())


def test_a_table_is_made_once(store):
    append(store, [row(1)], 1)
    made = newest_table(store).metadata()
    create(store, SCHEMA, {})
    assert newest_table(store).metadata().id == made.id
    assert (made.configuration, rows(store)) == (PROPERTIES | MARK, [{**row(1), "counts": [("a", 1)]}])


def test_what_others_append_is_seen_and_what_was_put_back_is_read_anew(store, tmp_path):
    append(store, [row(1)], 1)
    assert newest_batch(newest_table(store)) == 1
    shutil.copytree(store.uri, tmp_path / "backup")
    for batch_id in (2, 3):
        append(store, [row(batch_id)], batch_id)
        assert (newest_table(store).version(), newest_batch(newest_table(store))) == (batch_id, batch_id)
    shutil.rmtree(store.uri)
    shutil.copytree(tmp_path / "backup", store.uri)
    assert (newest_table(store).version(), newest_batch(newest_table(store))) == (1, 1)
    append(store, [row(7)], 7)
    append(store, [row(8)], 8)
    assert (newest_table(store).version(), newest_batch(newest_table(store))) == (3, 8)
    shutil.rmtree(store.uri)
    with pytest.raises(TableNotFoundError):
        newest_table(store)


def test_an_earlier_version_is_itself_and_the_newest_stays_what_it_is(store):
    for batch_id in (1, 2):
        append(store, [row(batch_id)], batch_id)
    assert [table_at_version(store, version).version() for version in (0, 1, 2)] == [0, 1, 2]
    assert newest_table(store).version() == 2
    assert table_at_version(store, 2) is newest_table(store)


def test_the_largest_and_the_smallest_number_are_known_without_reading_a_row(store):
    assert newest_batch(newest_table(store)) is oldest_batch(newest_table(store)) is None
    # More commits than there are between two checkpoints.
    for batch_id in range(3, 15):
        append(store, [row(batch_id)], batch_id)
    for file in Path(store.uri).glob("*.parquet"):
        file.write_bytes(b"")
    assert (oldest_batch(newest_table(store)), newest_batch(newest_table(store))) == (3, 14)


def test_a_missing_table_and_a_broken_log_are_told(store, tmp_path):
    with pytest.raises(TableNotFoundError):
        newest_table(Store(f"{tmp_path}/other"))
    for batch_id in (1, 2, 3):
        append(store, [row(batch_id)], batch_id)
    assert newest_table(store).version() == 3
    log = tmp_path / "a table" / "_delta_log"
    cut = log / "00000000000000000003.json"
    cut.write_text(cut.read_text()[:200])
    with pytest.raises(NeedsOperator, match=f"{cut} is cut off or overwritten: the table is damaged"):
        newest_table(store)
    cut.write_text('{"unknown": 1}\n{"add": 2}\n')
    with pytest.raises(DeltaError):
        newest_table(store)
    cut.write_text("")
    with pytest.raises(NeedsOperator, match=f"{cut} is empty: the table is damaged"):
        newest_table(store)
    (log / "00000000000000000001.json").unlink()
    cut.write_text("{}")
    with pytest.raises(NeedsOperator, match=r"00000000000000000001\.json is missing: the table is damaged"):
        newest_table(store)


@pytest.fixture
def forget(monkeypatch):
    """Makes this a process that has not looked at any table yet."""
    return lambda: monkeypatch.setattr(delta_log, "_cache", {})


@pytest.mark.parametrize("lost", [9, 10, 12])
def test_a_commit_that_is_missing_behind_the_last_checkpoint_is_told(lost, store, forget):
    for batch_id in range(1, 14):
        append(store, [row(batch_id)], batch_id)
    log = Path(store.uri, "_delta_log")
    assert [file.name for file in log.glob("*.parquet")] == ["00000000000000000009.checkpoint.parquet"]
    forget()
    (log / f"{lost:020d}.json").unlink()
    if lost == 9:
        # What a checkpoint holds needs no commit.
        assert (newest_table(store).version(), newest_batch(newest_table(store))) == (13, 13)
    else:
        with pytest.raises(NeedsOperator, match=rf"{lost:020d}\.json is missing: the table is damaged"):
            newest_table(store)


@pytest.mark.parametrize("hint", ["", "{", "[]", '{"version": "10"}', '{"version": 7}', '{"version": 99}', None])
def test_a_hint_of_a_checkpoint_that_is_not_there_is_not_trusted(hint, store, forget):
    for batch_id in range(1, 13):
        append(store, [row(batch_id)], batch_id)
    last = Path(store.uri, "_delta_log", "_last_checkpoint")
    last.unlink() if hint is None else last.write_text(hint)
    Path(store.uri, "_delta_log", "00000000000000000012.json").write_text("")
    forget()
    with pytest.raises(NeedsOperator, match=r"00000000000000000012\.json is empty: the table is damaged"):
        newest_table(store)


def test_only_the_files_that_can_have_the_rows_are_opened(store):
    for batch_id in range(1, 6):
        append(store, [row(batch_id), row(batch_id, "landed")], batch_id)
    assert sorted(each["batch_id"] for each in found(store, 2, 3)) == [2, 2, 3, 3]
    assert found(store, 5, columns=["step"]) == [{"step": "planned"}, {"step": "landed"}]
    assert found(store, 6) == found(store, 3, 2) == []
    # The others might as well not be there.
    for file in map(unquote, DeltaTable(store.uri).file_uris()):
        if not any(each["batch_id"] > 3 for each in pq.read_table(file).to_pylist()):
            Path(file).unlink()
    assert sorted(each["batch_id"] for each in found(store, 4)) == [4, 4, 5, 5]
    with pytest.raises(NeedsOperator, match="is missing"):
        found(store, 1)


def test_the_files_of_an_earlier_version_are_told(store):
    for batch_id in (1, 2):
        append(store, [row(batch_id)], batch_id)
    kept = newest_table(store).to_pyarrow_table().slice(0, 1)
    write_deltalake(store.uri, kept, mode="overwrite")

    def batches(version):
        return batches_in(store, all_files(table_at_version(store, version)))

    assert [batches(version) for version in range(4)] == [[], [1], [1, 2], [kept["batch_id"][0].as_py()]]
    (file,) = all_files(table_at_version(store, 1))
    assert (file.rows, file.size) == (1, Path(store.uri, file.name).stat().st_size)
    with pytest.raises(DeltaError):
        table_at_version(store, 4)


def test_of_some_batches_only_the_files_are_told_that_can_have_rows_of_them(store):
    for batch_id in (1, 2, 4, 5, 9):
        append(store, [row(batch_id)], batch_id)
    append(store, [row(6), row(8)], 10)

    def batches(*numbers):
        return batches_in(store, files_of(newest_table(store), numbers))

    assert (batches(1), batches(3), batches(), batches(2, 3, 4, 9)) == ([1], [], [], [2, 4, 9])
    # By the least and the most of a file, 7 could be among its rows.
    assert (batches(7), batches(8), batches(*range(3, 6))) == ([6, 8], [6, 8], [4, 5])


def test_files_tell_which_times_their_rows_can_have(tmp_path):
    store = Store(f"{tmp_path}/table")
    create(store, StructType().add("batch_id", LongType()).add("ts", LongType()), {})
    for batch_id, times in enumerate([(10, 20), (30, None), (None, None)], 1):
        append(store, [{"batch_id": batch_id, "ts": ts} for ts in times], batch_id)

    def batches(start, end):
        files = [file for file in all_files(newest_table(store)) if file.can_have_times(Window(start, end))]
        return sorted(set(batches_in(store, files)))

    # A file without statistics can have any row.
    assert (batches(0, 10), batches(0, 11), batches(20, 21)) == ([3], [1, 3], [1, 3])
    # By the least and the most of a file, 15 could be among its rows.
    assert (batches(15, 16), batches(21, 30), batches(20, 31), batches(31, 99)) == ([1, 3], [3], [1, 2, 3], [3])


def test_a_file_without_statistics_can_have_any_row(tmp_path):
    store = Store(f"{tmp_path}/table")
    create(store, SCHEMA, {"delta.dataSkippingNumIndexedCols": "0"})
    write_deltalake(store.uri, pa.table({"batch_id": pa.nulls(1, pa.int64())}), mode="append", schema_mode="merge")
    write_deltalake(store.uri, pa.table({"batch_id": pa.array([1])}), mode="append", schema_mode="merge")
    assert len(files_of(newest_table(store), [1])) == 2
    assert len(files_between(newest_table(store), 5, 9)) == 2


def test_names_that_the_log_has_to_escape_are_told_as_the_store_has_them(store, forget):
    append(store, [row(1)], 1)
    (file,) = all_files(newest_table(store))
    odd = "part %41 of 100%.parquet"
    Path(store.uri, file.name).rename(Path(store.uri, odd))
    log = Path(store.uri, "_delta_log", "00000000000000000001.json")
    log.write_text(log.read_text().replace(file.name, "part%20%2541%20of%20100%25.parquet"))
    forget()
    assert [file.name for file in all_files(newest_table(store))] == [odd]
    assert [each["batch_id"] for each in found(store, 1)] == [1]


def test_a_table_without_rows_has_none(store):
    assert found(store, 1) == []
    schema = pa.schema(newest_table(store).schema().to_arrow())
    assert read_small_files(store, [], schema, None).num_rows == 0


def test_only_a_table_as_it_was_made_takes_files(store):
    assert place_for_files(store, newest_table(store), SCHEMA) == (store, pa.schema(newest_table(store).schema().to_arrow()))
    with pytest.raises(
        NeedsOperator, match=r"a table has other columns than the pipeline's \(at\): another program has changed"
    ):
        place_for_files(store, newest_table(store), StructType(SCHEMA.fields[:-1]))
    turned = StructType(SCHEMA.fields[::-1])
    with pytest.raises(NeedsOperator, match=r"other columns than the pipeline's \(other types or order\)"):
        place_for_files(store, newest_table(store), turned)
    # A check on every row, which files do not pass through.
    DeltaTable(store.uri).alter.add_constraint({"positive": "batch_id > 0"})
    with pytest.raises(NeedsOperator, match="reader version 1 and writer version 3, not 1 and 2: another program"):
        place_for_files(store, newest_table(store), SCHEMA)


def test_a_change_feed_is_no_reason_to_refuse_a_table_and_a_constraint_beside_it_is(tmp_path):
    store = Store(str(tmp_path / "table"))
    DeltaTable.create(store.uri, pa.schema([("batch_id", pa.int64()), ("step", pa.string())]))
    DeltaTable(store.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table = newest_table(store)
    assert table.protocol()[:2] == (1, 4)
    place_for_files(store, table, StructType(SCHEMA.fields[:2]))
    DeltaTable(store.uri).alter.add_constraint({"positive": "batch_id > 0"})
    with pytest.raises(NeedsOperator, match="writer version 4, not 1 and 2: another program"):
        place_for_files(store, newest_table(store), StructType(SCHEMA.fields[:2]))


@pytest.mark.parametrize(
    ("properties", "partitions", "line"),
    [
        ({"delta.enableDeletionVectors": "true"}, None, "reader version 3 and writer version 7, not 1 and 2"),
        ({}, ["batch_id"], r"partitions \(by batch_id\)"),
    ],
)
def test_what_files_alone_cannot_keep_is_refused(properties, partitions, line, tmp_path):
    store = Store(str(tmp_path / "a[b]"))
    schema = pa.schema([("batch_id", pa.int64()), ("step", pa.string())])
    DeltaTable.create(store.uri, schema, partition_by=partitions, configuration=properties)
    with pytest.raises(NeedsOperator, match=rf"a\[b\] has {line}: another program has changed the table"):
        place_for_files(store, newest_table(store), StructType(SCHEMA.fields[:2]))


# For the time of a job


@pytest.fixture
def looks(monkeypatch):
    """The logs that were listed."""
    found, listed = [], delta_log._list_log

    def look(store, since):
        found.append(store.uri)
        return listed(store, since)

    monkeypatch.setattr(delta_log, "_list_log", look)
    return found


def another_process(store, number):
    rows = pa.Table.from_pylist([row(number)], schema=pa.schema(DeltaTable(store.uri).schema().to_arrow()))
    write_deltalake(store.uri, rows, mode="append")


def test_a_job_looks_at_a_table_once_until_it_changes_it(store, looks):
    append(store, [row(1)], 1)
    with delta_log.trust_cache():
        looks.clear()
        assert [newest_table(store).version() for _ in range(3)] == [1, 1, 1]
        another_process(store, 2)
        assert (newest_table(store).version(), len(looks)) == (1, 1)
        append(store, [row(3)], 3)
        # What came before its own change is seen with it.
        assert (newest_table(store).version(), newest_table(store).version()) == (3, 3)
        another_process(store, 4)
        assert newest_table(store).version() == 3
    assert newest_table(store).version() == 4


def test_a_version_is_known_by_a_look_at_the_log_which_serves_the_table_too(store, looks, forget):
    for batch_id in (1, 2):
        append(store, [row(batch_id)], batch_id)
    forget()
    looks.clear()
    with delta_log.trust_cache():
        assert newest_version(store) == newest_version(store) == 2
        assert delta_log._cache[store.uri].table is None
        assert (newest_table(store).version(), newest_version(store), len(looks)) == (2, 2, 1)
        another_process(store, 3)
        assert newest_version(store) == 2
        append(store, [row(4)], 4)
        assert (newest_version(store), newest_table(store).version()) == (4, 4)


def test_a_version_is_of_a_table_that_is_there_and_whole(store, tmp_path, forget):
    with pytest.raises(TableNotFoundError):
        newest_version(Store(f"{tmp_path}/other"))
    for batch_id in (1, 2, 3):
        append(store, [row(batch_id)], batch_id)
    log = Path(store.uri, "_delta_log")
    forget()
    (log / f"{3:020d}.json").write_text("")
    with pytest.raises(NeedsOperator, match=rf"{3:020d}\.json is empty: the table is damaged"):
        newest_version(store)
    (log / f"{3:020d}.json").write_text("{}")
    (log / f"{1:020d}.json").unlink()
    with pytest.raises(NeedsOperator, match=rf"{1:020d}\.json is missing: the table is damaged"):
        newest_version(store)


def test_a_commit_always_looks(store):
    with delta_log.trust_cache():
        assert newest_table(store).version() == 0
        another_process(store, 1)
        seen = []
        commit_once(store, lambda known: seen.append(known.version()) or [], "p.planned", 1, "")
        # Skipped, it has looked all the same.
        another_process(store, 2)
        commit_once(store, lambda _: pytest.fail("it was not skipped"), "p.planned", 1, "")
        assert (seen, newest_table(store).version()) == ([1], 3)


@pytest.mark.parametrize("error", [OSError(5, "timed out"), DeltaError("error sending request")], ids=repr)
def test_a_job_sees_what_it_has_committed_though_nobody_told_it(error, store, monkeypatch):
    commit = DeltaTable.create_write_transaction

    def made_and_failed(*given, **named):
        commit(*given, **named)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", made_and_failed)
    with delta_log.trust_cache():
        assert newest_table(store).version() == 0
        append(store, [row(1)], 1)
        assert (newest_table(store).version(), newest_batch(newest_table(store))) == (1, 1)


def test_the_time_of_a_job_ends_with_an_error_too(store):
    def fail():
        with delta_log.trust_cache():
            assert newest_table(store).version() == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    another_process(store, 1)
    assert newest_table(store).version() == 1
