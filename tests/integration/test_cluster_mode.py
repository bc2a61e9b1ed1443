"""spark-submit in cluster mode on a real YARN: the driver has nothing of the machine that submits it, and Airflow's task knows how it ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import psutil
import pytest

from include.config.store import warehouse_store
from include.local.machine import ROOT, project_environment
from spark_jobs import pair_events, publish_compounds, report_quality
from spark_jobs.tables.schemas import REJECTED
from tests.helpers.all_stages import land, run_all
from tests.helpers.comparing import rows
from tests.helpers.job_processes import JOBS, Faults, wait_for
from tests.helpers.local_yarn import running_yarn
from tests.helpers.one_task import Task
from tests.helpers.secret_search import CommandLines, holding
from tests.helpers.stores import texts_in
from tests.helpers.two_warehouses import both_on

pytestmark = [pytest.mark.integration, pytest.mark.long]

MARKER = "m4rk-in-kafka-default"
# On a quiet machine an application takes a quarter of a minute.
_WITHIN_S = 900


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    with running_yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.fixture
def faults(yarn):
    return Faults(yarn.faults)


class Submitted:
    """The jobs of a pipeline, submitted in cluster mode: by Airflow's operator, and by hand."""

    def __init__(self, pair, store, yarn) -> None:
        self.pair, self.store, self.yarn = pair, store, yarn
        self.kafka = {"bootstrap.servers": pair.bootstrap, "sasl.password": MARKER}

    def start(self, job, **kafka):
        """A task; `kafka`: settings of kafka_default, with underscores for dots."""
        extra = self.kafka | {name.replace("_", "."): value for name, value in kafka.items()}
        spark = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": self.yarn.url}
        connections = {
            "SPARK": {"conn_type": "spark", "host": "yarn", "extra": spark},
            "KAFKA": {"conn_type": "kafka", "extra": extra},
            "WAREHOUSE": self.store.connection,
        }
        environment = {f"AIRFLOW_CONN_{name}_DEFAULT": json.dumps(value) for name, value in connections.items()}
        environment |= {"AIRFLOW_HOME": str(self.pair.file.parent / "airflow"), "PAIRING_WAREHOUSE": self.pair.stored.root}
        return Task(job, self.pair.file, environment | self.yarn.environment())

    def run(self, job):
        done = self.start(job).end()
        assert "counts" in done, (done, self.yarn.told())
        return done["counts"]

    def by_hand(self, job, **kafka):
        """The block of docs/deployment.md, with this pipeline and job."""
        text = (ROOT / "docs" / "deployment.md").read_text()
        (block,) = re.findall(r"^```bash by-hand\n(.*?)^```$", text, re.M | re.S)
        file, settings = self.pair.file, {"PAIRING_KAFKA": self.kafka | kafka, "PAIRING_STORE": self.store.options}
        block = block.replace("project/include/pipelines/calls.yaml", f"project/include/pipelines/{file.name}")
        block = block.replace(" include/pipelines/calls.yaml", f" {file}")
        block = block.replace("s3://lake/events", self.pair.stored.root).replace("land_events", job)
        told = json.dumps({name: json.dumps(value) for name, value in settings.items()})
        environment = project_environment() | self.yarn.environment()
        bash = {"cwd": ROOT, "env": environment, "input": told, "capture_output": True, "text": True}
        return subprocess.run(["bash", "-c", block], check=False, timeout=_WITHIN_S, **bash)

    def outcomes(self):
        """What jobs have left on the store."""
        return texts_in(warehouse_store(self.pair.stored.root).at(self.pair.stored.pipeline.name, "outcomes"))


@pytest.fixture
def submitted(s3, yarn, spark, broker, tmp_path, monkeypatch, request):
    return Submitted(both_on(s3, request.node.name[5:20], spark, broker, tmp_path, monkeypatch), s3, yarn)


def test_drivers_on_the_cluster_do_what_they_do_in_one_process(submitted):
    """The first batch by Airflow's tasks; the second begun by hand, and ended in one process."""
    pair = submitted.pair
    pair.portions.send()
    counts = {job: submitted.run(job) for job in JOBS}
    run_all(pair.foldered)
    assert counts["land_events"]["batch_id"] == 1 and counts["land_events"]["landed"] > 10
    kinds = [counts["pair_events"][kind] for kind in ("pair", "left_only", "right_only")]
    assert counts["publish_compounds"]["sent"] == sum(kinds) > 6

    pair.portions.send()
    done = submitted.by_hand("land_events")
    assert done.returncode == 0, (done.stderr, submitted.yarn.told())
    for work in (pair_events.main, publish_compounds.main, report_quality.main):
        work(pair.stored)
    run_all(pair.foldered)
    assert pair.differences() == []
    assert rows(pair.stored.root, pair.stored.pipeline, REJECTED).total() > 5
    assert submitted.outcomes() == {}
    # Each was one attempt of one application, which spark-submit has waited for.
    ended = submitted.yarn.applications()
    assert [(each["state"], each["finalStatus"]) for each in ended] == [("FINISHED", "SUCCEEDED")] * 5


def test_a_task_says_why_its_driver_failed(submitted):
    submitted.pair.portions.send()
    # Side by side.
    refused, silent = (
        submitted.start("land_events", acks="1"),
        submitted.start("land_events", bootstrap_servers="127.0.0.1:1"),
    )
    by_hand = submitted.by_hand("land_events", acks="1")
    refused, silent = refused.end(), silent.end()
    line = "setting acks=1 of kafka_default is refused: "
    assert refused["kind"] == "AirflowFailException" and refused["error"].startswith(line)
    assert refused["error"].endswith("(what to do: docs/runbooks/kafka-settings-refused.md)")
    assert silent["kind"] == "AirflowException" and silent["error"].startswith("no answer from Kafka at 127.0.0.1:1")
    assert all("\n" not in each["error"] and each["application"].startswith("application_") for each in (refused, silent))
    assert submitted.outcomes() == {}
    assert by_hand.returncode == 1 and f"error: {line}" in submitted.yarn.told(10)


def test_a_killed_task_ends_its_application_and_leaves_no_secret(submitted, faults):
    pair, yarn = submitted.pair, submitted.yarn
    pair.portions.send()
    with CommandLines(MARKER) as lines, CommandLines(of_the_store := submitted.store.secret) as others:
        killed, driver = stand(submitted, faults, "before_planned")
        assert_knows_nothing_of_this_machine(driver, yarn)
        (script,) = yarn.staging.rglob("land_events.py")
        assert not script.parent.stat().st_mode & 0o077
        for secret in (MARKER, of_the_store):
            # The driver has deleted its own copy, and the executors' machines get none.
            assert holding(yarn.folder, secret) == [str(script.relative_to(yarn.folder))]
        killed.signal(signal.SIGTERM)
        assert "error" in killed.end()
        wait_for(lambda: yarn.applications()[-1]["state"] == "KILLED" and not driver.is_running(), "its end", _WITHIN_S)
        wait_for(lambda: not script.exists(), "the staging folder to go", _WITHIN_S)
    assert lines.seen > 1_000 and not lines.found and not others.found
    assert [holding(yarn.folder, secret) for secret in (MARKER, of_the_store)] == [[], []]


def test_a_driver_whose_task_is_gone_counts_nothing_twice(submitted, faults):
    """Its task dies without a word; the next try works beside it."""
    pair, yarn = submitted.pair, submitted.yarn
    pair.portions.send()
    orphaned, driver = stand(submitted, faults, "before_landed")
    orphaned.signal(signal.SIGKILL)
    # It finishes the batch of the driver that stands there, and lands the next one, in which is nothing.
    assert submitted.run("land_events")["batch_id"] == 2
    assert yarn.applications()[-2]["state"] == "RUNNING" and driver.is_running()
    faults.release("before_landed")
    wait_for(lambda: yarn.applications()[-2]["state"] == "FINISHED", "the driver without a task to end", _WITHIN_S)
    # Nobody has taken what it said; a task of another day deletes it.
    assert len(submitted.outcomes()) == 1
    for work in (land, pair_events.main, land):
        work(pair.foldered)
    pair.run(pair_events.main)
    assert pair.differences() == []


def stand(submitted, faults, point):
    """A task whose driver stands at the point, and the driver."""
    faults.arm(point)
    task = submitted.start("land_events")
    wait_for(lambda: faults.is_reached(point) or task.process.poll() is not None, point, _WITHIN_S)
    assert faults.is_reached(point), (task.log.read_text(), submitted.yarn.told())
    faults.disarm(point)
    return task, psutil.Process(faults.who(point))


def assert_knows_nothing_of_this_machine(driver, yarn):
    around = driver.environ()
    assert driver.cwd().startswith(str(yarn.containers))
    assert not {"PAIRING_KAFKA", "PAIRING_STORE", "PAIRING_TASK_LOCK", "AIRFLOW_HOME"} & set(around)
    assert str(ROOT) not in around["PYTHONPATH"].split(os.pathsep) and str(ROOT / ".venv") not in driver.cmdline()[0]
