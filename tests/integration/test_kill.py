"""kill -9 in the middle: the next run goes on, and every compound is there exactly once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter

import pytest

from include.local_machine import REMOTE_VARIABLE, ROOT, project_environment
from include.local_process import free_port
from include.local_spark import LocalSpark
from spark_jobs import land_events, pair_events
from spark_jobs.storage.tables import Warehouse
from tests.conftest import PARTITIONS, yaml_of
from tests.integration.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALLS = 40


@pytest.fixture
def faults(tmp_path):
    (tmp_path / "faults").mkdir()
    return tmp_path / "faults"


@pytest.fixture
def server(request, faults, tmp_path, monkeypatch):
    """The Spark server that the jobs work on, None in tests marked own_spark: each job starts one of its own."""
    if request.node.get_closest_marker("own_spark"):
        yield None
        return
    monkeypatch.setenv("PAIRING_FAULT_DIR", str(faults))
    with LocalSpark(tmp_path / "spark-server", free_port()) as running:
        yield running


@pytest.fixture
def submit(server, faults, pipeline, broker, tmp_path):
    """submit(job) runs it to its end; submit(job, kill_at=point) kills it there, with everything it started.

    What it left running on a server is not killed: that is for the next job to do.
    """
    file = yaml_of(pipeline, tmp_path)
    environment = project_environment() | {
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap}),
        "PAIRING_WAREHOUSE": str(tmp_path / "warehouse"),
        "PAIRING_FAULT_DIR": str(faults),
    }
    if server:
        environment[REMOTE_VARIABLE] = server.url

    def run(job, kill_at=None):
        command = ["spark-submit", f"spark_jobs/{job}.py", "--pipeline", str(file)]
        if kill_at:
            (faults / f"{kill_at}.armed").touch()
        log = tmp_path / "job.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            if kill_at:
                reached = faults / f"{kill_at}.reached"
                wait_for(lambda: reached.exists() or process.poll() is not None)
                assert reached.exists(), log.read_text()
                os.killpg(process.pid, signal.SIGKILL)
                if not server:
                    # Spark's Python workers are a group of their own; the one that stands at the point is killed, too.
                    kill_quietly(int(reached.read_text()))
                (faults / f"{kill_at}.armed").unlink()
            assert process.wait(timeout=180) == (-signal.SIGKILL if kill_at else 0), log.read_text()
        return log.read_text()

    return run


def wait_for(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kill_quietly(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_killed_after_the_plan_after_the_compounds_and_in_the_middle_of_publishing(submit, send, pipeline, broker, tmp_path):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(CALLS):
        send("a", f"u{number}", ago + number, number)
        send("m", f"u{number}", ago + number + 50, number)
    send("a", "alone", ago, "x")
    send("m", value=b"{nope")

    submit("land_events", kill_at="after_plan")
    # Sent after the plan: must not slip into the batch that is finished as planned.
    send("a", "next", ago, "y")
    submit("land_events")
    submit("pair_events", kill_at="after_compounds")
    submit("pair_events")
    submit("publish_compounds", kill_at="publish_half_sent")
    seen = consume(broker.bootstrap, pipeline.output_topic)
    assert len({message["partition"] for message in seen}) < PARTITIONS, "nothing of an open transaction may be seen"
    # Now the records are on the topic, and only the position in their transaction says so: the ledger does not know it yet.
    submit("publish_compounds", kill_at="after_publish")
    submit("publish_compounds")
    submit("report_quality")

    warehouse = Warehouse(None, str(tmp_path / "warehouse"), pipeline)
    ledger = table_rows(warehouse, "batch_ledger")
    assert Counter(row["step"] for row in ledger if row["batch_id"] == 1)["planned"] == 1
    raw = table_rows(warehouse, "raw_analytics") + table_rows(warehouse, "raw_metrics")
    assert len({(row["topic"], row["partition"], row["offset"]) for row in raw}) == len(raw) == 2 * CALLS + 3
    assert {row["batch_id"] for row in raw if row["value"] and b'"next"' in row["value"]} == {2}
    compounds = table_rows(warehouse, "compound_events")
    assert Counter(row["user1"] for row in compounds) == Counter({f"u{number}": 1 for number in range(CALLS)}) + Counter(
        alone=1
    )
    published = consume(broker.bootstrap, pipeline.output_topic)
    assert Counter(message["pair-id"] for message in published) == Counter(row["pair_id"] for row in compounds)
    assert all(
        message["value"]["metrics"] == message["value"]["analytics"] for message in published if message["kind"] == "pair"
    )
    # What was sent after the plan was over before the first batch's clock.
    rejected = {(row["batch_id"], row["reason"]) for row in table_rows(warehouse, "rejected_events")}
    assert rejected == {(1, "malformed_json"), (2, "late")}


@pytest.mark.own_spark
def test_a_job_with_a_spark_of_its_own_is_killed_together_with_it(submit, send, pipeline, broker, warehouse):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(CALLS):
        send("a", f"u{number}", ago + number, number)
    land_events.main(warehouse, 1_000, ())
    pair_events.main(warehouse)
    submit("publish_compounds", kill_at="publish_half_sent")
    submit("publish_compounds")
    compounds = table_rows(warehouse, "compound_events")
    assert Counter(row["user1"] for row in compounds) == {f"u{number}": 1 for number in range(CALLS)}
    published = consume(broker.bootstrap, pipeline.output_topic)
    assert Counter(message["pair-id"] for message in published) == Counter(row["pair_id"] for row in compounds)


def test_a_second_writer_waits_and_then_names_the_holder(tmp_path):
    from spark_jobs.storage.writer_lock import LockedOut, writer_lock

    with (
        writer_lock(str(tmp_path), "calls", "pair_events", 1),
        pytest.raises(LockedOut, match=r"held by pair_events \(process \d+"),
        writer_lock(str(tmp_path), "calls", "land_events", 0.3),
    ):
        pytest.fail("two writers at once")


def test_broker_away_is_said_with_its_address(pipeline, tmp_path, spark, monkeypatch):
    from include.local_process import free_port
    from spark_jobs.broker.settings import BrokerProblem

    port = free_port()
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": f"127.0.0.1:{port}"}))
    started = time.monotonic()
    with pytest.raises(BrokerProblem, match=f"no answer from Kafka at 127.0.0.1:{port}"):
        land_events.main(Warehouse(spark, str(tmp_path), pipeline), 10, [])
    assert time.monotonic() - started < 60
