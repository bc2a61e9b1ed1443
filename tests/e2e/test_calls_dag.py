"""Through the front door: sample calls, the DAG triggered by REST in a real Airflow, every compound on the topic compared."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from urllib.parse import quote

import psutil
import pytest

from include.local.airflow import LocalAirflow
from include.local.broker import create_topics
from include.local.demo import pause_when_idle
from include.local.process import free_port
from include.local.spark import LocalSpark
from include.local.store import missing_for
from include.sample import outcome as sample_outcome
from include.sample import truth as sample_truth
from include.sample.calls import generate, send
from spark_jobs.tables.tables import Tables
from tests.helpers.comparing import commits
from tests.helpers.job_processes import Faults, wait_for
from tests.helpers.reading import table_rows
from tests.helpers.stores import REQUIRED, root_on
from tests.helpers.timeline import CALLS

pytestmark = pytest.mark.e2e

TASKS = ["land_events", "pair_events", "publish_compounds", "report_quality"]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRING_FAULT_DIR", str(folder))
        yield Faults(folder)


@pytest.fixture(scope="module")
def airflow(broker, faults, tmp_path_factory, request):
    """With its tables on a real S3 server, where that can be had; else in a folder."""
    topics = dict.fromkeys((CALLS.left.topic, CALLS.right.topic, CALLS.output_topic), 4)
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    on_s3 = os.environ.get(REQUIRED) or not missing_for("s3")
    store = request.getfixturevalue("s3") if on_s3 else None
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalSpark(tmp_path_factory.mktemp("spark"), free_port()) as spark,
        LocalAirflow(
            tmp_path_factory.mktemp("airflow"),
            free_port(),
            broker.bootstrap,
            root_on(store, "dag", patch) if store else str(tmp_path_factory.mktemp("warehouse")),
            spark=spark.url,
            store=store.connection if store else None,
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


@pytest.fixture(scope="module")
def send_calls(airflow, broker, tmp_path_factory):
    """send_calls(calls) sends new ones, to be landed by one batch; gives their number and the truth of all so far."""
    folder = tmp_path_factory.mktemp("truth")

    def send_some(calls):
        airflow.client().wait_for_dag(CALLS.name, 90)
        truths = [*folder.iterdir()]
        late_before = sample_outcome.last_clock(airflow.warehouse, CALLS)
        sample = generate(CALLS, calls, 5 + len(truths), time.time_ns() // 1_000_000, late_before)
        truth = folder / f"{len(truths)}.jsonl"
        sample.write_truth(truth)
        return send(sample.records, {"bootstrap.servers": broker.bootstrap}), [*truths, truth]

    return send_some


def verdict_when_idle(airflow, broker, truths):
    """A scheduled run may have gone on with what was left; nothing is under way when the truth is compared."""
    pause_when_idle(airflow.client(), CALLS.name)
    clock = sample_truth.ledger_clock(airflow.warehouse, CALLS)
    return sample_truth.check(truths, CALLS, {"bootstrap.servers": broker.bootstrap}, airflow.warehouse, clock)


def test_every_compound_is_as_the_truth_says(airflow, broker, send_calls):
    client = airflow.client()
    sent, truths = send_calls(1_000)
    run_id, state = run(client)
    tasks = client.tasks(CALLS.name, run_id)
    assert state == "success", {name: client.task_log(CALLS.name, run_id, name)[-15:] for name in TASKS}
    assert [name for name, _ in sorted(tasks.items(), key=lambda task: task[1]["start_date"])] == TASKS

    verdict = verdict_when_idle(airflow, broker, truths)
    assert verdict.differences == []
    assert sum(verdict.kinds.values()) > 800
    assert set(verdict.rejected) >= {"malformed_json", "missing_key", "bad_timestamp", "future", "duplicate"}
    assert sent > 2_000 - 200

    page = f"{airflow.url}/quality/{CALLS.name}/index.html"
    assert status(page)[0] in (401, 403), "pages are behind Airflow's login"
    token = client._token
    assert status(page, token)[0] == 200
    assert "passed" in status(page, token)[1]
    pages = f"{airflow.url}/quality/{CALLS.name}"
    for name, content in (
        ("trend.html", "all batches"),
        ("trend-data.js", "trend="),
        ("metrics", "# EOF"),
        ("batch-1.js", "batchDetails(1,"),
    ):
        assert status(f"{pages}/{name}")[0] in (401, 403)
        assert status(f"{pages}/{name}", token)[0] == 200 and content in status(f"{pages}/{name}", token)[1]
    of_run = f"{airflow.url}/quality/-/dag/{CALLS.name}/run/{quote(run_id, safe='')}"
    batch_id = client.call(
        "GET", f"/dags/{CALLS.name}/dagRuns/{quote(run_id, safe='')}/taskInstances/land_events/xcomEntries/return_value"
    )["value"]["batch_id"]
    log = "\n".join(client.task_log(CALLS.name, run_id, "report_quality"))
    assert f"quality page of batch {batch_id}: {pages}/batch-{batch_id}.html" in log and f"batch {batch_id}: passed" in log
    assert "great_expectations" not in log
    for place in (of_run, f"{of_run}/task/land_events"):
        assert status(place)[0] in (401, 403)
        assert status(place, token)[1] == status(f"{pages}/batch-{batch_id}.html", token)[1] != ""
    # A scheduled run may have been quicker than the one by hand: the calls are in the events of either.
    told = Counter()
    for event in client.call("GET", f"/assets/events?source_dag_id={CALLS.name}")["asset_events"]:
        told.update({(event["name"], name): number for name, number in event["extra"].items()})
    assert {name for name, _ in told} == {
        f"{CALLS.name}/{name}" for name in ("raw_analytics", "raw_metrics", "compound_events", f"topic/{CALLS.output_topic}")
    }
    assert told[f"{CALLS.name}/compound_events", "compounds"] > 800
    assert told[f"{CALLS.name}/raw_metrics", "landed_right"] > 800
    links = client.call("GET", f"/dags/{CALLS.name}/dagRuns/{quote(run_id, safe='')}/taskInstances/report_quality/links")
    assert links["extra_links"]["Spark"] is None, "the local Spark shows no pages"
    assert any("records landed" in (known["note"] or "") for known in client.runs(CALLS.name))
    # The newest page may be that of a scheduled run by now.
    assert links["extra_links"]["Quality page"] == f"/quality/{CALLS.name}/batch-{batch_id}.html"
    assert status(f"{airflow.url}/quality/{CALLS.name}/..%2F..%2Fwriter.lock", token)[0] == 404
    assert status(f"{airflow.url}/quality/..%2Fcalls/index.html", token)[0] == 404


def test_a_bad_parameter_is_refused_before_anything_runs(airflow):
    client = airflow.client()
    for value in (0, -1, 10**21):
        with pytest.raises(Exception, match=r"max_records|422|400"):
            client.trigger(CALLS.name, {"max_records": value})


def test_a_number_that_airflow_cannot_send_harms_nothing(airflow):
    client = airflow.client()
    run_id, state = run(client, {"stranger": 10**21, "report_only": True})
    pause_when_idle(client, CALLS.name)
    assert state == "success", [client.task_log(CALLS.name, run_id, name)[-15:] for name in TASKS]
    (note,) = [each["note"] for each in client.runs(CALLS.name) if each["dag_run_id"] == run_id]
    assert note.endswith("asked for: stranger=1000000000000000000000, report_only=True")
    assert airflow.is_running()


def test_a_task_whose_process_is_killed_takes_its_job_along_and_is_tried_again(airflow, broker, faults, send_calls):
    client, point = airflow.client(), "before_open_events"
    _, truths = send_calls(200)
    faults.arm(point)
    client.pause(CALLS.name, False)
    client.trigger(CALLS.name)
    wait_for(lambda: faults.is_reached(point), "the job to come to the point", 180)
    faults.disarm(point)
    job = psutil.Process(faults.who(point))
    # The task's process alone, which cannot end its job any more.
    os.kill(job.ppid(), signal.SIGKILL)
    gone, alive = psutil.wait_procs([job], timeout=20)
    assert not alive and len(gone) == 1

    verdict = verdict_when_idle(airflow, broker, truths)
    tasks = [client.tasks(CALLS.name, known["dag_run_id"])["pair_events"] for known in client.runs(CALLS.name)]
    assert [task["state"] for task in tasks if task["try_number"] == 2] == ["success"]
    assert verdict.differences == []
    warehouse = Tables(airflow.warehouse, CALLS)
    steps = [(row["batch_id"], row["step"]) for row in table_rows(warehouse, "batch_ledger")]
    # planned, landed, paired, publishing, published, reported: each once.
    assert len(set(steps)) == len(steps) == 6 * max(batch_id for batch_id, _ in steps)
    made = commits(airflow.warehouse, CALLS, "compound_events")
    assert max(made.values()) == 1
