"""kill -9 of jobs that have a Spark of their own; every point of every job is in test_kill_matrix.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress

import pytest

from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from spark_jobs import land_events, pair_events
from spark_jobs.kafka import offsets
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers.job_processes import Faults, wait_for
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALLS = 40


@pytest.fixture
def faults(tmp_path) -> Faults:
    (tmp_path / "faults").mkdir()
    return Faults(tmp_path / "faults")


@pytest.fixture
def submit(faults, pipeline, broker, tmp_path):
    """submit(job) runs it to its end; submit(job, kill_at=point) kills it there, with everything it started."""
    environment = project_environment() | {
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap}),
        "PAIRING_WAREHOUSE": str(tmp_path / "warehouse"),
        "PAIRING_FAULT_DIR": str(faults.folder),
    }
    file, log = yaml_of(pipeline, tmp_path), tmp_path / "job.log"

    def run(job, kill_at=None):
        command = ["spark-submit", f"spark_jobs/{job}.py", "--pipeline", str(file)]
        if kill_at:
            faults.arm(kill_at)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        if kill_at:
            wait_for(lambda: faults.is_reached(kill_at) or process.poll() is not None, kill_at, 180)
            assert faults.is_reached(kill_at), log.read_text()
            os.killpg(process.pid, signal.SIGKILL)
            # Spark's Python workers are a group of their own; the one that stands at the point is killed, too.
            with suppress(ProcessLookupError):
                os.kill(faults.who(kill_at), signal.SIGKILL)
            faults.disarm(kill_at)
        assert process.wait(timeout=180) == (-signal.SIGKILL if kill_at else 0), log.read_text()

    return run


@pytest.mark.long
def test_a_job_with_a_spark_of_its_own_is_killed_together_with_it(submit, send, pipeline, broker, warehouse):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(CALLS):
        send("a", f"u{number}", ago + number, number)
    submit("land_events", kill_at="after_planned")
    (planned,) = table_rows(warehouse, "batch_ledger")
    # Sent after the plan: must not slip into the batch that is finished as planned, nor move its clock.
    send("a", "next", ago, "y")
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    submit("publish_compounds", kill_at="transaction_half_sent")
    seen = consume(broker.bootstrap, pipeline.output_topic)
    assert len({message["partition"] for message in seen}) < PARTITIONS, "nothing of an open transaction may be seen"
    submit("publish_compounds")

    steps = {(row["batch_id"], row["step"]): row for row in table_rows(warehouse, "batch_ledger")}
    assert steps[1, "landed"]["clock"] == steps[1, "paired"]["clock"] == planned["wall_time"]
    # Over before the first batch's clock.
    assert [(row["batch_id"], row["reason"]) for row in table_rows(warehouse, "rejected_events")] == [(2, "late")]
    compounds = table_rows(warehouse, "compound_events")
    assert Counter(row["user1"] for row in compounds) == {f"u{number}": 1 for number in range(CALLS)}
    published = consume(broker.bootstrap, pipeline.output_topic)
    assert Counter(message["pair-id"] for message in published) == Counter(row["pair_id"] for row in compounds)


def test_a_second_writer_waits_and_then_names_the_holder(tmp_path):
    from spark_jobs.tables.one_writer import LockedOut, writer_lock

    with (
        writer_lock(str(tmp_path), "calls", "pair_events", 1),
        pytest.raises(LockedOut, match=r"held by pair_events \(process \d+"),
        writer_lock(str(tmp_path), "calls", "land_events", 0.3),
    ):
        pytest.fail("two writers at once")


def test_broker_away_is_said_with_its_address(pipeline, tmp_path, spark, monkeypatch):
    from spark_jobs.kafka.settings import BrokerProblem

    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 2.0)
    port = free_port()
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": f"127.0.0.1:{port}"}))
    with pytest.raises(BrokerProblem, match=f"no answer from Kafka at 127.0.0.1:{port}"):
        land_events.main(Warehouse(str(tmp_path), pipeline, spark), 10, [])
