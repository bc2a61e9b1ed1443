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
        """What `start_by_hand` starts, ended: its status, and what it said."""
        process = self.start_by_hand(job, **kafka)
        told, _ = process.communicate(timeout=_WITHIN_S)
        return process.returncode, told

    def start_by_hand(self, job, **kafka):
        """The block of docs/deployment.md, with this pipeline and job; a process group of its own."""
        text = (ROOT / "docs" / "deployment.md").read_text()
        (block,) = re.findall(r"^```bash by-hand\n(.*?)^```$", text, re.M | re.S)
        file, settings = self.pair.file, {"PAIRING_KAFKA": self.kafka | kafka, "PAIRING_STORE": self.store.options}
        block = block.replace("project/include/pipelines/calls.yaml", f"project/include/pipelines/{file.name}")
        block = block.replace(" include/pipelines/calls.yaml", f" {file}")
        block = block.replace("s3://lake/events", self.pair.stored.root).replace("land_events", job)
        told = json.dumps({name: json.dumps(value) for name, value in settings.items()})
        # What it leaves when it is killed, secrets too, is gone with the test.
        environment = project_environment() | self.yarn.environment() | {"TMPDIR": str(file.parent)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(["bash", "-c", block], cwd=ROOT, env=environment, start_new_session=True, **pipes)
        process.stdin.write(told)
        process.stdin.close()
        process.stdin = None
        return process

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
    status, told = submitted.by_hand("land_events")
    assert status == 0, (told, submitted.yarn.told())
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
    status, _ = submitted.by_hand("land_events", acks="1")
    refused, silent = refused.end(), silent.end()
    line = "setting acks=1 of kafka_default is refused: "
    assert refused["kind"] == "AirflowFailException" and refused["error"].startswith(line)
    assert refused["error"].endswith("(what to do: docs/runbooks/kafka-settings-refused.md)")
    assert silent["kind"] == "AirflowException" and silent["error"].startswith("no answer from Kafka at 127.0.0.1:1")
    assert all("\n" not in each["error"] and each["application"].startswith("application_") for each in (refused, silent))
    assert submitted.outcomes() == {}
    assert status == 1 and f"error: {line}" in submitted.yarn.told(10)


def test_a_killed_task_ends_its_application_and_leaves_no_secret(submitted, faults):
    pair, yarn, of_the_store = submitted.pair, submitted.yarn, submitted.store.secret
    pair.portions.send()
    with CommandLines(MARKER, of_the_store) as lines:
        killed, driver = stand(submitted.start, submitted, faults, "before_planned")
        assert_knows_nothing_of_this_machine(driver, yarn)
        (script,) = yarn.staging.rglob("land_events.py")
        assert not script.parent.stat().st_mode & 0o077
        for secret in (MARKER, of_the_store):
            # The driver has deleted its own copy, and the executors' machines get none.
            assert holding(yarn.folder, secret) == [str(script.relative_to(yarn.folder))]
        killed.signal(signal.SIGTERM)
        assert "error" in killed.end()
        wait_for(lambda: yarn.applications()[-1]["state"] == "KILLED", "its end", _WITHIN_S, every_s=0.5)
        wait_for(lambda: not driver.is_running(), "the end of its driver")
        wait_for(lambda: not script.exists(), "the staging folder to go", _WITHIN_S)
    assert lines.seen > 1_000 and not lines.found
    assert [holding(yarn.folder, secret) for secret in (MARKER, of_the_store)] == [[], []]


def test_a_driver_ends_with_its_task_and_one_that_does_not_counts_nothing_twice(submitted, faults):
    """Three die by kill -9 in the middle of their work: who submits by hand, a task, and the spark-submit of the next try."""
    pair, yarn, point = submitted.pair, submitted.yarn, "before_landed"
    pair.portions.send()
    by_hand, zombie = stand(submitted.start_by_hand, submitted, faults, point)
    os.killpg(by_hand.pid, signal.SIGKILL)
    task, orphan = stand(submitted.start, submitted, faults, point)
    task.signal(signal.SIGKILL)
    retried, other = stand(submitted.start, submitted, faults, point)
    (submitter,) = [
        each for each in psutil.Process(retried.process.pid).children() if "land_events.py" in str(each.cmdline())
    ]
    submitter.kill()
    told = retried.end()
    of_nobody, of_the_task, of_the_retried = (each["id"] for each in yarn.applications()[-3:])
    assert told["error"] == f"{of_the_retried} ended without an outcome: the log of its driver on the cluster says why"
    # The next try finishes the batch at which they all stood, and lands the next one, in which is nothing.
    assert submitted.run("land_events")["batch_id"] == 2
    wait_for(
        lambda: {yarn.ended_as(each) for each in (of_the_retried, of_the_task)} == {"FAILED"}, "their end", _WITHIN_S, 0.5
    )
    assert not other.is_running() and not orphan.is_running()
    assert yarn.ended_as(of_nobody) == "UNDEFINED" and zombie.is_running()
    # It is its own master, and the fence refuses what it does too late.
    faults.release(point)
    wait_for(lambda: yarn.ended_as(of_nobody) != "UNDEFINED", "the driver of nobody to end", _WITHIN_S, 0.5)
    wait_for(lambda: not [*yarn.staging.rglob("land_events.py")], "the staging folders to go", _WITHIN_S)
    # What a task left that died without a word; a task of another day deletes it.
    assert sorted(name.rpartition(".")[2] for name in submitted.outcomes()) == ["json", "task"]
    for work in (land, pair_events.main, land):
        work(pair.foldered)
    pair.run(pair_events.main)
    assert pair.differences() == []


def stand(start, submitted, faults, point):
    """What `start` has started, whose driver stands at the point, and the driver."""
    faults.arm(point)
    task = start("land_events")
    process = getattr(task, "process", task)
    wait_for(lambda: faults.is_reached(point) or process.poll() is not None, point, _WITHIN_S)
    told = getattr(task, "log", submitted.pair.file).read_text()
    assert faults.is_reached(point), (told, submitted.yarn.told())
    faults.disarm(point)
    return task, psutil.Process(faults.who(point))


def assert_knows_nothing_of_this_machine(driver, yarn):
    around = driver.environ()
    assert driver.cwd().startswith(str(yarn.containers))
    assert not {"PAIRING_KAFKA", "PAIRING_STORE", "PAIRING_TASK_LOCK", "AIRFLOW_HOME"} & set(around)
    assert str(ROOT) not in around["PYTHONPATH"].split(os.pathsep) and str(ROOT / ".venv") not in driver.cmdline()[0]
