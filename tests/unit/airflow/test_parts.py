"""What is told of each part of the platform, how fast, and that no part that hangs hides the others."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.api.common import airflow_health
from airflow.api_fastapi.core_api import security
from airflow.executors import base_executor
from fastapi import FastAPI
from fastapi.testclient import TestClient

from include.airflow import parts as of_parts
from include.airflow import parts_app
from include.airflow.parts import Part, look, parts

NAMES = ["API server", "metadata database", "scheduler", "DAG processor", "triggerer", "Spark server", "Kafka"]


def health(**beats):
    """Airflow's health page; part=(status, seconds since its last heartbeat or None)."""
    answer = {"metadatabase": {"status": "healthy"}}
    for part in ("scheduler", "dag_processor", "triggerer"):
        status, ago = beats.get(part, ("healthy", 1))
        at = None if ago is None else (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
        answer[part] = {"status": status, f"latest_{part}_heartbeat": at}
    return answer


@pytest.fixture
def platform(monkeypatch):
    """All parts, alive, and all listening on one port; what a test changes is down."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = f"127.0.0.1:{server.getsockname()[1]}"
        connections = {
            "spark_default": SimpleNamespace(conn_type="spark_connect", host=f"sc://{here}", port=None),
            "kafka_default": SimpleNamespace(extra_dejson={"bootstrap.servers": f"127.0.0.1:1, {here}"}),
        }
        state = SimpleNamespace(connections=connections, health=health, api=f"http://{here}/execution/")
        monkeypatch.setattr(of_parts, "_connections", {})
        monkeypatch.setattr(of_parts.BaseHook, "get_connection", lambda name: connections[name])
        monkeypatch.setattr(of_parts, "_last", (float("-inf"), []))
        monkeypatch.setattr(airflow_health, "get_airflow_health", lambda: state.health())
        monkeypatch.setattr(base_executor, "get_execution_api_server_url", lambda: state.api)
        yield state


def down(found):
    return {part.name: part.text for part in found if not part.ok}


def test_all_parts_in_their_order(platform):
    found = look()
    assert [part.name for part in found] == NAMES and down(found) == {}
    assert found[2] == Part("scheduler", True, "heartbeat 1 s ago")


def test_each_part_that_is_down_says_how_that_is_known(platform):
    platform.health = lambda: health(scheduler=("unhealthy", 95), dag_processor=(None, None), triggerer=("unhealthy", 31))
    platform.api = "http://127.0.0.1:1/execution/"
    platform.connections["spark_default"].host = "sc://127.0.0.1:1"
    platform.connections["kafka_default"].extra_dejson = {"bootstrap.servers": "127.0.0.1:1"}
    refused = "[Errno 111] Connection refused"
    assert down(look()) == {
        "API server": f"127.0.0.1:1 does not answer: {refused}",
        "scheduler": "last heartbeat 95 s ago: see its log, start it again",
        "DAG processor": "has never run",
        "triggerer": "last heartbeat 31 s ago: see its log, start it again",
        "Spark server": f"127.0.0.1:1 does not answer: {refused}",
        "Kafka": f"127.0.0.1:1 does not answer: {refused}",
    }


def test_a_database_that_does_not_answer_is_a_part(platform):
    platform.health = lambda: health() | {"metadatabase": {"status": "unhealthy"}}
    assert [*down(look())] == NAMES[1:5]


def test_what_hangs_or_fails_hides_no_other_part(platform, monkeypatch):
    def hang():
        time.sleep(1)

    monkeypatch.setattr(of_parts, "WITHIN_S", 0.2)
    platform.health = hang
    del platform.connections["kafka_default"]
    begin = time.monotonic()
    found = down(look())
    assert time.monotonic() - begin < 0.8
    assert found == dict.fromkeys(NAMES[1:5], "no answer within 0.2 s") | {"Kafka": "cannot be asked: KeyError"}


def test_a_spark_of_each_job_is_no_part(platform):
    platform.connections["spark_default"].conn_type = "spark"
    assert "Spark server" not in [part.name for part in look()]


def test_every_cluster_is_a_part(platform, monkeypatch):
    platform.connections["kafka_far"] = platform.connections["kafka_default"]
    monkeypatch.setattr(of_parts, "_kafka_connections", lambda: ["kafka_default", "kafka_far"])
    assert [part.name for part in look()][-2:] == ["Kafka", "Kafka (kafka_far)"]


def test_a_connection_is_not_read_at_every_look(platform, monkeypatch):
    look()
    platform.connections.clear()
    assert down(look()) == {}
    monkeypatch.setattr(of_parts, "_CONNECTION_SERVES_FOR_S", 0)
    assert [*down(look())] == ["Spark server", "Kafka"]


def test_an_answer_serves_for_some_seconds(platform, monkeypatch):
    before = parts()
    platform.health = lambda: health(scheduler=("unhealthy", 95))
    assert parts() is before
    monkeypatch.setattr(of_parts, "_SERVES_FOR_S", 0)
    assert [*down(parts())] == ["scheduler"]


def test_the_pages_are_behind_the_login(monkeypatch):
    found = [Part("scheduler", True, "heartbeat 1 s ago"), Part("Kafka (a\\b)", False, "h:1 does not answer")]
    monkeypatch.setattr(parts_app, "parts", lambda: found)
    airflow = FastAPI()
    airflow.mount("/parts", parts_app.app)
    browser = TestClient(airflow)
    assert [browser.get(page).status_code for page in ("/parts/", "/parts/metrics")] == [401, 401]
    allowed = {each.dependency: lambda: None for each in parts_app.app.router.dependencies}
    allowed[security.get_user] = lambda: None
    monkeypatch.setattr(parts_app.app, "dependency_overrides", allowed)
    assert browser.get("/parts/").json() == [part._asdict() for part in found]
    assert browser.get("/parts/metrics").text.splitlines()[-3:] == [
        'event_pairing_part_up{part="scheduler"} 1',
        'event_pairing_part_up{part="Kafka (a\\\\b)"} 0',
        "# EOF",
    ]
