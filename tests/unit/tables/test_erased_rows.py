"""Emptied rows keep what is counted; rows beside them, and those of other batches at the same place, stay as they are."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.tables.commit import commit, commit_rewritten
from spark_jobs.tables.erased_rows import NO_NAME, erasing, without_names
from spark_jobs.tables.parquet_files import write_file
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN, REJECTED, declared_schema
from spark_jobs.tables.tables import Tables
from tests.helpers.timeline import CALLS

RAW = "raw_analytics"
TEXTS = {
    "key": b"ann-bob",
    "value": b"{}",
    "headers": [{"key": "h", "value": b"ann"}],
    "payload": "1",
    "user1": "ann",
    "user2": "bob",
}
EMPTY = dict.fromkeys(TEXTS)


@pytest.fixture
def tables(empty_tables, tmp_path):
    shutil.copytree(empty_tables, tmp_path / CALLS.name)
    return Tables(str(tmp_path), CALLS)


def fill(tables, table, step, *rows):
    """One file with these columns of the rows; the others are null."""
    schema = to_arrow_schema(declared_schema(tables.pipeline, table), timezone="UTC")
    whole = [{name: row.get(name) for name in schema.names} for row in rows]
    file = write_file(tables.store(table), [pa.RecordBatch.from_pylist(whole, schema=schema)])
    commit(tables, table, [file], step, 1)


def rows(tables, table, *columns):
    found = tables.newest(table).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=str)


def record(offset, batch_id, **columns):
    return {"topic": "t", "partition": 0, "offset": offset, "batch_id": batch_id, "ts": offset, **TEXTS, **columns}


def test_a_raw_row_keeps_place_time_and_batch(tables):
    others = [record(0, 1), record(2, 1)]
    fill(
        tables,
        RAW,
        "landed",
        *others,
        record(1, 1),
        record(3, 1, problem="filtered"),
        record(4, 1, problem="late", user1=None),
    )
    # The same place, landed again after the log was cut.
    fill(tables, RAW, "planned", record(1, 2))
    ids = [("t", 0, offset, 1) for offset in (1, 3, 4)]
    before = {file.name for file in tables.files(RAW)}
    for _ in range(2):
        commit_rewritten(tables, RAW, erasing(tables.pipeline, RAW, ids), RAW, 7)
    assert rows(tables, RAW, "offset", "batch_id", "ts", "problem", *TEXTS) == sorted(
        [
            *((offset, 1, offset, None, *TEXTS.values()) for offset in (0, 2)),
            (1, 2, 1, None, *TEXTS.values()),
            (1, 1, 1, "erased", *EMPTY.values()),
            (3, 1, 3, "filtered", *EMPTY.values()),
            (4, 1, 4, "erased", *EMPTY.values()),
        ],
        key=str,
    )
    # The file without such a row is the same.
    assert len(before & {file.name for file in tables.files(RAW)}) == 1
    assert tables.version(RAW) == 3


def test_an_open_event_is_gone_and_a_file_without_rows_too(tables):
    event = {name: TEXTS[name] for name in ("user1", "user2", "payload")} | {"topic": "t", "partition": 0}
    fill(tables, OPEN, "landed", {**event, "offset": 1, "batch_id": 1})
    fill(tables, OPEN, "planned", {**event, "offset": 2, "batch_id": 1}, {**event, "offset": 1, "batch_id": 2})
    commit_rewritten(tables, OPEN, erasing(tables.pipeline, OPEN, [("t", 0, 1, 1)]), OPEN, 7)
    assert rows(tables, OPEN, "offset", "batch_id", "user1") == [(1, 2, "ann"), (2, 1, "ann")]
    assert len(tables.files(OPEN)) == 1


def test_compounds_and_rejected_rows_keep_their_outcome(tables):
    compound = {
        "pair_id": "t-0-1",
        "op": "upsert",
        "kind": "pair",
        "user1": "ann",
        "user2": "bob",
        "analytics": "1",
        "metrics": "2",
    }
    fill(tables, COMPOUNDS, "landed", *({**compound, "revision": number, "batch_id": number + 1} for number in (0, 1)))
    commit_rewritten(tables, COMPOUNDS, erasing(tables.pipeline, COMPOUNDS, [("t-0-1", 1, 2)]), COMPOUNDS, 7)
    columns = ("pair_id", "revision", "op", "kind", "user1", "user2", "analytics", "metrics")
    assert rows(tables, COMPOUNDS, *columns) == [
        ("t-0-1", 0, "upsert", "pair", "ann", "bob", "1", "2"),
        ("t-0-1", 1, "upsert", "pair", *[None] * 4),
    ]
    refused = {"reason": "late", "topic": "t", "partition": 0, "offset": 1, "batch_id": 1, "key": b"k", "value": b"v"}
    fill(tables, REJECTED, "landed", refused, {**refused, "offset": 2})
    commit_rewritten(tables, REJECTED, erasing(tables.pipeline, REJECTED, [("t", 0, 1, 1)]), REJECTED, 7)
    assert rows(tables, REJECTED, "offset", "reason", "key", "value") == [(1, "late", None, None), (2, "late", b"k", b"v")]


def test_a_breakdown_loses_the_name_of_its_field_alone(tables):
    named = [
        {"family": "top_user", "number": 2, "bucket": None, "field": name, "value": "ann"} for name in ("user1", "user2")
    ]
    count = {"family": "users", "number": 9, "bucket": None, "field": "user1", "value": None}
    row = {"success": True, "metrics": [("pair", 1.0)], "breakdowns": [*named, count]}
    fill(tables, METRICS, "landed", *({**row, "batch_id": number} for number in (1, 2)))
    commit_rewritten(tables, METRICS, without_names([(1, "user1")]), "erased", 7)
    found = {
        number: [each["value"] for each in breakdowns]
        for number, breakdowns in rows(tables, METRICS, "batch_id", "breakdowns")
    }
    assert found == {1: [NO_NAME, "ann", None], 2: ["ann", "ann", None]}
