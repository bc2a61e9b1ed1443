"""Through the front door: sample calls, the DAG triggered by REST in a real Airflow, every compound on the topic compared."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pytest

from include import sample_outcome, sample_truth
from include.local_airflow import LocalAirflow
from include.local_broker import create_topics
from include.local_process import free_port
from include.local_spark import LocalSpark
from include.sample_calls import generate, send
from tests.timeline import CALLS

pytestmark = pytest.mark.e2e

TASKS = ["land_events", "pair_events", "publish_compounds", "report_quality"]


@pytest.fixture(scope="module")
def airflow(broker, tmp_path_factory):
    topics = dict.fromkeys((CALLS.left.topic, CALLS.right.topic, CALLS.output_topic), 4)
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with (
        LocalSpark(tmp_path_factory.mktemp("spark"), free_port()) as spark,
        LocalAirflow(
            tmp_path_factory.mktemp("airflow"), free_port(), broker.bootstrap, warehouse, spark=spark.url
        ) as running,
    ):
        yield running


def run(client, params=None):
    client.wait_for_dag(CALLS.name, 90)
    client.pause(CALLS.name, False)
    run_id = client.trigger(CALLS.name, params)
    state = client.wait_for_run(CALLS.name, run_id, 300)
    return run_id, state


def status(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, ""


def test_every_compound_is_as_the_truth_says(airflow, broker, tmp_path):
    client, kafka = airflow.client(), {"bootstrap.servers": broker.bootstrap}
    client.wait_for_dag(CALLS.name, 90)
    sample = generate(CALLS, 1_000, 5, time.time_ns() // 1_000_000, sample_outcome.last_clock(airflow.warehouse, CALLS))
    truth = tmp_path / "truth.jsonl"
    sample.write_truth(truth)
    sent = send(sample.records, kafka)
    run_id, state = run(client)
    tasks = client.tasks(CALLS.name, run_id)
    assert state == "success", {name: client.task_log(CALLS.name, run_id, name)[-15:] for name in TASKS}
    assert [name for name, _ in sorted(tasks.items(), key=lambda task: task[1]["start_date"])] == TASKS

    # A scheduled run may have gone on with what was left; nothing is under way when the truth is compared.
    client.pause(CALLS.name, True)
    for other in client.active_runs(CALLS.name):
        client.pause(CALLS.name, False)
        client.wait_for_run(CALLS.name, other, 300)
    verdict = sample_truth.check(
        [truth], CALLS, kafka, airflow.warehouse, sample_truth.ledger_clock(airflow.warehouse, CALLS)
    )
    assert verdict.differences == []
    assert sum(verdict.kinds.values()) > 800
    assert set(verdict.rejected) >= {"malformed_json", "missing_key", "bad_timestamp", "future", "duplicate"}
    assert sent > 2_000 - 200

    page = f"{airflow.url}/quality/{CALLS.name}/index.html"
    assert status(page)[0] in (401, 403), "pages are behind Airflow's login"
    token = client._token
    assert status(page, token)[0] == 200
    assert "passed" in status(page, token)[1]
    assert status(f"{airflow.url}/quality/{CALLS.name}/..%2F..%2Fwriter.lock", token)[0] == 404
    assert status(f"{airflow.url}/quality/..%2Fcalls/index.html", token)[0] == 404


def test_a_bad_parameter_is_refused_before_anything_runs(airflow):
    client = airflow.client()
    with pytest.raises(Exception, match=r"max_records|422|400"):
        client.trigger(CALLS.name, {"max_records": 0})
