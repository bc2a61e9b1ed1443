"""What goes to a cluster with a job, on which command line, and what of spark_default is refused."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from zipfile import ZipFile

import pytest

from include.config.project import ROOT
from include.config.store import Store

CALLS = ROOT / "include" / "pipelines" / "calls.yaml"
SECRET = "a secret of kafka_default"
STORED = {
    "PAIRING_WAREHOUSE": "s3://lake/events",
    "PAIRING_KAFKA": SECRET,
    "PAIRING_STORE": '{"aws_secret_access_key": "s"}',
}
YARN = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://manager:8088"}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """prepared(host, extra, **environment): the task after it has prepared what it submits, in the folder tmp_path."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))

    def prepare(host, extra, **environment):
        from include.airflow.operators import PairingJobOperator

        spark = {"conn_type": "spark", "host": host, "extra": extra}
        for name, value in (STORED | {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark)} | environment).items():
            monkeypatch.setenv(name, value)
        task = PairingJobOperator(job="land_events", pipeline_file=CALLS)
        task._prepare(tmp_path, ["--max-records", "5"])
        return task

    return prepare


def command_of(task):
    return task._get_hook()._build_spark_submit_command(task.application)


def test_client_mode_is_as_it_was(prepared, tmp_path):
    task = prepared("local[2]", {"deploy-mode": "client"})
    assert task.submission is None and not task.files and not task.env_vars and not task.conf
    assert task.application_args == ["--pipeline", str(CALLS), "--max-records", "5"]
    assert list(tmp_path.glob("*.*")) == []


def conf_of(command):
    return dict(command[at + 1].split("=", 1) for at, word in enumerate(command) if word == "--conf")


def test_yarn_gets_the_project_as_an_archive_and_the_secrets_in_the_script(prepared, tmp_path):
    task = prepared("yarn", YARN)
    command = command_of(task)
    assert SECRET not in str(command) and str(ROOT) not in str(command)
    script, *arguments = command[-5:]
    assert arguments == ["--pipeline", "project/include/pipelines/calls.yaml", "--max-records", "5"]
    assert script == str(tmp_path / "land_events.py") and SECRET in Path(script).read_text()
    outcome, lease = re.findall(r"s3://lake/events/calls/outcomes/([\w-]+)\.(?:json|task)", Path(script).read_text())
    assert outcome == lease
    archive, _, alias = command[command.index("--archives") + 1].partition("#")
    assert alias == "project" and "include/pipelines/calls.yaml" in ZipFile(archive).namelist()
    conf = conf_of(command)
    there = {name.rpartition(".")[2]: value for name, value in conf.items() if ".appMasterEnv." in name}
    assert there == {"PYTHONPATH": "{{PWD}}/project", "TMPDIR": "{{PWD}}/tmp"}
    # spark-submit ends when the application does, and YARN does not try again on its own.
    assert conf["spark.yarn.submit.waitAppCompletion"] == "true" and conf["spark.yarn.maxAppAttempts"] == "1"


@pytest.mark.parametrize("registry", [None, '{"basic.auth.user.info": "somebody:p4ss"}'])
def test_yarn_gets_the_schema_registry_if_there_is_one(registry, prepared, tmp_path, monkeypatch):
    monkeypatch.delenv("PAIRING_SCHEMA_REGISTRY", raising=False)
    command = command_of(prepared("yarn", YARN, **({"PAIRING_SCHEMA_REGISTRY": registry} if registry else {})))
    script = (tmp_path / "land_events.py").read_text()
    assert ("PAIRING_SCHEMA_REGISTRY" in script, "somebody:p4ss" in script) == (registry is not None,) * 2
    assert "p4ss" not in str(command)


def test_kubernetes_finds_the_project_in_its_image(prepared, tmp_path, monkeypatch):
    from airflow.providers.apache.spark.hooks import spark_submit

    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    task = prepared("k8s://https://cluster:6443", {"deploy-mode": "cluster", "namespace": "events"})
    command = command_of(task)
    assert command[-5:] == [f"local://{ROOT}/spark_jobs/land_events.py", "--pipeline", str(CALLS), "--max-records", "5"]
    conf = conf_of(command)
    assert conf["spark.kubernetes.driverEnv.PYTHONPATH"] == str(ROOT)
    assert conf["spark.kubernetes.driverEnv.PAIRING_WAREHOUSE"] == "s3://lake/events"
    assert conf["spark.kubernetes.driverEnv.PAIRING_OUTCOME"].startswith("s3://lake/events/calls/outcomes/")
    assert conf["spark.kubernetes.driverEnv.PAIRING_TASK_LOCK"].startswith("s3://lake/events/calls/outcomes/")
    assert SECRET not in str(command) and "--archives" not in command and list(tmp_path.glob("*.py")) == []


@pytest.mark.parametrize(
    ("host", "extra", "environment", "line"),
    [
        ("spark://master:7077", YARN, {}, "spark_default: deploy-mode cluster works on YARN and Kubernetes, not on spark://master:7077"),
        ("local[2]", YARN, {}, "spark_default: deploy-mode cluster works on YARN and Kubernetes, not on local[2]"),
        ("yarn", YARN, {"PAIRING_WAREHOUSE": "/srv/tables"}, "needs the tables in an object store, but /srv/tables is a folder"),
        ("yarn", YARN, {"PAIRING_WAREHOUSE": "ftp://lake/events"}, "warehouse ftp://… is refused: "),
        ("yarn", {"deploy-mode": "cluster"}, {}, "on YARN needs yarn_resourcemanager_webapp_address"),
        ("k8s://https://cluster:6443", YARN, {}, "a master k8s:// needs the package apache-airflow-providers-cncf-kubernetes"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_line(prepared, host, extra, environment, line):
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException) as refused:
        prepared(host, extra, **environment)
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_an_outcome_is_taken_once_and_old_ones_go(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    from include.airflow.cluster_mode import take_outcome

    outcomes = tmp_path / "outcomes"
    outcomes.mkdir()
    for name, age_h in (("mine", 0), ("of-another-task", 23), ("left", 25)):
        (outcomes / f"{name}.json").write_text('{"ok": true}')
        os.utime(outcomes / f"{name}.json", (time.time() - age_h * 3600,) * 2)
    assert take_outcome(Store(str(outcomes)), "mine.json") == {"ok": True}
    assert [file.name for file in outcomes.iterdir()] == ["of-another-task.json"]
    assert take_outcome(Store(str(outcomes)), "mine.json") == {}


def test_an_outcome_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    from airflow.sdk.exceptions import AirflowException

    from include.airflow.cluster_mode import take_outcome

    with pytest.raises(AirflowException, match=r"^the outcome of the job in .*/nowhere cannot be read \(.*\)$"):
        take_outcome(Store(str(tmp_path / "nowhere")), "mine.json")


def test_nothing_is_submitted_without_a_lease(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    from airflow.sdk.exceptions import AirflowException

    from include.airflow.cluster_mode import Submission, lease

    (tmp_path / "outcomes").touch()
    given = Submission({}, "calls.yaml", Store(str(tmp_path / "outcomes")), "some.json", "some.task")
    with (
        pytest.raises(AirflowException, match=r"^the lease of the task in .*/outcomes cannot be written \([^\n]*\)$"),
        lease(given),
    ):
        raise AssertionError("nothing may be submitted")


def test_an_application_without_an_outcome_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    from airflow.sdk.exceptions import AirflowException

    from include.airflow.operators import _readable

    ended = _readable(AirflowException("many\nlines"), {"application": "application_1_0001"}, True)
    assert str(ended) == "application_1_0001 ended without an outcome: the log of its driver on the cluster says why"
    assert str(_readable(AirflowException("many\nlines"), {"application": "local-1"}, False)) == "many\nlines"
