"""A real S3 server whose answers get lost, that asks for patience, is slow, takes no credentials any more, or is away: rows are there once."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import obstore
import pyarrow as pa
import pytest

from include.config.store import OPTIONS_VARIABLE, Store, warehouse_store
from include.local.machine import ROOT, project_environment
from spark_jobs import land_events, pair_events
from spark_jobs.tables.commit import commit, commit_rows
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.parquet_files import FileWriter
from spark_jobs.tables.schemas import LEDGER, OPEN, raw_table, schemas
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.one_line import line_of
from tests.helpers.reading import table_rows
from tests.helpers.store_proxy import AWAY, EXPIRED, LOST, SKEWED, SLOW_DOWN, Request, StoreProxy
from tests.helpers.stores import root_on
from tests.helpers.timeline import CALLS

pytestmark = pytest.mark.integration

RAW = raw_table(CALLS.left)
COMMIT = re.compile(r"/_delta_log/\d{20}\.json")
FILE = re.compile(r"/part-[^/]*\.parquet")
# Whoever waits for a store that is away need not wait for minutes here.
IMPATIENT = {"max_retries": "2", "retry_timeout": "10s"}


@pytest.fixture
def proxy(s3) -> Iterator[StoreProxy]:
    with StoreProxy(s3.port) as running:
        yield running


@pytest.fixture
def root(s3, proxy, request, monkeypatch) -> str:
    """A warehouse on the server, whose clients go through the proxy and give up soon."""
    place = root_on(s3, re.sub(r"\W+", "_", request.node.name), monkeypatch)
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(s3.options | IMPATIENT | {"aws_endpoint_url": proxy.address}))
    return place


@pytest.fixture
def patient(s3, proxy, root, monkeypatch) -> None:
    """Clients try again as often as they do by themselves."""
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps(s3.options | {"aws_endpoint_url": proxy.address}))


@pytest.fixture
def warehouse(spark, root) -> Warehouse:
    mine = Warehouse(root, CALLS, spark)
    create_missing(mine)
    return mine


def is_(method: str, what: re.Pattern[str], table: str) -> Callable[[Request], bool]:
    return lambda request: request.method == method and f"/{table}/" in request.path and bool(what.search(request.path))


def first(number: int, fits: Callable[[Request], bool], becomes: Any) -> Callable[[Request], Any]:
    """The first requests that fit become something else."""
    left = [number]

    def decide(request: Request) -> Any:
        if left[0] and fits(request):
            left[0] -= 1
            return becomes
        return None

    return decide


def since(fits: Callable[[Request], bool], becomes: Any) -> Callable[[Request], Any]:
    """From the first that fits on, every request."""
    begun: list[bool] = []

    def decide(request: Request) -> Any:
        if begun or fits(request):
            begun.append(True)
            return becomes
        return None

    return decide


def ledger_row(batch_id: int) -> dict[str, Any]:
    return {"batch_id": batch_id, "step": PLANNED}


def assert_once(warehouse: Warehouse, batches: int) -> None:
    """The ledger has one row and one commit for each of the batches 1..`batches`."""
    assert [row["batch_id"] for row in sorted(table_rows(warehouse, LEDGER), key=lambda row: row["batch_id"])] == [
        *range(1, batches + 1)
    ]
    assert warehouse.version(LEDGER) == batches


# 1 is made good by the client itself, which tries again and is told that the file is there; all of them by whoever reads the log again.
@pytest.mark.parametrize("lost", [1, 100])
def test_a_commit_whose_answer_is_lost_is_made_once(lost, warehouse, proxy):
    commit_rows(warehouse, LEDGER, [ledger_row(1)], PLANNED, 1)
    proxy.decide = first(lost, is_("PUT", COMMIT, LEDGER), LOST)
    commit_rows(warehouse, LEDGER, [ledger_row(2)], PLANNED, 2)
    assert len(proxy.hit) == min(lost, 1 + int(IMPATIENT["max_retries"]))
    assert_once(warehouse, 2)
    # And the next one, and the same once more, as if nothing had been.
    proxy.mend()
    for batch_id in (2, 3):
        commit_rows(warehouse, LEDGER, [ledger_row(batch_id)], PLANNED, batch_id)
    assert_once(warehouse, 3)


def test_a_file_whose_answer_is_lost_is_there_once(warehouse, proxy):
    proxy.decide = first(1, is_("PUT", FILE, LEDGER), LOST)
    commit_rows(warehouse, LEDGER, [ledger_row(1)], PLANNED, 1)
    assert len(proxy.hit) == 1
    assert_once(warehouse, 1)
    files = [
        file["path"] for file in obstore.list(warehouse.store(LEDGER).client).collect() if FILE.search(f"/{file['path']}")
    ]
    assert len(files) == 1


def big_rows(megabytes: int) -> Iterator[pa.RecordBatch]:
    """Rows that cannot be made smaller, a megabyte at a time."""
    for number in range(megabytes):
        yield pa.record_batch({"batch_id": [1], "value": [random.randbytes(1_000_000)], "offset": [number]})


@pytest.mark.parametrize("what", ["partNumber=2", "uploadId="])
def test_a_large_file_of_which_an_answer_is_lost_is_there_once(what, warehouse, proxy):
    """Of a part, and of the request that completes it."""
    place = warehouse.place_for_files(RAW)

    def write() -> None:
        with FileWriter(place.store) as writer:
            for rows in big_rows(30):
                columns = [
                    rows[field.name] if field.name in rows.schema.names else pa.nulls(1, field.type)
                    for field in place.schema
                ]
                writer.write(pa.record_batch(columns, schema=place.schema))
            commit(warehouse, RAW, [writer.finish()], RAW, 1)

    method = "PUT" if what.startswith("part") else "POST"
    proxy.decide = first(1, is_(method, re.compile(what), RAW), LOST)
    write()
    assert len(proxy.hit) == 1
    assert sorted(row["offset"] for row in table_rows(warehouse, RAW)) == [*range(30)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("seconds", [8, pytest.param(30, marks=pytest.mark.long)])
def test_a_store_that_asks_for_fewer_requests_gets_them_later(seconds, warehouse, proxy):
    until = time.monotonic() + seconds
    proxy.decide = lambda _: SLOW_DOWN if time.monotonic() < until else None
    commit_rows(warehouse, LEDGER, [ledger_row(1)], PLANNED, 1)
    assert time.monotonic() > until and len(proxy.hit) > 3
    assert_once(warehouse, 1)


def test_a_slow_store_is_no_broken_one(warehouse, proxy):
    proxy.delay_s = 0.2
    for batch_id in (1, 2):
        commit_rows(warehouse, LEDGER, [ledger_row(batch_id)], PLANNED, batch_id)
    assert warehouse.small_rows(LEDGER, 2, 2, ["batch_id"]) == [{"batch_id": 2}]
    assert_once(warehouse, 2)


# Real jobs


def land(warehouse: Warehouse) -> None:
    land_events.main(warehouse, 1_000, ())


# The job, and the request from which on the store has changed.
MOMENTS = [
    (land, "PUT", COMMIT, LEDGER),
    (land, "PUT", FILE, RAW),
    (land, "PUT", COMMIT, RAW),
    (land, "PUT", FILE, LEDGER),
    (pair_events.main, "GET", FILE, RAW),
    (pair_events.main, "PUT", FILE, "compound_events"),
    (pair_events.main, "PUT", COMMIT, OPEN),
]
GONE = {
    "expired": (EXPIRED, "the credentials have expired: renew them in the connection warehouse_default"),
    "skewed": (SKEWED, "the credentials have expired: renew them in the connection warehouse_default"),
    "away": (AWAY, "the store does not answer: check the network and the endpoint in the connection warehouse_default"),
}


def rows_by_batch(warehouse: Warehouse) -> dict[tuple[str, int], int]:
    found: Counter[tuple[str, int]] = Counter()
    for table in schemas(warehouse.pipeline):
        found.update((table, row["batch_id"]) for row in table_rows(warehouse, table) if table not in (LEDGER, OPEN))
    return found


@pytest.mark.parametrize(
    ("what", "moments"),
    [
        ("expired", MOMENTS[1::2]),
        ("away", MOMENTS[2::2]),
        *(pytest.param(what, MOMENTS, marks=pytest.mark.long) for what in GONE),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{len(given)} moments",
)
def test_a_job_ends_in_one_line_and_the_next_one_completes_it(
    what, moments, spark, pipeline, root, proxy, send, capfd, s3, monkeypatch
):
    becomes, line = GONE[what]
    mine = Warehouse(root, replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100, max_future_ms=7_200_000), spark)
    create_missing(mine)
    direct = json.dumps(s3.options)
    sent = 0
    for job, method, request, table in moments:
        now = time.time_ns() // 1_000_000
        send("a", f"u{sent}", now, sent)
        send("m", f"u{sent}", now + 20, sent)
        send("m", f"open{sent}", now + 3_600_000, sent)
        sent += 1
        # Longer than gap and grace: the pair is over when it is landed.
        time.sleep(0.3)
        if job is not land:
            land(mine)
        proxy.decide = since(is_(method, request, table), becomes)
        said = line_of(capfd, mine, job)
        assert (
            f"{root}/{pipeline.name}" in said
            and line in said
            and said.endswith("; completed steps are kept; the next run resumes")
        ), said
        assert s3.secret not in said
        with monkeypatch.context() as patched:
            patched.setenv(OPTIONS_VARIABLE, direct)
            half = rows_by_batch(mine)
        proxy.mend()
        job(mine)
        pair_events.main(mine)
        done = rows_by_batch(mine)
        assert {each: (number, done[each]) for each, number in half.items() if number != done[each]} == {}
    raw = [
        (row["topic"], row["partition"], row["offset"])
        for side in pipeline.sides
        for row in table_rows(mine, raw_table(side))
    ]
    assert len(raw) == len(set(raw)) == 3 * sent
    compounds = [row["user1"] for row in table_rows(mine, "compound_events") if row["kind"] == "pair"]
    assert sorted(compounds) == [f"u{number}" for number in range(sent)]
    assert sorted(row["user1"] for row in table_rows(mine, OPEN)) == [f"open{number}" for number in range(sent)]


# Uploads

WRITER = """
import random, sys, time
import pyarrow as pa
from include.config.store import warehouse_store
from spark_jobs.tables.parquet_files import FileWriter
with FileWriter(warehouse_store(sys.argv[1]).made()) as writer:
    for number in range(int(sys.argv[2])):
        writer.write(pa.record_batch({"value": [random.randbytes(1_000_000)]}))
    print("written", flush=True)
    if sys.argv[3] == "stand":
        time.sleep(600)
    raise SystemExit(sys.argv[3])
"""


@pytest.mark.parametrize(
    "kind", ["s3", pytest.param("azure", marks=pytest.mark.long), pytest.param("folder", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("ends", ["stand", "dropped"])
def test_an_unfinished_file_is_nowhere_to_be_seen(ends, kind, request, tmp_path, monkeypatch):
    root = (
        str(tmp_path / "w") if kind == "folder" else root_on(request.getfixturevalue(kind), f"uploads_{ends}", monkeypatch)
    )
    command = [sys.executable, "-c", WRITER, root, "30", ends]
    with subprocess.Popen(
        command, cwd=ROOT, env=project_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n", process.stderr.read()
        if ends == "stand":
            process.kill()
        assert process.wait(60) == (-9 if ends == "stand" else 1)
    place: Store = warehouse_store(root)
    assert obstore.list(place.client).collect() == []
