"""A change of a table is made once or not at all, whoever writes beside it and whatever goes wrong; rows that go take no others with them."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from include.config.store import Store
from spark_jobs.tables import commit as committing
from spark_jobs.tables import delta_log
from spark_jobs.tables.commit import ALL_BATCHES, BatchRange, commit_once, removal_actions
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.parquet_files import FilePlace
from tests.helpers.table_in_a_folder import add_of, written

DECLARED = StructType().add("batch_id", LongType()).add("value", BinaryType()).add("payload", StringType())
SCHEMA = pa.schema([("batch_id", pa.int64()), ("value", pa.binary()), ("payload", pa.string())])
# Of the batches in them, by the file.
FILES = ((1,), (2, 3), (3, 4), (5,))


def rows_of(*batches):
    rows = [{"batch_id": each, "value": bytes([each]), "payload": None if each == 3 else f"p{each}"} for each in batches]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.fixture
def place(tmp_path):
    """Of a table without rows."""
    store = Store(str(tmp_path / "a table"))
    create(store, DECLARED, {"delta.checkpointInterval": "5", "delta.dataSkippingStatsColumns": "batch_id"})
    return FilePlace(store, SCHEMA)


@pytest.fixture
def table(place):
    """The place of a table with FILES."""
    for number, batches in enumerate(FILES):
        commit_once(place.store, adding(place, *batches), "before", number, "before")
    return place


def adding(place, *batches):
    """The action of a commit that adds a file with rows of the batches."""
    file = written(place.store, rows_of(*batches))
    return lambda _: [add_of(file)]


def take(place, going, *added, step="app", version=1):
    new = [add_of(written(place.store, rows_of(*batches))) for batches in added]
    commit_once(place.store, lambda known: [*removal_actions(known, place, going), *new], step, version, "said")


def opened(place):
    return DeltaTable(place.store.uri)


def rows(place):
    return Counter(map(str, opened(place).to_pyarrow_table().to_pylist()))


def left(place):
    return sorted(opened(place).to_pyarrow_table()["batch_id"].to_pylist())


# What is committed


def test_a_version_or_an_older_one_is_committed_once(place):
    for version, number in ((1, 1), (2, 2), (2, 3), (1, 4)):
        commit_once(place.store, adding(place, number), "p.compounds", version, f"compounds of batch {version}")
    commit_once(place.store, adding(place, 5), "p.others", 1, "others of batch 1")
    assert left(place) == [1, 2, 5]
    said = [entry.get("userMetadata") for entry in opened(place).history()]
    assert said[:3] == ["others of batch 1", "compounds of batch 2", "compounds of batch 1"]


def test_a_commit_of_nothing_uses_up_its_version(place):
    commit_once(place.store, lambda _: [], "p.compounds", 3, "compounds of batch 3")
    assert (opened(place).version(), opened(place).transaction_version("p.compounds")) == (1, 3)
    commit_once(place.store, adding(place, 3), "p.compounds", 3, "compounds of batch 3")
    assert (left(place), opened(place).version()) == ([], 1)


def test_of_many_writers_of_one_version_one_wins_and_of_different_ones_all(place):
    def add(number, step):
        commit_once(place.store, adding(place, number), f"p.{step}", 1, "")

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: add(number, "same"), range(8)))
    assert len(left(place)) == 1
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda number: add(number, f"step{number}"), range(10, 14)))
    assert left(place)[1:] == [10, 11, 12, 13]


def test_the_log_gets_its_checkpoints_and_these_know_the_versions(place, monkeypatch):
    log = Path(place.store.uri, "_delta_log")
    for number in range(1, 8):
        commit_once(place.store, adding(place, number), "p.open", number, "")
        for file in log.glob("*.json"):
            os.utime(file, (0, 0))
    assert len(list(log.glob("*.json"))) == 8, "no log is cut but by maintenance"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    for version in range(int(checkpoint.name[:20])):
        (log / f"{version:020d}.json").unlink()
    monkeypatch.setattr(delta_log, "_cache", {})
    commit_once(place.store, adding(place, 9), "p.open", 2, "")
    assert left(place) == [1, 2, 3, 4, 5, 6, 7]


# Others beside it, and what goes wrong


def another_process(place, number, app_id="other", version=1):
    """Commits what this process has not seen."""
    fence = CommitProperties(app_transactions=[Transaction(app_id, version)])
    write_deltalake(place.store.uri, pa.Table.from_batches([rows_of(number)]), mode="append", commit_properties=fence)


def test_who_loses_a_race_looks_again_and_loses_nothing(table):
    seen = []

    def actions(known):
        found = list(removal_actions(known, table, BatchRange(4, None)))
        seen.append(known.version())
        if len(seen) < 3:
            another_process(table, 4 + len(seen), f"other{len(seen)}")
        return found

    commit_once(table.store, actions, "app", 1, "said")
    assert seen == [4, 5, 6]
    # The others' rows were there when it was made, so they are gone, too.
    assert left(table) == [1, 2, 3, 3]


def test_who_loses_a_race_against_its_equal_does_nothing(place):
    calls = []

    def actions(_):
        calls.append(1)
        another_process(place, 7, "p.compounds", 1)
        return [add_of(written(place.store, rows_of(7)))]

    commit_once(place.store, actions, "p.compounds", 1, "")
    assert (left(place), len(calls)) == ([7], 1)


def test_who_always_loses_gives_up(place, monkeypatch):
    tries = []

    def lost(*_, **__):
        tries.append(1)
        raise CommitFailedError("version 1 already exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    with pytest.raises(CommitFailedError):
        commit_once(place.store, adding(place, 1), "app", 1, "")
    assert len(tries) == committing._TRIES


@pytest.mark.parametrize(
    "error", [OSError(5, "timed out"), DeltaError("error sending request"), CommitFailedError("exists")], ids=repr
)
def test_an_error_after_the_commit_was_made_is_no_error(error, place, monkeypatch):
    commit, tries = DeltaTable.create_write_transaction, []

    def made_and_failed(*given, **named):
        tries.append(1)
        commit(*given, **named)
        raise error

    monkeypatch.setattr(DeltaTable, "create_write_transaction", made_and_failed)
    commit_once(place.store, adding(place, 1), "app", 1, "")
    assert (left(place), opened(place).version(), len(tries)) == ([1], 1, 1)


@pytest.mark.parametrize("error", [OSError(5, "timed out"), DeltaError("error sending request")], ids=repr)
def test_an_error_before_the_commit_is_told_and_whoever_tries_again_makes_it(error, place, monkeypatch):
    def failed(*_, **__):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", failed)
        with pytest.raises(type(error)) as raised:
            commit_once(place.store, adding(place, 1), "app", 1, "")
    assert raised.value is error and left(place) == []
    commit_once(place.store, adding(place, 1), "app", 1, "")
    assert left(place) == [1]


# What goes


@pytest.mark.parametrize(
    ("going", "batches", "new_files"),
    [
        (None, [1, 2, 3, 3, 4, 5], 0),
        # As maintenance removes rows for their age.
        (BatchRange(0, 0), [1, 2, 3, 3, 4, 5], 0),
        (BatchRange(0, 1), [2, 3, 3, 4, 5], 0),
        (BatchRange(0, 2), [3, 3, 4, 5], 1),
        (BatchRange(0, 3), [4, 5], 1),
        (BatchRange(0, 4), [5], 0),
        (BatchRange(0, 5), [], 0),
        (BatchRange(0, 9), [], 0),
        # As a rewind takes back what came last.
        (BatchRange(6, None), [1, 2, 3, 3, 4, 5], 0),
        (BatchRange(5, None), [1, 2, 3, 3, 4], 0),
        (BatchRange(4, None), [1, 2, 3, 3], 1),
        (BatchRange(3, None), [1, 2], 1),
        (BatchRange(1, None), [], 0),
        # From the middle, out of one file or both ends of two.
        (BatchRange(2, 4), [1, 5], 0),
        (BatchRange(3, 3), [1, 2, 4, 5], 2),
        (BatchRange(4, 4), [1, 2, 3, 3, 5], 1),
        (BatchRange(2, 2), [1, 3, 3, 4, 5], 1),
        (ALL_BATCHES, [], 0),
    ],
    ids=str,
)
def test_whole_files_go_as_they_are_and_others_are_written_anew(going, batches, new_files, table):
    before, files = rows(table), set(opened(table).file_uris())
    take(table, going)
    assert left(table) == batches
    assert rows(table) - before == Counter()
    assert len(set(opened(table).file_uris()) - files) == new_files
    added = pa.table(opened(table).get_add_actions(flatten=True))
    assert min(added.column("min.batch_id").to_pylist(), default=None) == min(batches, default=None)
    assert sum(added.column("num_records").to_pylist()) == len(batches)
    # Once more, by somebody who does not know: nothing.
    version = opened(table).version()
    take(table, going)
    assert opened(table).version() == version


def test_what_comes_takes_the_place_of_what_goes_in_one_commit(table):
    before = opened(table).version()
    take(table, ALL_BATCHES, (6,), (7, 8))
    assert (left(table), opened(table).version()) == ([6, 7, 8], before + 1)
    take(table, BatchRange(7, 7), (9,), step="other")
    assert left(table) == [6, 8, 9]
    # Readers of the version before have everything.
    assert sorted(DeltaTable(table.store.uri, version=before).to_pyarrow_table()["batch_id"].to_pylist()) == [
        1,
        2,
        3,
        3,
        4,
        5,
    ]


@pytest.mark.parametrize("going", [ALL_BATCHES, BatchRange(1, 5), BatchRange(1, None), BatchRange(0, 9)])
def test_a_file_that_goes_as_a_whole_is_not_looked_into(going, table):
    if going == ALL_BATCHES:
        file = written(table.store, rows_of(2, 3, 4))
        commit_once(table.store, lambda _: [add_of(file._replace(stats="{}"))], "silent", 1, "")
    for path in Path(table.store.uri).glob("*.parquet"):
        path.unlink()
    take(table, going, (6,))
    assert left(table) == [6]


@pytest.mark.parametrize(("going", "batches"), [(BatchRange(3, 3), [2, 4]), (BatchRange(3, None), [2]), (ALL_BATCHES, [])])
def test_a_file_that_does_not_tell_its_batches_is_looked_into(going, batches, place):
    file = written(place.store, rows_of(2, 3, 4))
    commit_once(place.store, lambda _: [add_of(file._replace(stats="{}"))], "before", 1, "")
    take(place, going)
    assert left(place) == batches


def test_a_file_with_an_odd_name_goes_under_the_name_that_the_log_has_for_it(place, monkeypatch):
    file = written(place.store, rows_of(1, 2))
    commit_once(place.store, lambda _: [add_of(file)], "before", 1, "")
    Path(place.store.uri, file.name).rename(Path(place.store.uri, "part 100%.parquet"))
    log = Path(place.store.uri, "_delta_log", f"{1:020d}.json")
    log.write_text(log.read_text().replace(file.name, "part%20100%25.parquet"))
    monkeypatch.setattr(delta_log, "_cache", {})
    take(place, BatchRange(1, 1))
    assert left(place) == [2]


def test_two_at_once_do_it_once_and_a_writer_beside_them_loses_nothing(table):
    def write():
        for number in range(6, 12):
            commit_once(table.store, adding(table, number), "live", number, "")

    with ThreadPoolExecutor(max_workers=3) as pool:
        for done in [pool.submit(write), *(pool.submit(take, table, BatchRange(0, 3)) for _ in range(2))]:
            done.result()
    assert left(table) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert opened(table).version() == len(FILES) + 6 + 1
