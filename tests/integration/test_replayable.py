"""The same plan gives the same rows, however Spark cuts the work up and in whatever order the events lie in the tables."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from include.local.machine import ROOT, project_environment
from spark_jobs import land_events, pair_events
from spark_jobs.corrections import unfinished
from spark_jobs.spark import session, workers
from spark_jobs.spark.session import override_settings
from spark_jobs.stages import land, pair, pairing_input
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.schemas import OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers.reading import table_rows
from tests.helpers.tampering import replace_rows

pytestmark = pytest.mark.integration

TABLES = ("raw_analytics", "raw_metrics", "compound_events", "rejected_events", "open_events")
PAYLOADS = ['"é\\u0000"', '{"a": 1.10, "a":[1e400]}', "12345678901234567890123456789", "null", '""', '{"b":null}', "-0"]
HOUR_MS = 3_600_000


@pytest.fixture
def planned(warehouse, pipeline, broker, monkeypatch):
    """A warehouse with one paired batch that left events open, and the plan of a second one, an hour later, over all kinds."""
    chance, now = random.Random(7), time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send(events, begin, length):
        for _ in range(events):
            side = chance.choice(pipeline.sides)
            # Few users and few moments: chains, equal timestamps, duplicates.
            ts = begin + chance.randrange(0, length, 5_000)
            body = f'{{"user1":"u{chance.randrange(12)}","user2":"v","timestamp":{ts},"{side.payload}":{chance.choice(PAYLOADS)}}}'
            if chance.random() < 0.03:
                body = chance.choice(
                    ["{nope", "{}", body.replace(f"{ts}", "-1"), body.replace(f"{ts}", f"{now + 2 * HOUR_MS}")]
                )
            producer.produce(side.topic, body.encode(), partition=chance.randrange(PARTITIONS))
        assert producer.flush(20) == 0

    send(150, now - 200_000, 150_000)
    land_events.main(warehouse, 1_000_000, ())
    assert pair_events.main(warehouse)["open_after"] > 0
    send(100, now - 6 * HOUR_MS, 1_000_000)
    send(300, now - 300_000, 1_000_000)
    send(100, now + HOUR_MS - 200_000, 150_000)
    ledger = Ledger(warehouse)
    ask = land.ask_inputs
    with monkeypatch.context() as patch:
        patch.setattr(land, "ask_inputs", lambda *given: ask(*given)._replace(wall_time=now + HOUR_MS))
        land.plan_batch(warehouse, ledger, unfinished.finish_batch(warehouse, ledger), 1_000_000, ())
    return warehouse


def shuffle_tables(copy: Warehouse, seed: int) -> None:
    """Lays the landed rows of the second batch, and the open events, into other files in another order."""
    for table in (*map(raw_table, copy.pipeline.sides), OPEN):
        rows = DeltaTable(copy.path(table)).to_pyarrow_table()
        replace_rows(copy, table, rows.take(random.Random(seed).sample(range(rows.num_rows), rows.num_rows)), files=5)


def rows_of(copy: Warehouse) -> dict[str, list[str]]:
    return {table: sorted(map(repr, table_rows(copy, table))) for table in TABLES}


def paired(copy: Warehouse, shuffled: int | None = None) -> dict[str, object]:
    """Lands and pairs the second batch as it was planned; all rows, and what the ledger says of it."""
    ledger = Ledger(copy)
    plan = ledger.last_batch()[PLANNED]
    landed = land.land_batch(copy, ledger, plan)
    if shuffled is not None:
        shuffle_tables(copy, shuffled)
        plan = replace(plan, versions={OPEN: copy.version(OPEN)})
    done = pair.pair_batch(copy, ledger, plan, landed)
    return {**rows_of(copy), "clock": done.clock, "counts": done.counts, "landed": landed.counts}


def paired_on_one_core(copy: Warehouse, folder: Path) -> dict[str, list[str]]:
    """Lands the second batch here, pairs it in a Spark that has a single core; all rows."""
    ledger = Ledger(copy)
    land.land_batch(copy, ledger, ledger.last_batch()[PLANNED])
    job = ["spark_jobs/pair_events.py", "--pipeline", str(yaml_of(copy.pipeline, folder))]
    environment = project_environment() | {"PAIRING_WAREHOUSE": copy.root}
    submit = ["spark-submit", "--master", "local[1]", *job]
    done = subprocess.run(submit, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return rows_of(copy)


def test_the_same_rows_however_it_is_run(planned, spark, monkeypatch, tmp_path):
    def run(name, settings=(), shuffled=None, **constants):
        shutil.copytree(planned.root, tmp_path / name)
        copy = Warehouse(str(tmp_path / name), planned.pipeline, spark)
        with monkeypatch.context() as patch, override_settings(spark, dict(settings)):
            for constant, (module, value) in constants.items():
                patch.setattr(module, constant, value)
            return paired(copy, shuffled)

    expected = run("as it comes")
    counts = expected["counts"]
    assert all(
        getattr(counts, name) > 0
        for name in ("open_before", "pair", "left_only", "right_only", "duplicate", "late", "open_after")
    ), counts
    partitions, at_once = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch"
    many_tasks, few_rows = (pairing_input, 60), (pairing_input, 7)
    few_counted = (workers, {at_once: "11"})
    compiled, interpreted = (session, 0), (session, 10**9)
    variants = {
        "many tasks": run("1", [(partitions, "13")], EVENTS_A_TASK=many_tasks, MANY_ROWS=interpreted),
        "few rows at once": run("2", [(partitions, "1"), (at_once, "3")], _ROWS_AT_ONCE=few_rows),
        "compiled, adaptive": run("3", [(partitions, "7")], MANY_ROWS=compiled, _NOT_SIZED=few_counted),
        "another order, compiled": run("4", [(at_once, "11")], shuffled=1, MANY_ROWS=compiled, EVENTS_A_TASK=many_tasks),
    }  # fmt: skip
    for name, found in variants.items():
        for part in found:
            assert found[part] == expected[part], f"{name}: {part}"


@pytest.mark.long
def test_the_same_rows_on_one_core(planned, spark, tmp_path):
    copies = [Warehouse(str(shutil.copytree(planned.root, tmp_path / name)), planned.pipeline, spark) for name in ("1", "2")]
    found, expected = paired_on_one_core(copies[0], tmp_path), paired(copies[1])
    assert found == {part: expected[part] for part in found}
