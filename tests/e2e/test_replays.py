"""Replays by backfill, from the command line and by REST, and by hand, beside the live DAG."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from include.local.airflow import ENVIRONMENT
from include.local.airflow_client import AirflowError
from include.local.broker import create_topics
from include.local.machine import ROOT
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.tables import Tables
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.reading import table_rows
from tests.helpers.timeline import CALLS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

REPLAY = f"{CALLS.name}_replay"
# The last hour of which nothing is open any more: the interval before it has an event that comes late.
HOUR = (datetime.now(UTC) - timedelta(minutes=15)).replace(minute=0, second=0, microsecond=0)
FIRST, LAST = HOUR - timedelta(hours=2), HOUR - timedelta(hours=1)


@pytest.fixture(scope="module")
def airflow(broker, tmp_path_factory):
    """Of a project whose live DAG has no schedule: every run is one that was asked for."""
    project = copied(tmp_path_factory.mktemp("copy") / "project")
    file = project / "include/pipelines/calls.yaml"
    file.write_text(file.read_text().replace('schedule: "*/5 * * * *"', "schedule: null"))
    topics = dict.fromkeys((CALLS.left.topic, CALLS.right.topic, CALLS.output_topic), 2)
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    folders = [tmp_path_factory.mktemp(name) for name in ("spark", "airflow", "warehouse")]
    with (
        LocalSpark(folders[0], free_port()) as spark,
        AirflowOf(project, "", folders[1], free_port(), broker.bootstrap, str(folders[2]), spark=spark.url) as running,
    ):
        running.client().wait_for_dag(CALLS.name, 90)
        running.client().wait_for_dag(REPLAY, 30)
        yield running


@pytest.fixture(scope="module")
def late_pair(airflow, broker):
    """A call of the hour before the last that came in time but for one side, and another one whose sides were both late."""
    at = int((HOUR - timedelta(minutes=30)).timestamp() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send(side, user, ts):
        body = {"user1": user, "user2": "caller", "timestamp": ts, side.payload: "at last"}
        producer.produce(side.topic, key=f"{user}-caller", value=json.dumps(body))

    send(CALLS.left, "half", at)
    assert producer.flush(20) == 0
    assert live_run(airflow.client()) == "success"
    for side in CALLS.sides:
        send(side, "late", at)
    send(CALLS.right, "half", at + 1_000)
    assert producer.flush(20) == 0
    assert live_run(airflow.client()) == "success"


def live_run(client, **params):
    client.pause(CALLS.name, False)
    return client.wait_for_run(CALLS.name, client.trigger(CALLS.name, params), 240)


def backfilled(airflow, *more):
    """`airflow backfill create` of the two hours, in a shell with the environment that Airflow's folder names."""
    dates = ["--from-date", FIRST.isoformat(), "--to-date", LAST.isoformat()]
    create = shlex.join(["airflow", "backfill", "create", "--dag-id", REPLAY, *dates, *more])
    script = f"source {shlex.quote(str(airflow.folder / ENVIRONMENT))} && {create}"
    shell = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(
        ["bash", "-c", script], env=shell, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def completed(client):
    """Airflow has one backfill of a DAG at a time, and finds only now and then that one is complete."""
    backfills = f"/backfills?dag_id={REPLAY}"
    wait_for(
        lambda: all(one["completed_at"] for one in client.call("GET", backfills)["backfills"]), "the backfill's end", 180
    )


def replay_runs(client):
    """Every run of the replay DAG, ended: id -> (state, type, what replay_interval has counted)."""
    wait_for(lambda: not client.active_runs(REPLAY), "the replays to end", 300)
    return {run["dag_run_id"]: (run["state"], run["run_type"], counted(client, run)) for run in client.runs(REPLAY)}


def counted(client, run):
    run_id = quote(run["dag_run_id"], safe="")
    try:
        entry = client.call("GET", f"/dags/{REPLAY}/dagRuns/{run_id}/taskInstances/replay_interval/xcomEntries/return_value")
    except AirflowError:
        return None
    return tuple(entry["value"][name] for name in ("new", "changed", "retracted", "unchanged"))


def test_backfills_from_the_command_line_and_by_rest(airflow, late_pair):
    client = airflow.client()
    pool = client.call("GET", f"/pools/{CALLS.name}")
    assert (pool["slots"], pool["include_deferred"]) == (1, False)
    # Two intervals, both at once, and a live run beside them.
    backfilled(airflow, "--max-active-runs", "2")
    assert live_run(client) == "success"
    first = replay_runs(client)
    assert sorted(first.values()) == [("success", "backfill", (0, 0, 0, 0)), ("success", "backfill", (1, 1, 0, 0))]
    # Of all their tasks only one was at work at a time, whichever run it is of.
    tasks = [
        task
        for dag_id in (CALLS.name, REPLAY)
        for known in client.runs(dag_id)
        for task in client.tasks(dag_id, known["dag_run_id"]).values()
        # The tasks behind a replay that changed nothing are skipped, if nothing else waits for them.
        if task["state"] != "skipped"
    ]
    spans = sorted((task["start_date"], task["end_date"]) for task in tasks)
    assert 3 * 4 + 3 + 1 <= len(spans) <= 3 * 4 + 2 * 3 and all(one[1] <= other[0] for one, other in pairwise(spans)), spans
    # Never by itself, although nobody has paused it.
    assert not client.call("GET", f"/dags/{REPLAY}")["is_paused"]
    # Both corrections may have been published by the run that came between.
    notes = sorted(run["note"] for run in client.runs(REPLAY))
    ends = [f"{begin:%Y-%m-%d %H:%M} to {begin + timedelta(hours=1):%Y-%m-%d %H:%M} UTC\n" for begin in (FIRST, LAST)]
    assert [note.startswith(end) for note, end in zip(notes, ends, strict=True)] == [True, True], notes
    assert ": 1 new, 1 changed, 0 unchanged; " in notes[1] and any("2 of 2 of the backfill" in note for note in notes)

    # Of an interval that was replayed nothing is left for a backfill, unless it is told to do it again.
    wanted = {"dag_id": REPLAY, "from_date": FIRST.isoformat(), "to_date": LAST.isoformat(), "max_active_runs": 2}
    left = {behavior: wanted | {"reprocess_behavior": behavior} for behavior in ("none", "completed")}
    planned = {name: client.call("POST", "/backfills/dry_run", body)["total_entries"] for name, body in left.items()}
    assert planned == {"none": 0, "completed": 2}
    completed(client)
    client.call("POST", "/backfills", left["completed"])
    again = replay_runs(client)
    assert set(again) == set(first)
    assert sorted(again.values()) == [("success", "backfill", (0, 0, 0, 0)), ("success", "backfill", (0, 0, 0, 2))]
    # Nothing is left to publish or to report, so each run is one task.
    for run_id in again:
        states = client.task_states(REPLAY, run_id)
        assert states == {"replay_interval": "success", "publish_compounds": "skipped", "report_quality": "skipped"}


def test_by_hand_and_what_is_refused(airflow, late_pair):
    client = airflow.client()
    window = {"window_start": FIRST.isoformat(), "window_end": HOUR.isoformat()}
    counts = []
    for _ in range(2):
        run_id = client.trigger(REPLAY, window)
        assert client.wait_for_run(REPLAY, run_id, 240) == "success"
        counts.append(replay_runs(client)[run_id][2])
    # Whoever has replayed it first.
    assert counts in ([(1, 1, 0, 0), (0, 0, 0, 2)], [(0, 0, 0, 2)] * 2)

    # In the form, by the job, and as long as it is not closed.
    with pytest.raises(AirflowError, match=r"422|400"):
        client.trigger(REPLAY, {"window_start": "yesterday"})
    for params, line in (
        ({}, "which interval? give --window-start and --window-end"),
        (window | {"window_end": "2100-01-01T00:00:00Z"}, "what to do: docs/runbooks/replay.md"),
    ):
        run_id = client.trigger(REPLAY, params)
        assert client.wait_for_run(REPLAY, run_id, 120) == "failed"
        assert client.tasks(REPLAY, run_id)["replay_interval"]["try_number"] == 1
        assert line in " ".join(client.task_log(REPLAY, run_id, "replay_interval"))

    warehouse = Tables(airflow.warehouse, CALLS)
    kinds = {row["batch_id"]: row["kind"] for row in table_rows(warehouse, "batch_ledger")}
    assert sorted(kinds) == list(range(1, max(kinds) + 1)) and "replay" in kinds.values()
