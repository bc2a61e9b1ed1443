"""A batch that is not small is worked on by the job's own workers where Spark would work on this machine, too: without a JVM, and all is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from include.local.broker import create_topics
from include.local.machine import ROOT
from spark_jobs import pair_events, publish_compounds
from spark_jobs.stages.pairing_input import bucket_of_key, events_to_shuffle, few_events
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import land
from tests.helpers.comparing import differences, rows
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.timeless_traffic import Portions, timeless

pytestmark = pytest.mark.integration

NO_JVM = {"MASTER": "local[2]", "JAVA_HOME": "/nowhere", "SPARK_HOME": "/nowhere"}
# Runs a job whose workers may hold almost nothing.
NARROW = """
import runpy, sys
from spark_jobs.spark import local_shuffle
local_shuffle.BYTES_OF_A_BUCKET = 100
job, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(f"spark_jobs.{job}", run_name="__main__")
"""


@pytest.fixture
def two(broker, tmp_path, monkeypatch, request):
    """Two pipelines on the same topics: jobs whose own workers do all the work of the first, the tables of the second, and what sends to both."""
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": broker.bootstrap}))
    topics = f"own_workers_{abs(hash(request.node.name)):x}"
    (by_workers, file), (alone, _) = (
        timeless(f"{topics}_{name}", topics, tmp_path / "jobs") for name in ("spread", "alone")
    )
    root = str(tmp_path / "warehouse")
    jobs = Jobs(file, by_workers, broker.bootstrap, "", root, by_workers=True)
    jobs.environment |= {"MASTER": "local[2]"}
    return jobs, Warehouse(root, alone, None), Portions(broker, by_workers, alone)


def alone(warehouse):
    for job in (land, pair_events.main, publish_compounds.main):
        job(warehouse)


def test_workers_do_the_same_without_a_jvm(two, broker):
    jobs, calm, portions = two
    jobs.environment |= NO_JVM
    for number in range(3):
        # The third batch has only open events.
        if number < 2:
            portions.send()
        for job in JOBS[:3]:
            jobs.run(job)
        alone(calm)
    assert differences(broker.bootstrap, calm.root, jobs.pipeline, calm.pipeline) == []
    assert all(rows(calm.root, jobs.pipeline, table).total() > 5 for table in (COMPOUNDS, REJECTED, OPEN))


@pytest.mark.parametrize("narrow", [JOBS[1:2], pytest.param(JOBS[1:3], marks=pytest.mark.long)], ids="-".join)
def test_what_no_worker_could_hold_is_left_to_spark(narrow, two, broker):
    jobs, calm, portions = two
    portions.send()
    jobs.run("land_events")
    said = {"pair_events": "Spark pairs this batch: ", "publish_compounds": "Spark publishes these batches: "}
    for job in JOBS[1:3]:
        if job not in narrow:
            jobs.run(job)
            continue
        command = [sys.executable, "-c", NARROW, job, "--pipeline", str(jobs.file)]
        done = subprocess.run(
            command, cwd=ROOT, env=jobs.environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert done.returncode == 0, done.stderr
        assert said[job] in done.stdout
    alone(calm)
    assert differences(broker.bootstrap, calm.root, jobs.pipeline, calm.pipeline) == []


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.long), "keys in any order", "several topics"])
def test_workers_read_the_events_that_the_job_would_read(kind, broker, tmp_path, monkeypatch):
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": broker.bootstrap}))
    name = f"read_by_workers_{kind.split()[-1]}"
    pipeline, _ = timeless(name, name, tmp_path / "jobs")
    portions = Portions(broker, pipeline)
    if kind == "keys in any order":
        pipeline = replace(pipeline, key_order="any")
    if kind == "several topics":
        # In both orders of their names.
        sides = (
            replace(side, topic=tuple(sorted((side.topic, other))))
            for side, other in zip(pipeline.sides, ("a", "z"), strict=True)
        )
        pipeline = replace(pipeline, **dict(zip(("left", "right"), sides, strict=True)))
        create_topics(broker.bootstrap, dict.fromkeys("az", 1))
    warehouse = Warehouse(str(tmp_path / "warehouse"), pipeline, None)
    for _ in range(2):
        portions.send()
        if kind == "several topics":
            portions.producer.produce(
                "a", json.dumps({"user1": "u", "user2": "v", "timestamp": 1_700_000_000_000, "analytics": 1})
            )
            portions.producer.flush(20)
        land(warehouse)
        if not Ledger(warehouse).last_ids()["paired"]:
            pair_events.main(warehouse)
    planned = Ledger(warehouse).last_batch()["planned"]
    parts, read, size = events_to_shuffle(warehouse, planned)
    alone, spread = few_events(warehouse, planned), pa.Table.from_batches(rows for part in parts for rows in read(part))
    assert spread.schema == alone.schema and size > 0
    assert Counter(map(str, spread.to_pylist())) == Counter(map(str, alone.to_pylist()))
    assert {(row["side"], row["is_open"]) for row in spread.to_pylist()} >= {(0, False), (1, False), (0, True)}
    # All rows of a key are in one bucket.
    buckets = {}
    for piece in spread.to_batches():
        for row, bucket in zip(piece.to_pylist(), bucket_of_key(piece, pipeline.key, 5), strict=True):
            buckets.setdefault((row["user1"], row["user2"]), set()).add(bucket)
    assert {len(each) for each in buckets.values()} == {1} and len(set.union(*buckets.values())) > 2
