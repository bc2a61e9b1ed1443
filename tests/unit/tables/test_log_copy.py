"""A table on a real S3 server, read and committed to through a copy of its log: what delta-rs finds there is what it would have written itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from obstore.exceptions import GenericError
from pyspark.sql.types import LongType, StructType

from include.config.store import list_names, read_bytes, warehouse_store
from include.local.machine import ROOT
from spark_jobs.tables import delta_log
from spark_jobs.tables.commit import BatchRange, commit_once, removal_actions
from spark_jobs.tables.delta_log import create, lock_in_place, newest_table, table_at_version
from spark_jobs.tables.log_copy import LogCopy
from spark_jobs.tables.parquet_files import FilePlace
from tests.helpers.stores import requests_of, root_on
from tests.helpers.table_in_a_folder import add_of, written

SCHEMA = pa.schema([("batch_id", pa.int64())])
PROPERTIES = {"delta.checkpointInterval": "5", "delta.dataSkippingStatsColumns": "batch_id"}


@pytest.fixture
def place(s3, request, monkeypatch):
    """Of a table without rows, which this process has not opened."""
    monkeypatch.setattr(delta_log, "_cache", {})
    root = root_on(s3, re.sub(r"\W+", "_", request.node.name), monkeypatch)
    store = warehouse_store(root).at("table")
    create(store, StructType().add("batch_id", LongType()), PROPERTIES)
    return FilePlace(store, SCHEMA)


def add(place, number, app_id="app"):
    file = written(place.store, pa.RecordBatch.from_pylist([{"batch_id": number}], schema=SCHEMA))
    commit_once(place.store, lambda _: [add_of(file)], app_id, number, f"batch {number}")


def there(place, version=None):
    """The table as delta-rs finds it on the store."""
    return DeltaTable(place.store.uri, version, place.store.delta_options)


def left(place):
    return sorted(there(place).to_pyarrow_table()["batch_id"].to_pylist())


def another_process(place, number):
    """Commits what this process has not seen, by delta-rs alone."""
    rows = pa.table({"batch_id": [number]}, SCHEMA)
    write_deltalake(place.store.uri, rows, mode="append", storage_options=place.store.delta_options)


def forget():
    """As a job of its own, which knows no table yet."""
    delta_log._cache.clear()


def test_what_is_committed_is_what_delta_rs_commits(place):
    for number in range(1, 14):
        add(place, number)
        if number % 4 == 0:
            forget()
    assert left(place) == [*range(1, 14)]
    assert (there(place).version(), there(place).transaction_version("app")) == (13, 13)
    history = there(place).history()
    assert [each.get("userMetadata") for each in history][:3] == ["batch 13", "batch 12", "batch 11"]
    names = list_names(place.store)
    assert [name for name in names if name.endswith(".checkpoint.parquet")] == [
        f"_delta_log/{version:020d}.checkpoint.parquet" for version in (4, 9)
    ]
    # A reader who begins at the checkpoint finds all of it, too.
    assert json.loads(read_bytes(place.store, "_delta_log/_last_checkpoint"))["version"] == 9
    obstore.delete(place.store.client, [f"_delta_log/{version:020d}.json" for version in range(9)])
    forget()
    add(place, 13)
    add(place, 14)
    assert left(place) == [*range(1, 15)]


def test_rows_go_in_the_same_commit(place):
    for number in range(1, 7):
        add(place, number)
    forget()
    taken = BatchRange(2, 4)
    commit_once(place.store, lambda known: [*removal_actions(known, place, taken)], "removal", 1, "")
    assert left(place) == [1, 5, 6]


def test_others_commits_are_seen_and_those_made_meanwhile_are_lost_to(place):
    add(place, 1)
    another_process(place, 20)
    assert newest_table(place.store).version() == 2
    seen = []

    def actions(known):
        seen.append(known.version())
        if len(seen) < 3:
            another_process(place, 20 + len(seen))
        return [add_of(written(place.store, pa.RecordBatch.from_pylist([{"batch_id": 2}], schema=SCHEMA)))]

    commit_once(place.store, actions, "app", 2, "")
    assert seen == [2, 3, 4]
    assert left(place) == [1, 2, 20, 21, 22]


def test_of_many_writers_each_writes_once(place):
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: add(place, number // 2, f"writer{number // 2}"), range(16)))
    assert left(place) == [*range(8)]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_put_whose_answer_is_lost_is_read_back(place, arrived, monkeypatch):
    add(place, 1)
    put, lost = obstore.put, []

    def lose(client, name, content, **options):
        if name.endswith(".json") and not lost:
            lost.append(name)
            if arrived:
                put(client, name, content, **options)
            raise GenericError("error sending request")
        return put(client, name, content, **options)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", lose)
        if arrived:
            add(place, 2)
        else:
            with pytest.raises(GenericError):
                add(place, 2)
    assert left(place) == ([1, 2] if arrived else [1])
    # What is in the copy alone was never committed.
    assert newest_table(place.store).version() == len(left(place))
    add(place, 2)
    assert left(place) == [1, 2]


def test_a_checkpoint_that_cannot_be_put_harms_nothing(place, monkeypatch):
    put = obstore.put

    def refuse(client, name, content, **options):
        if "checkpoint" in name:
            raise GenericError("503 Slow Down")
        return put(client, name, content, **options)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", refuse)
        for number in range(1, 8):
            add(place, number)
    assert left(place) == [*range(1, 8)]


def test_a_log_that_was_cut_meanwhile_is_copied_anew(place):
    for number in range(1, 4):
        add(place, number)
    assert newest_table(place.store).version() == 3
    for number in range(4, 9):
        another_process(place, number)
    table = there(place)
    table.create_checkpoint()
    obstore.delete(place.store.client, [f"_delta_log/{version:020d}.json" for version in range(4, 8)])
    add(place, 9)
    assert (left(place), newest_table(place.store).version()) == ([*range(1, 10)], 9)


def test_an_earlier_version_is_read_from_the_copy_or_from_the_store(place):
    for number in range(1, 8):
        add(place, number)
    forget()
    # The copy begins with the checkpoint of version 4.
    for version in (6, 5, 4, 3, 0):
        known = table_at_version(place.store, version)
        assert (known.version(), pa.table(known.get_add_actions(flatten=True)).num_rows) == (version, version)


def test_what_delta_rs_changes_in_place_is_seen(place):
    add(place, 1)
    with lock_in_place(place.store) as table:
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 5 days"})
    assert newest_table(place.store).metadata().configuration["delta.logRetentionDuration"] == "interval 5 days"
    add(place, 2)
    assert (left(place), there(place).version()) == ([1, 2], 3)


def test_a_log_with_other_checkpoints_is_read_where_it_lies(place):
    add(place, 1)
    files = [file._replace(kind="checkpoint.0000000001.0000000002.parquet") for file in delta_log._list_log(place.store, 0)]
    assert not LogCopy.can_be_made(files)
    assert LogCopy.can_be_made(delta_log._list_log(place.store, 0))
    assert not LogCopy.can_be_made([])


def test_each_file_of_a_log_is_asked_for_once_and_a_commit_is_one_put(place, s3):
    for number in range(1, 8):
        add(place, number)
    forget()
    begin = s3.access_log.stat().st_size
    newest_table(place.store)
    opened = log_requests(s3, begin)
    # What the checkpoint's version and two more have.
    assert opened == {"_last_checkpoint": 1, "LIST": 1, "json": 4, "parquet": 1}
    begin = s3.access_log.stat().st_size
    add(place, 8)
    assert log_requests(s3, begin) == {"LIST": 1, "PUT json": 1}
    begin = s3.access_log.stat().st_size
    add(place, 9)
    assert log_requests(s3, begin) == {"LIST": 1, "PUT json": 1, "PUT parquet": 1, "PUT _last_checkpoint": 1}


def log_requests(s3, begin):
    """What for -> requests since the server's own log was that long. It is written a moment after the answer."""
    time.sleep(0.5)
    found = Counter()
    for operation, key in requests_of(s3, begin):
        what = key.rpartition("/")[2].rpartition(".")[2]
        if operation == "ListObjectsV2":
            found["LIST"] += 1
        elif "/_delta_log/" in key:
            found[f"PUT {what}" if operation == "PutObject" else what] += 1
    return found


def test_a_copy_is_deleted_with_it(place, monkeypatch, tmp_path):
    monkeypatch.setattr("spark_jobs.tables.log_copy._folder_of_process", lambda: tmp_path)
    add(place, 1)
    assert len([*tmp_path.iterdir()]) == 1
    forget()
    assert not [*tmp_path.iterdir()]


def test_a_version_that_is_there_is_refused_by_the_store(place):
    """Two copies of one version; the second is the slower writer."""
    add(place, 1)
    files = delta_log._list_log(place.store, 0)
    first, second = (LogCopy(place.store, files) for _ in range(2))
    fence = CommitProperties(max_commit_retries=0, app_transactions=[Transaction("x", 1)])
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    first.commit([], fence, hooks)
    with pytest.raises(CommitFailedError, match="version 2"):
        second.commit([], fence, hooks)
    assert there(place).version() == 2


ANOTHER = """
import time
from spark_jobs.tables.log_copy import _folder_of_process
folder = _folder_of_process()
(folder / "a copy").mkdir()
print(folder, flush=True)
time.sleep({})
"""


@pytest.fixture
def another(tmp_path):
    """Starts a process that has a folder for copies; gives it and the folder."""
    started = []

    def start(seconds=60):
        command = [sys.executable, "-c", ANOTHER.format(seconds)]
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1], Path(started[-1].stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_a_killed_process_left_is_deleted_by_the_next(another, tmp_path):
    alive, its = another()
    killed, left = another()
    killed.kill()
    killed.wait()
    assert (its / "a copy").is_dir() and (left / "a copy").is_dir()
    ended, third = another(0)
    assert ended.wait(20) == 0
    # Not one of those that are in use, and the third has deleted its own.
    assert alive.poll() is None and [*tmp_path.iterdir()] == [its]
    assert third.parent == tmp_path
