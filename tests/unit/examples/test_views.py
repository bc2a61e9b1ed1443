"""The views over the tables, in each program of docs/readers.md, on tables with corrections, retractions and rejected bytes that are no text."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jobs.rules.reasons import Reason
from tests.helpers.stored_tables import FOLDER
from tests.helpers.timeline import ROOT

COMPOUNDS, REJECTED = "compound_events", "rejected_events"
PAGE = (ROOT / "docs" / "readers.md").read_text()
BATCH = 1_000
# What is not UTF-8, and a time that no program can show.
UNREADABLE = {
    "reason": "malformed_json", "topic": "calls", "partition": 0, "offset": 7, "record_timestamp": 2**63 - 1, "key": None, "value": b"\xff{",
    "batch_id": BATCH,
}  # fmt: skip


def block(name):
    """The code of the page behind the mark."""
    return re.search(rf"<!-- {name} -->\n\n```python\n(.*?)^```", PAGE, re.M | re.S)[1]


def run(name, folder, **given):
    """What the names of a block are after it has run."""
    known = {"FOLDER": str(folder), **given}
    exec(compile(block(name).replace('"docs/examples', f'"{ROOT}/docs/examples'), name, "exec"), known)
    return known


@pytest.fixture
def tables(tmp_path):
    """The folder of tables that the jobs of 1.0 wrote: three batches, a replay, a rewind, a batch, maintenance; and a row more."""
    folder = shutil.copytree(FOLDER / "calls", tmp_path / "calls")
    append(folder, REJECTED, UNREADABLE)
    # The order of rows in a table says nothing.
    one = rows(folder, COMPOUNDS)[0] | {"pair_id": "turned", "op": "upsert", "kind": "left_only", "batch_id": 6}
    append(folder, COMPOUNDS, one | {"revision": 1}, one | {"revision": 0})
    return folder


def append(folder, table, *new):
    uri = str(folder / table)
    write_deltalake(uri, pa.Table.from_pylist(new, pa.schema(DeltaTable(uri).schema().to_arrow())), mode="append")


def rows(tables, table):
    return DeltaTable(tables / table).to_pyarrow_table().to_pylist()


def expected(tables):
    """What the views have, by rules of their own: pair_ids of the newest revisions, those of orphans; (offset, reason, texts) of rejected rows."""
    newest = {}
    for row in sorted(rows(tables, COMPOUNDS), key=lambda row: row["revision"]):
        newest[row["pair_id"]] = row
    latest = {(pair_id, row["revision"]) for pair_id, row in newest.items() if row["op"] == "upsert"}
    orphans = {
        (pair_id, row["revision"]) for pair_id, row in newest.items() if row["op"] == "upsert" and row["kind"] != "pair"
    }
    rejected = sorted(
        (
            row["topic"],
            row["partition"],
            row["offset"],
            row["reason"],
            row["value"].decode() if row["batch_id"] != BATCH else None,
        )
        for row in rows(tables, REJECTED)
    )
    assert len(orphans) < len(latest) < len(newest) < len(rows(tables, COMPOUNDS)) and rejected
    return latest, orphans, rejected


def shown(latest, orphans, rejected):
    """The same of frames of pandas."""
    keys = [{*frame[["pair_id", "revision"]].itertuples(index=False, name=None)} for frame in (latest, orphans)]
    assert [len(frame) for frame in (latest, orphans)] == [len(each) for each in keys]
    columns = ["topic", "partition", "offset", "reason", "value_text"]
    texts = rejected[columns].astype(object).where(rejected[columns].notna(), None)
    return *keys, sorted(texts.itertuples(index=False, name=None), key=lambda row: row[:4])


def test_duckdb(tables):
    connection = run("duckdb", tables)["connection"]
    frames = {name: connection.sql(f"FROM {name}").df() for name in ("calls_latest", "orphans", "rejected_readable")}
    assert shown(*frames.values()) == expected(tables)
    sides = {*frames["orphans"][["kind", "missing_side"]].itertuples(index=False, name=None)}
    assert sides == {("left_only", "right"), ("right_only", "left")}
    ((at, ts),) = connection.sql("SELECT event_time, ts FROM orphans ORDER BY ts LIMIT 1").fetchall()
    assert at.replace(tzinfo=UTC) == datetime.fromtimestamp(ts / 1000, UTC)
    because = {*frames["rejected_readable"][["reason", "because"]].itertuples(index=False, name=None)}
    assert because == {(reason, Reason(reason).sentence) for reason, _ in because} and len(because) == 6
    (unreadable,) = connection.sql(
        f"SELECT record_time, value_text FROM rejected_readable WHERE batch_id = {BATCH}"
    ).fetchall()
    assert unreadable == (None, None)


@pytest.mark.long
def test_polars(tables):
    known = run("polars", tables)
    assert shown(*(known[name].to_pandas() for name in ("calls_latest", "orphans", "rejected_readable"))) == expected(tables)


def test_pandas(tables):
    known = run("pandas", tables)
    assert shown(*(known[name] for name in ("calls_latest", "orphans", "rejected_readable"))) == expected(tables)


def test_every_reason_has_its_sentence():
    query = (ROOT / "docs/examples/views/rejected_readable.sql").read_text()
    listed = dict(re.findall(r"WHEN '(\w+)' THEN '((?:[^']|'')*)'", query))
    assert {reason: text.replace("''", "'") for reason, text in listed.items()} == {
        str(each): each.sentence for each in Reason
    }


def test_new_rows_are_those_of_later_batches(tables):
    newest = max(rows(tables, COMPOUNDS), key=lambda row: row["batch_id"])
    assert run("incremental", tables, LAST=newest["batch_id"])["new"].empty
    append(tables, COMPOUNDS, newest | {"pair_id": "new", "batch_id": newest["batch_id"] + 1})
    assert [*run("incremental", tables, LAST=newest["batch_id"])["new"]["pair_id"]] == ["new"]
