"""Airflow as teams have it: Postgres, Redis, two schedulers and two Celery workers, each a process with the environment of docker-compose.yaml.

Whatever is killed, a run ends well and every event is counted once.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

import psutil
import pytest
from confluent_kafka import Producer

from include.airflow.alerts import URL_VARIABLE
from include.config.project import REMOTE_VARIABLE
from include.local.airflow_client import AirflowClient
from include.local.demo import pause_when_idle
from include.local.process import MARK, free_port
from include.local.spark import LocalSpark
from include.sample import outcome as sample_outcome
from include.sample import truth as sample_truth
from include.sample.calls import generate, send
from tests.helpers.alert_listener import listening
from tests.helpers.comparing import commits
from tests.helpers.compose_images import NEEDED, are_here
from tests.helpers.composed import Composed
from tests.helpers.job_processes import Faults, wait_for
from tests.helpers.reading import consume
from tests.helpers.stores import table_of
from tests.helpers.timeline import CALLS

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.skipif(not are_here("redis-server"), reason=NEEDED)]

# In the order of the run; each in the middle of its task's work.
POINTS = {
    "land_events": "after_raw_right",
    "pair_events": "before_open_events",
    "publish_compounds": "transaction_half_sent",
    "report_quality": "after_quality_metrics",
}
# A dozen processes start programs of Java and Python, for which a small machine may take its time.
WITHIN_S = 900
WORKERS = ("airflow-worker-1", "airflow-worker-2")
SCHEDULERS = ("airflow-scheduler", "airflow-scheduler-2")
# Started by the triggerer's look at the topics, late by its first second.
TRIPS = """
left:   {topic: trips.begun, payload: from}
right:  {topic: trips.ended, payload: to}
output: {topic: trips.made}
key: [car]
timestamp: at
tolerance: 10m
gap: 10m
grace: 1m
schedule: on_data
consumer_group: trips.landed
run_deadline: 1s
"""


class Team(NamedTuple):
    """What the tests share. `heard`: the alerts so far."""

    compose: Composed
    client: AirflowClient
    faults: Faults
    heard: list[dict]


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Iterator[Team]:
    """On a Spark that stays up instead of the cluster: these tests run two dozen tasks."""
    faults = Faults(tmp_path_factory.mktemp("faults"))
    with LocalSpark(tmp_path_factory.mktemp("spark"), free_port()) as spark, listening() as (address, heard):
        # A lost worker is noticed in seconds.
        heartbeat = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30"}
        more = heartbeat | {"PAIRING_FAULT_DIR": str(faults.folder), REMOTE_VARIABLE: spark.url}
        variables = {"AIRFLOW_EXECUTOR": "CeleryExecutor", URL_VARIABLE: address}
        compose = Composed(["celery"], variables, more, without=("spark-master", "spark-worker"))
        change(compose, "include/pipelines/calls.yaml", 'schedule: "*/5 * * * *"', "schedule: null")
        # One retry is enough, and soon.
        change(compose, "include/airflow/dag_settings.py", "timedelta(seconds=30)", "timedelta(seconds=2)")
        change(compose, "include/airflow/dag_settings.py", '"retries": 2', '"retries": 1')
        (compose.places.project / "include/pipelines/trips.yaml").write_text(TRIPS)
        with compose:
            client = compose.client()
            for dag_id in (CALLS.name, "trips", f"{CALLS.name}_replay"):
                client.wait_for_dag(dag_id, WITHIN_S)
            yield Team(compose, client, faults, heard)


def change(compose, file, before, after):
    path = compose.places.project / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def send_calls(team, tmp_path_factory):
    """send_calls(calls) sends new ones, to be landed by one batch; returns the truth of all so far."""
    folder, kafka = tmp_path_factory.mktemp("truth"), {"bootstrap.servers": team.compose.bootstrap}

    def send_some(calls):
        truths = [*folder.iterdir()]
        late_before = sample_outcome.last_clock(team.compose.warehouse, CALLS)
        sample = generate(CALLS, calls, 5 + len(truths), time.time_ns() // 1_000_000, late_before)
        truth = folder / f"{len(truths)}.jsonl"
        sample.write_truth(truth)
        send(sample.records, kafka)
        return [*truths, truth]

    return send_some


def begin(team):
    team.client.pause(CALLS.name, False)
    return team.client.trigger(CALLS.name)


def ended_well(team, run_id):
    """The run's tasks, all of them successful."""
    state = team.client.wait_for_run(CALLS.name, run_id, WITHIN_S)
    tasks = team.client.tasks(CALLS.name, run_id)
    assert state == "success", {name: team.client.task_log(CALLS.name, run_id, name)[-15:] for name in tasks}
    return tasks


def is_equal(team, truths):
    """Every message and event equals the truth, and each step of each batch was done once."""
    pause_when_idle(team.client, CALLS.name)
    warehouse, kafka = team.compose.warehouse, {"bootstrap.servers": team.compose.bootstrap}
    verdict = sample_truth.check(truths, CALLS, kafka, warehouse, sample_truth.ledger_clock(warehouse, CALLS))
    assert verdict.differences == []
    steps = [
        (row["batch_id"], row["step"]) for row in table_of(warehouse, CALLS, "batch_ledger").to_pyarrow_table().to_pylist()
    ]
    # planned, landed, paired, publishing, published, reported.
    assert len(set(steps)) == len(steps) == 6 * max(batch_id for batch_id, _ in steps)
    assert max(commits(warehouse, CALLS, "compound_events").values()) == 1
    return verdict


def stands_at(team, point):
    """The process of the job that came to the armed point, and the service whose child it is."""
    wait_for(lambda: team.faults.is_reached(point), f"a job to come to {point}", WITHIN_S)
    team.faults.disarm(point)
    job = psutil.Process(team.faults.who(point))
    return job, job.environ()[MARK].rpartition("/")[2]


def test_workers_run_a_batch(team, send_calls):
    truths = send_calls(1_000)
    assert set(ended_well(team, begin(team))) == set(POINTS)
    assert sum(is_equal(team, truths).kinds.values()) > 800
    logs = [team.compose.log(name) for name in WORKERS]
    # Every task is a message that one of the workers took.
    assert sum(log.count("received") for log in logs) >= len(POINTS), logs


def test_what_airflow_registers_works_in_each_process(team):
    client, compose, kafka = team.client, team.compose, {"bootstrap.servers": team.compose.bootstrap}
    # The API server: places that lead to the pages, and the pages.
    assert client.call("GET", "/plugins/importErrors")["import_errors"] == []
    (plugin,) = [each for each in client.call("GET", "/plugins")["plugins"] if each["name"] == "event_pairing"]
    assert {view["destination"] for view in plugin["external_views"]} == {"nav", "dag", "dag_run", "task", "task_instance"}
    # The triggerer: it sees the records and starts the run, and tells once that it is late, although there are two schedulers.
    client.pause("trips", False)
    producer, ago = Producer(kafka), time.time_ns() // 1_000_000 - 5 * 3_600_000
    for topic, payload in (("trips.begun", "from"), ("trips.ended", "to")):
        producer.produce(topic, json.dumps({"car": "red", "at": ago, payload: "home"}), key="red")
    assert producer.flush(20) == 0
    wait_for(lambda: time.sleep(1) or client.runs("trips"), "the run that the records start", WITHIN_S)
    first = client.runs("trips")[-1]["dag_run_id"]
    assert client.wait_for_run("trips", first, WITHIN_S) == "success"
    pause_when_idle(client, "trips")
    assert {(run["run_type"], run["state"]) for run in client.runs("trips")} == {("asset_triggered", "success")}
    assert [message["value"]["from"] for message in consume(compose.bootstrap, "trips.made")] == ["home"]
    late = [alert["run"] for alert in team.heard if "has not ended 0:00:01 after it was queued" in alert["text"]]
    assert sorted(late) == sorted(run["dag_run_id"] for run in client.runs("trips"))
    # The scheduler: its listener has made the pools, and says what a run did.
    assert client.call("GET", "/pools/trips")["slots"] == 1
    assert "records landed" in client.runs("trips")[-1]["note"]
    # The worker: what it links to is a page of the API server, and a failure that no try can mend is an alert.
    links = client.call("GET", f"/dags/trips/dagRuns/{quote(first, safe='')}/taskInstances/report_quality/links")
    assert "passed" in page(team, links["extra_links"]["Quality page"])
    failed = client.trigger("trips_replay")
    assert client.wait_for_run("trips_replay", failed, WITHIN_S) == "failed"
    (alert,) = [alert for alert in team.heard if alert.get("run") == failed and alert.get("task") == "replay_interval"]
    assert "which interval?" in alert["reason"]


def page(team, path):
    request = urllib.request.Request(f"{team.compose.url}{path}", headers={"Authorization": f"Bearer {team.client._token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def test_a_worker_is_lost_in_the_middle_of_each_task(team, send_calls):
    truths = send_calls(300)
    for point in POINTS.values():
        team.faults.arm(point)
    run_id, lost = begin(team), ""
    for point in POINTS.values():
        job, worker = stands_at(team, point)
        # The one that is left has tried the task before this one again.
        assert worker in WORKERS and worker != lost
        if lost:
            team.compose.start(lost)
            team.compose.wait_until_healthy(lost)
        team.compose.kill(worker)
        assert not job.is_running()
        lost = worker
    tasks = ended_well(team, run_id)
    team.compose.start(lost)
    assert {name: task["try_number"] for name, task in tasks.items()} == dict.fromkeys(POINTS, 2)
    is_equal(team, truths)


def test_a_task_that_loses_every_worker_is_an_alert(team):
    # The task cannot tell it any more, so the DAG processor does.
    point, dag_id = "before_compacted", f"{CALLS.name}_maintenance"
    team.client.pause(dag_id, False)
    run_id = team.client.trigger(dag_id)
    for _ in range(2):
        team.faults.arm(point)
        _, worker = stands_at(team, point)
        team.compose.kill(worker)
        team.compose.start(worker)
    assert team.client.wait_for_run(dag_id, run_id, WITHIN_S) == "failed"
    wait_for(lambda: [alert for alert in team.heard if alert.get("run") == run_id and "task" in alert], "the alert")
    (alert,) = [alert for alert in team.heard if alert.get("run") == run_id and "task" in alert]
    assert (alert["dag"], alert["task"], alert["reason"]) == (dag_id, "maintain_tables", "the task was ended from outside")


def test_a_scheduler_is_lost_in_the_middle_of_a_run(team, send_calls):
    truths, point = send_calls(200), POINTS["pair_events"]
    team.faults.arm(point)
    run_id = begin(team)
    stands_at(team, point)
    # The one that has sent the task to the workers.
    (owner,) = [name for name in SCHEDULERS if has_sent(team.compose.log(name), run_id, "pair_events")]
    team.compose.kill(owner)
    team.faults.release(point)
    tasks = ended_well(team, run_id)
    assert {task["try_number"] for task in tasks.values()} == {1}
    team.compose.start(owner)
    team.compose.wait_until_healthy(owner)
    is_equal(team, truths)


def has_sent(log, run_id, task):
    return any(run_id in line and task in line and "Trying to enqueue" in line for line in log.splitlines())
