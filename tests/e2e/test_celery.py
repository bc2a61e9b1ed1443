"""With Postgres, Redis, two schedulers and two Celery workers: whatever is killed, a run ends well and every event is counted once.

Each part is a process with the environment that docker-compose.yaml gives it.
"""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from confluent_kafka import Producer

from include.local.airflow_client import FINAL_RUN_STATES
from include.local.demo import pause_when_idle
from tests.helpers.celery_team import SCHEDULERS, WITHIN_S, WORKERS, celery_team
from tests.helpers.job_processes import wait_for
from tests.helpers.reading import consume
from tests.helpers.timeline import CALLS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# Each in the middle of its task's work.
POINTS = {
    "land_events": "after_raw_right",
    "pair_events": "before_open_events",
    "publish_compounds": "transaction_half_sent",
    "report_quality": "after_quality_metrics",
}
PLACES = {"nav", "dag", "dag_run", "task", "task_instance"}


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with celery_team(tmp_path_factory.mktemp("celery")) as running:
        yield running


def test_workers_run_a_batch(team):
    assert set(team.ended_well(team.run_of(1_000))) == set(POINTS)
    assert sum(team.equal().kinds.values()) > 800
    logs = [team.compose.log(name) for name in WORKERS]
    # Every task is a message that one of the workers took.
    assert sum(log.count("received") for log in logs) >= len(POINTS), logs


# Apart, because a land_events that is tried again also pairs the batch.
@pytest.mark.parametrize("killed", [["land_events", "publish_compounds", "report_quality"], ["pair_events"]], ids="-".join)
def test_a_worker_is_lost_in_the_middle_of_a_task(killed, team):
    for task in killed:
        team.faults.arm(POINTS[task])
    run_id, lost = team.run_of(300), ""
    for task in killed:
        worker = team.stands_at(POINTS[task], task)
        assert team.client.tasks(CALLS.name, run_id)[task]["state"] == "running"
        # The one that is left has tried the task before this one again.
        assert worker in WORKERS and worker != lost
        if lost:
            team.restart(lost)
        team.compose.kill(worker)
        # What it left on the Spark server goes on, and has to fail.
        team.faults.release(POINTS[task])
        lost = worker
    tries = team.ended_well(run_id)
    team.restart(lost)
    assert all(tries[task] >= 2 for task in killed), tries
    team.equal()


def test_a_scheduler_is_lost_in_the_middle_of_a_run(team):
    task = "pair_events"
    team.faults.arm(POINTS[task])
    run_id = team.run_of(200)
    team.stands_at(POINTS[task], task)
    # The one that has sent the task to the workers.
    (owner,) = [name for name in SCHEDULERS if has_sent(team.compose.log(name), run_id, task)]
    team.compose.kill(owner)
    team.faults.release(POINTS[task])
    assert set(team.ended_well(run_id).values()) == {1}
    team.restart(owner)
    team.equal()


def has_sent(log, run_id, task):
    return any(run_id in line and task in line and "Trying to enqueue" in line for line in log.splitlines())


def test_what_airflow_registers_works_in_each_process(team):
    client = team.client
    # The API server: places that lead to the pages.
    assert client.call("GET", "/plugins/importErrors")["import_errors"] == []
    (plugin,) = [each for each in client.call("GET", "/plugins")["plugins"] if each["name"] == "event_pairing"]
    assert {view["destination"] for view in plugin["external_views"]} == PLACES
    # The triggerer: it sees the records and starts the run, and tells once that it is late, although there are two schedulers.
    client.pause("trips", False)
    producer, ago = Producer(team.kafka), time.time_ns() // 1_000_000 - 5 * 3_600_000
    for topic, payload in (("trips.begun", "from"), ("trips.ended", "to")):
        producer.produce(topic, json.dumps({"car": "red", "at": ago, payload: "home"}), key="red")
    assert producer.flush(20) == 0
    wait_for(lambda: client.runs("trips"), "the run that the records start", WITHIN_S, every_s=1)
    first = client.runs("trips")[-1]["dag_run_id"]
    assert client.wait_for_run("trips", first, WITHIN_S) == "success"
    pause_when_idle(client, "trips")
    assert {(run["run_type"], run["state"]) for run in client.runs("trips")} == {("asset_triggered", "success")}
    assert [message["value"]["from"] for message in consume(team.compose.bootstrap, "trips.made")] == ["home"]
    late = [alert["run"] for alert in team.heard if "has not ended 0:00:01 after it was queued" in alert["text"]]
    assert sorted(late) == sorted(run["dag_run_id"] for run in client.runs("trips"))
    # The scheduler: its listeners have made the pool, and say what a run did.
    assert client.call("GET", "/pools/trips")["slots"] == 1
    assert "records landed" in client.runs("trips")[-1]["note"]
    # The worker: what it links to is a page of the API server, and a failure that no try can mend is an alert.
    links = client.call("GET", f"/dags/trips/dagRuns/{quote(first, safe='')}/taskInstances/report_quality/links")
    assert "passed" in team.page(links["extra_links"]["Quality page"])
    failed = client.trigger("trips_replay")
    assert client.wait_for_run("trips_replay", failed, WITHIN_S) == "failed"
    assert "which interval?" in alert_of(team, failed)["reason"]


def test_a_task_that_loses_every_worker_is_an_alert(team):
    # The task cannot tell it any more, so the DAG processor does.
    point, dag_id = "before_compacted", f"{CALLS.name}_maintenance"
    team.faults.arm(point)
    team.client.pause(dag_id, False)
    run_id = team.client.trigger(dag_id)
    while (state := team.client.run_state(dag_id, run_id)) not in FINAL_RUN_STATES:
        time.sleep(1)
        if team.faults.is_reached(point):
            worker = team.stands_at(point, "maintain_tables")
            team.faults.arm(point)
            team.compose.kill(worker)
            team.compose.start(worker)
    team.faults.disarm(point)
    assert state == "failed"
    wait_for(lambda: [alert for alert in team.heard if alert.get("run") == run_id], "the alert")
    assert alert_of(team, run_id)["reason"] == "the task was ended from outside"


def alert_of(team, run_id):
    """The one that a task of the run has failed."""
    (alert,) = [alert for alert in team.heard if alert.get("run") == run_id and "task" in alert]
    return alert
