"""A store is written to only after it has refused all but one of many writers of one object; a store that has done so is not asked again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import MemoryStore

from include.config.store import Store
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables import one_writer as probe
from spark_jobs.tables.one_writer import PROBE_RESULT, check_store

PUT = obstore.put


@pytest.fixture
def store(tmp_path):
    return Store(f"{tmp_path}/calls")


@pytest.fixture
def bucket(monkeypatch):
    """A store that is no folder, and its content."""
    content = MemoryStore()
    monkeypatch.setattr("include.config.store._client", lambda *_: content)
    return Store("s3://lake/calls", {"aws_endpoint_url": "http://one:9000"}), content


def putting(monkeypatch, put):
    """Lets `put(key, value)` stand in for puts of what must not exist yet; the others are real."""

    def stand_in(client, key, value, mode=None, **named):
        return put(client, key, value) if mode == "create" else PUT(client, key, value, mode=mode, **named)

    monkeypatch.setattr(probe.obstore, "put", stand_in)


def result(store):
    return json.loads(Path(store.uri, PROBE_RESULT).read_text())


def test_a_folder_passes_and_is_not_asked_again(store, monkeypatch):
    check_store(store)
    assert [file.name for file in Path(store.uri).rglob("*") if file.is_file()] == [PROBE_RESULT]
    assert (result(store)["store"], result(store)["put_if_absent"]) == ({"uri": store.uri, "endpoint": ""}, "refused")

    def asked(*_):
        raise AssertionError("the store was asked again")

    putting(monkeypatch, asked)
    check_store(store)


def test_a_store_is_asked_by_many_at_once_and_once_more(bucket, monkeypatch):
    store, content = bucket
    asked, together = [], threading.Barrier(probe._RACERS, timeout=10)

    def put(client, key, value):
        asked.append(key)
        if asked.count(key) <= probe._RACERS:
            together.wait()
        return PUT(client, key, value, mode="create")

    putting(monkeypatch, put)
    check_store(store)
    assert {asked.count(key) for key in asked} == {probe._RACERS + 1} and len(set(asked)) == probe._RACES > 1
    assert [file["path"] for file in obstore.list(content).collect()] == [PROBE_RESULT]


def writes_over(wins):
    """Puts that succeed for the first `wins` of a key, whatever was asked."""
    seen = []

    def put(client, key, value):
        seen.append(key)
        if seen.count(key) > wins:
            raise AlreadyExistsError(key)
        return PUT(client, key, value)

    return put


@pytest.mark.parametrize("wins", [2, probe._RACERS, probe._RACERS + 1])
def test_a_store_that_lets_two_win_is_refused(wins, bucket, monkeypatch):
    store, content = bucket
    putting(monkeypatch, writes_over(wins))
    line = f"^the store of s3://lake/calls let {wins} of 9 writers create the same object: it does not honour put-if-absent"
    for _ in range(2):
        with pytest.raises(NeedsOperator, match=line):
            check_store(store)
    assert obstore.list(content).collect() == [], "nothing is left, and nothing is taken for a result"


def test_what_the_race_says_is_not_drowned_by_the_objects_that_there_never_were(store, monkeypatch):
    """Folders, Azure and GCS do not delete what is not there."""
    putting(monkeypatch, writes_over(2))
    with pytest.raises(NeedsOperator, match="let 2 of 9 writers"):
        check_store(store)
    assert [file for file in Path(store.uri).rglob("*") if file.is_file()] == []


def test_a_store_that_lets_the_second_win_when_nobody_races_is_refused(bucket, monkeypatch):
    """It compares only what is under way at the same time."""
    seen = []

    def put(client, key, value):
        seen.append(key)
        if 1 < seen.count(key) <= probe._RACERS:
            raise PreconditionError(key)
        return PUT(client, key, value)

    putting(monkeypatch, put)
    with pytest.raises(NeedsOperator, match="let 2 of 9 writers"):
        check_store(bucket[0])


def test_a_store_that_lets_two_win_in_one_race_of_many_is_refused(bucket, monkeypatch):
    keys = []

    def put(client, key, value):
        if key not in keys:
            keys.append(key)
        return PUT(client, key, value, mode="overwrite" if keys.index(key) == probe._RACES - 1 else "create")

    putting(monkeypatch, put)
    with pytest.raises(NeedsOperator, match="let 9 of 9 writers"):
        check_store(bucket[0])


def test_a_store_that_lets_nobody_win_is_refused(bucket, monkeypatch):
    def put(_, key, __):
        raise PreconditionError(key)

    putting(monkeypatch, put)
    with pytest.raises(NeedsOperator, match="let 0 of 9 writers"):
        check_store(bucket[0])


def test_a_store_that_does_not_know_the_condition_is_told_as_what_it_says(bucket, monkeypatch):
    def put(*_):
        raise GenericError("Generic S3 error: Error performing PUT http://one:9000/lake: 501 Not Implemented")

    putting(monkeypatch, put)
    with pytest.raises(
        NeedsOperator,
        match=r"^the store of s3://lake/calls cannot be used: the store lacks what a table needs: use one that honours If-None-Match",
    ):
        check_store(bucket[0])


def test_another_error_is_told_in_one_line(bucket, monkeypatch):
    def put(*_):
        raise GenericError("Generic S3 error: something new\n\nDebug source:\nGeneric {…}")

    putting(monkeypatch, put)
    with pytest.raises(
        JobProblem, match=r"^s3://lake/calls cannot be used: Generic S3 error: something new; completed steps"
    ):
        check_store(bucket[0])


@pytest.mark.parametrize(
    ("content", "is_asked"),
    [
        ('{"store": {"uri": "s3://lake/calls", "endpoint": "http://one:9000"}}', False),
        # Another store's, copied with the tables, or the same one behind another door.
        ('{"store": {"uri": "s3://other/calls", "endpoint": "http://one:9000"}}', True),
        ('{"store": {"uri": "s3://lake/calls", "endpoint": "http://two:9000"}}', True),
        ('{"store": {"uri": "s3://lake/calls", "endpoint": ""}}', True),
        ("{}", True),
        ("[]", True),
        ("", True),
        ("{", True),
        (b"\xff", True),
    ],
)
def test_only_a_result_of_this_very_store_counts(content, is_asked, bucket, monkeypatch):
    store, there = bucket
    PUT(there, PROBE_RESULT, content if isinstance(content, bytes) else content.encode())
    asked = []

    def put(client, key, value):
        asked.append(key)
        return PUT(client, key, value, mode="create")

    putting(monkeypatch, put)
    check_store(store)
    assert bool(asked) == is_asked
    check_store(store)
    assert len(asked) == is_asked * probe._RACES * (probe._RACERS + 1)
