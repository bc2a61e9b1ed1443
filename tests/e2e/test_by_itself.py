"""Nobody triggers anything: runs begin when there is data, and late events lead to their replay, each once."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from include.config.pipeline_file import load_pipeline
from include.local.airflow_client import AirflowError
from include.local.broker import create_topics
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.tables import Tables
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.reading import consume, table_rows

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TRIPS = """
left:   {topic: trips.begun, payload: from}
right:  {topic: trips.ended, payload: to}
output: {topic: trips.made}
key: [car]
timestamp: at
tolerance: 10m
gap: 10m
grace: 1m
late: replay
schedule: on_data
consumer_group: trips.landed
"""
TOPICS = ("trips.begun", "trips.ended", "trips.made")
LIVE, REPLAY = "trips", "trips_replay"
TASKS = ["land_events", "pair_events", "publish_compounds", "report_quality", "replay_late"]


@pytest.fixture
def trips(broker, tmp_path):
    """Airflow with the one pipeline, its client, and its tables."""
    project = copied(tmp_path / "project")
    (project / "include/pipelines/calls.yaml").unlink()
    file = project / "include/pipelines/trips.yaml"
    file.write_text(TRIPS)
    create_topics(broker.bootstrap, dict.fromkeys(TOPICS, 2), {"retention.ms": "-1"})
    warehouse = tmp_path / "warehouse"
    with LocalSpark(tmp_path / "spark", free_port()) as spark:
        airflow = AirflowOf(
            project, "", tmp_path / "airflow", free_port(), broker.bootstrap, str(warehouse), spark=spark.url
        )
        airflow.more["PAIRING_SPARK_UI"] = "http://history/{app}/"
        with airflow:
            client = airflow.client()
            client.wait_for_dag(LIVE, 90)
            client.wait_for_dag(REPLAY, 10)
            yield client, Tables(str(warehouse), load_pipeline(file))


def ended(client, dag_id, runs):
    """The DAG's runs, the oldest first, once there are so many and all have ended; all of them well."""
    wait_for(lambda: len(client.runs(dag_id)) >= runs and not client.active_runs(dag_id), f"{runs} runs of {dag_id}", 240)
    found = client.runs(dag_id)[::-1]
    assert [run["state"] for run in found] == ["success"] * len(found)
    return found


def states(client, run):
    return [client.tasks(LIVE, run["dag_run_id"])[task]["state"] for task in TASKS]


def ledger_of(tables):
    return sorted((row["batch_id"], row["kind"], row["step"]) for row in table_rows(tables, "batch_ledger"))


def test_data_starts_runs_and_late_data_replays(trips, broker):
    client, tables = trips
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    ago = time.time_ns() // 1_000_000 - 5 * 3_600_000

    def send(*events):
        for topic, car, at, payload in events:
            producer.produce(topic, json.dumps({"car": car, "at": ago + at} | payload), key=car)
        assert producer.flush(20) == 0

    client.pause(LIVE, False)
    # Longer than it takes to look: a quiet topic starts nothing.
    time.sleep(20)
    assert client.runs(LIVE) == []

    # All at once, so that one look sees them all.
    send(
        (TOPICS[0], "red", 0, {"from": "home"}),
        (TOPICS[0], "blue", 0, {"from": "here"}),
        (TOPICS[1], "blue", 1_000, {"to": "there"}),
    )
    first = ended(client, LIVE, 1)
    assert first[0]["run_type"] == "asset_triggered"
    assert states(client, first[0]) == ["success"] * 5
    assert client.runs(REPLAY) == []
    of_task = f"/dags/{LIVE}/dagRuns/{quote(first[0]['dag_run_id'], safe='')}/taskInstances/pair_events/links"
    assert client.call("GET", of_task)["extra_links"]["Spark"].startswith("http://history/local-")
    made = [message["value"] for message in consume(broker.bootstrap, TOPICS[2])]
    assert sorted((trip["car"], trip["from"], trip["to"]) for trip in made) == [
        ("blue", "here", "there"),
        ("red", "home", None),
    ]

    # Hours too late.
    send((TOPICS[1], "red", 2_000, {"to": "work"}))
    batch = len(ended(client, LIVE, len(first) + 1))
    (replay,) = ended(client, REPLAY, 1)
    assert replay["run_type"] == "operator_triggered" and sorted(replay["conf"]) == ["window_end", "window_start"]
    assert replay["dag_run_id"].startswith(f"late__batch_{batch}_")
    assert replay["note"] == f"late events of batch {batch}\nbatch {batch + 1}: 1 changed, 1 unchanged; 1 published"
    told = [message for message in consume(broker.bootstrap, TOPICS[2]) if message["value"]["car"] == "red"]
    assert [(message["revision"], message["value"]["to"]) for message in told] == [("0", None), ("1", "work")]

    # The next run finds nothing new, says so, and starts no replay.
    by_hand = client.trigger(LIVE)
    assert client.wait_for_run(LIVE, by_hand, 240) == "success"
    (quiet,) = [run for run in client.runs(LIVE) if run["dag_run_id"] == by_hand]
    assert "no new records; nothing closed; nothing to publish" in quiet["note"]
    assert [run["dag_run_id"] for run in ended(client, REPLAY, 1)] == [replay["dag_run_id"]]

    # Nothing but the report.
    before = ledger_of(tables)
    with pytest.raises(AirflowError, match=r"422|400"):
        client.trigger(LIVE, {"report_only": "perhaps"})
    report = client.trigger(LIVE, {"report_only": True})
    assert client.wait_for_run(LIVE, report, 240) == "success"
    (only,) = [run for run in client.runs(LIVE) if run["dag_run_id"] == report]
    assert states(client, only) == ["success"] * 5
    assert ledger_of(tables) == before
    counted = f"/dags/{LIVE}/dagRuns/{quote(report, safe='')}/taskInstances/report_quality/xcomEntries/return_value"
    assert client.call("GET", counted)["value"]["batch_id"] == before[-1][0]
    assert only["note"] == "report only: what is there was counted afresh"
