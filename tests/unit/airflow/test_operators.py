"""What of a connection's extra Airflow hides in a task's log."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException

from include.config.health import State, write_state
from include.config.pipeline import PIPELINES
from include.config.store import pages_store
from tests.helpers.timeline import CALLS
from tests.unit.config.test_secret_values import KEY, SETTINGS


def test_airflow_hides_whatever_is_a_secret_of_the_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": SETTINGS}))
    from airflow.sdk._shared.secrets_masker import redact

    from include.airflow.connections import all_kafka_settings

    assert redact(f"with {KEY} in it") != "with *** in it"
    assert all_kafka_settings(CALLS) == SETTINGS
    assert redact(f"with {KEY} in it") == "with *** in it"
    assert redact("somebody at b:1") == "somebody at b:1"


def test_a_job_gets_the_settings_of_all_its_clusters(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for name in ("KAFKA_CALLS", "KAFKA_DEFAULT", "KAFKA_OTHER"):
        extra = {"bootstrap.servers": f"{name}:1".lower(), "sasl.password": f"secret of {name}"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "kafka", "extra": extra}))
    from airflow.sdk._shared.secrets_masker import redact

    from include.airflow.connections import all_kafka_settings

    pipeline = replace(CALLS, right=replace(CALLS.right, connection="kafka_calls"))
    servers = {name: settings["bootstrap.servers"] for name, settings in all_kafka_settings(pipeline).items()}
    assert servers == {"kafka_default": "kafka_default:1", "kafka_calls": "kafka_calls:1"}
    assert redact("with secret of KAFKA_CALLS in it") == "with *** in it"


REGISTRY = {"conn_type": "http", "host": "r", "port": 8081, "login": "somebody", "password": "p4ss:w0rd"}


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"host": "r"}, {"url": "http://r"}),
        ({"host": "r", "port": 8081, "schema": "https"}, {"url": "https://r:8081"}),
        ({"host": "r", "conn_type": "https"}, {"url": "https://r"}),
        ({"host": " a , b:2,c/apis/ccompat/v7,", "port": 1}, {"url": "http://a:1,http://b:2,http://c:1/apis/ccompat/v7"}),
        ({"host": "https://a:8081/x,http://[::1]", "port": 1, "schema": "http"}, {"url": "https://a:8081/x,http://[::1]:1"}),
        (REGISTRY, {"url": "http://r:8081", "basic.auth.user.info": "somebody:p4ss:w0rd"}),
        (
            {"host": "r", "extra": {"bearer.auth.token": "t", "ssl.ca.location": "/ca", "timeout": 5}},
            {"url": "http://r", "bearer.auth.token": "t", "ssl.ca.location": "/ca", "timeout": 5},
        ),
        ({"extra": {"url": "http://a,http://b"}}, {"url": "http://a,http://b"}),
        ({}, {}),
    ],
)
def test_the_schema_registry_s_connection(fields, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps({"conn_type": "generic"} | fields))
    from include.airflow.connections import schema_registry_settings

    assert schema_registry_settings() == settings


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"host": "r", "schema": "apis/ccompat/v7"}, "the schema must be http or https; a path belongs to the host"),
        ({"host": "r:p4ss"}, "the host is no address: give name, port and path"),
        ({"host": "http://[p4ss"}, "the host is no address: give name, port and path"),
    ],
)
def test_what_cannot_be_the_schema_registry(fields, line, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps({"conn_type": "http"} | fields))
    from include.airflow.connections import schema_registry_settings

    with pytest.raises(AirflowException, match=f"^connection schema_registry_default: {line}$"):
        schema_registry_settings()


def test_airflow_hides_the_secrets_of_the_schema_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    extra = {"bearer.auth.token": "a-token-of-the-registry", "ssl.key.password": "phrase-of-a-key"}
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps(REGISTRY | {"extra": extra}))
    from airflow.sdk._shared.secrets_masker import redact

    from include.airflow.connections import schema_registry_settings

    schema_registry_settings()
    assert redact("a-token-of-the-registry, phrase-of-a-key") == "***, ***"
    assert redact("with somebody:p4ss:w0rd or p4ss:w0rd for r:8081") == "with *** or *** for r:8081"


@pytest.mark.parametrize("connected", [True, False])
def test_a_job_gets_the_schema_registry_of_the_connection_or_none(connected, tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from include.airflow import operators

    around = {}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setattr(operators.SparkSubmitOperator, "execute", lambda *_: around.update(os.environ))
    monkeypatch.setattr(operators, "all_kafka_settings", lambda _: {})
    monkeypatch.setattr(operators, "warehouse_options", dict)
    monkeypatch.setattr(operators, "_alert_news", lambda *_: None)
    for name in ("PYTHONPATH", "PAIRING_KAFKA", "PAIRING_STORE", "PAIRING_OUTCOME", "PAIRING_TASK_LOCK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PAIRING_SCHEMA_REGISTRY", "of Airflow's own environment")
    if connected:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps(REGISTRY))
    task = operators.PairingJobOperator(job="land_events", pipeline_file=PIPELINES / "calls.yaml")
    assert task.execute({"ti": None, "outlet_events": {}}) == {}
    expected = {"url": "http://r:8081", "basic.auth.user.info": "somebody:p4ss:w0rd"} if connected else None
    assert json.loads(around.get("PAIRING_SCHEMA_REGISTRY", "null")) == expected
    assert "p4ss" not in str(task.application_args)


def test_spark_is_submitted_without_the_variables_of_clouds(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from include.airflow import operators as pairing_operator
    from include.airflow.operators import PairingJobOperator

    around = {}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setattr(pairing_operator.SparkSubmitOperator, "execute", lambda *_: around.update(os.environ))
    monkeypatch.setattr(pairing_operator, "all_kafka_settings", lambda _: {})
    monkeypatch.setattr(pairing_operator, "warehouse_options", lambda: {"aws_region": "eu"})
    monkeypatch.setattr(pairing_operator, "schema_registry_settings", dict)
    monkeypatch.setattr(pairing_operator, "_alert_news", lambda *_: None)
    for name in ("PYTHONPATH", "PAIRING_KAFKA", "PAIRING_STORE", "PAIRING_OUTCOME", "PAIRING_TASK_LOCK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    task = PairingJobOperator(job="land_events", pipeline_file=PIPELINES / "calls.yaml")
    assert task.execute({"ti": None, "outlet_events": {}}) == {}
    assert "AWS_SECRET_ACCESS_KEY" not in around
    assert json.loads(around["PAIRING_STORE"]) == {"aws_secret_access_key": KEY, "aws_region": "eu"}
    # Airflow may write its logs with it.
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == KEY


@pytest.mark.parametrize(
    ("status", "reason"),
    [(-9, "land_events was ended by SIGKILL: for want of memory, by a person, or by a crash"), (1, "land_events ended with status 1: its log above says why")],
)  # fmt: skip
def test_a_job_that_leaves_no_reason_is_explained_by_its_status(tmp_path, monkeypatch, status, reason):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from include.airflow import operators

    class Ended:
        def __init__(self, *_):
            pass

        def wait(self, show):
            return status

    monkeypatch.setattr(operators, "ForkedJob", Ended)
    monkeypatch.setattr(operators, "_alert_news", lambda *_: None)
    for name in (
        "PYTHONPATH",
        "PAIRING_KAFKA",
        "PAIRING_STORE",
        "PAIRING_OUTCOME",
        "PAIRING_TASK_LOCK",
        "PAIRING_SPARK_REMOTE",
    ):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1}')
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}')
    monkeypatch.setenv("PAIRING_WAREHOUSE", str(tmp_path))
    pages = pages_store("calls", str(tmp_path)).made()
    task, left = operators.PairingJobOperator(job="land_events", pipeline_file=PIPELINES / "calls.yaml"), {}
    for state in (None, State(pipeline="calls", at=1.0, batch=7)):
        if state:
            write_state(pages, state)
        with pytest.raises(AirflowException, match=f"^{reason}$"):
            task.execute({"ti": SimpleNamespace(xcom_push=left.__setitem__), "outlet_events": {}})
        # The run's note is made of it.
        assert left == {"failure": {"reason": reason} | ({"state": "healthy after batch 7"} if state else {})}
    # The task fails for its own reason, even if nothing can be left.
    with pytest.raises(AirflowException, match=f"^{reason}$"):
        task.execute({"ti": None, "outlet_events": {}})
    assert os.environ["PAIRING_SPARK_REMOTE"] == "sc://127.0.0.1:1/"


@pytest.mark.parametrize(("counts", "skipped"), [({"new": 0, "nothing_waits": 1}, True), ({"batch_id": 7, "new": 2}, False)])
def test_tasks_with_nothing_to_do_are_skipped(counts, skipped, tmp_path, monkeypatch):
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import DownstreamTasksSkipped

    from include.airflow import operators

    def made(job, **named):
        return operators.PairingJobOperator(job=job, pipeline_file=PIPELINES / "calls.yaml", **named)

    with DAG("calls_replay"):
        first, publish, report = made("replay_interval", last_with="nothing_waits"), *map(made, ("publish", "report"))
        first >> publish >> report << first
    monkeypatch.setattr(first, "_outcome_of", lambda *_: {"counts": counts})
    pushed = {}
    task = SimpleNamespace(xcom_push=pushed.__setitem__)
    if not skipped:
        assert first.execute({"ti": task, "params": {}, "outlet_events": {}}) == counts and not pushed
        return
    with pytest.raises(DownstreamTasksSkipped) as end:
        first.execute({"ti": task, "params": {}, "outlet_events": {}})
    # The note of the run is made of what the task has returned.
    assert end.value.tasks == ["publish", "report"] and pushed == {"return_value": counts}


def test_news_say_whether_something_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from include.airflow import operators

    alerted = []
    monkeypatch.setattr(operators, "alert", lambda text, is_over, **_: alerted.append((text, is_over)))
    task = SimpleNamespace(dag_id="calls", run_id="r1", task_id="report_quality")
    news = [
        "a has not had one accepted record",
        "a sends again: it was silent",
        "a finds partners of b again: 1",
        "over: orphans",
    ]
    operators._alert_news(task, news, news[1:], 7)
    assert [is_over for _, is_over in alerted] == [False, True, True, True]
    assert alerted[0][0] == "calls: a has not had one accepted record"
