"""A connection's secrets in a real Airflow: in no log, XCom, rendered field, note, audit log or command line, nor in its database."""

from __future__ import annotations

import json
import secrets

import pytest
from confluent_kafka import Producer

from include.local import spark as local_spark
from include.local.airflow import LocalAirflow
from include.local.broker import create_topics
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.helpers import secured_broker
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.secret_search import CommandLines, holding
from tests.helpers.timeline import CALLS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MARKER = f"m4rk{secrets.token_hex(6)}"
TASKS = ("land_events", "pair_events", "publish_compounds", "report_quality")
CALLS_AT = 1_577_840_400_000

certificates = secured_broker.certificates


@pytest.fixture(scope="module")
def broker(certificates, tmp_path_factory):
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(secured_broker, "PASSWORD", f'se"cret\\ {MARKER}')
        yield from secured_broker.running_broker(certificates, tmp_path_factory)


class AirflowWithItsOwnConnection(LocalAirflow):
    """Kafka's connection is not in the environment but in Airflow's database, where people put it."""

    def settings(self):
        return {name: value for name, value in super().settings().items() if name != "AIRFLOW_CONN_KAFKA_DEFAULT"}


@pytest.fixture
def airflow(broker, tmp_path, monkeypatch):
    create_topics(broker.bootstrap, dict.fromkeys((*CALLS.input_topics, *CALLS.output_topics), 2), {"retention.ms": "-1"})
    log = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{tmp_path}/events",
        "spark.eventLog.compress": "false",
    }
    monkeypatch.setattr(local_spark, "SETTINGS", local_spark.SETTINGS | log)
    (tmp_path / "events").mkdir()
    with (
        LocalSpark(tmp_path / "spark", free_port()) as spark,
        AirflowWithItsOwnConnection(
            tmp_path / "airflow", free_port(), "", str(tmp_path / "warehouse"), spark=spark.url
        ) as running,
    ):
        yield running


def ended(client):
    """The id of a run of the DAG, and how it ended."""
    run_id = client.trigger(CALLS.name)
    return run_id, client.wait_for_run(CALLS.name, run_id, 300)


def shown(client, run_id):
    """What Airflow tells of a run, of its tasks and of the connection."""
    run = f"/dags/{CALLS.name}/dagRuns/{run_id}"
    told = [client.call("GET", path) for path in (run, f"{run}/taskInstances", "/connections", "/eventLogs?limit=1000")]
    for task, state in client.task_states(CALLS.name, run_id).items():
        if state in ("success", "failed"):
            told += [
                client.task_log(CALLS.name, run_id, task),
                client.call("GET", f"{run}/taskInstances/{task}/xcomEntries"),
            ]
    return json.dumps(told)


def test_a_connections_secrets_are_nowhere(airflow, broker, certificates, tmp_path):
    grant(broker.bootstrap, "User:pairing", documented(CALLS))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for side in CALLS.sides:
        body = {"user1": "u", "user2": "v", "timestamp": CALLS_AT, side.payload: 1}
        producer.produce(side.topic, json.dumps(body))
    assert producer.flush(20) == 0
    # A key as text is a secret whose name Airflow does not know by itself.
    key = (certificates / "client.key").read_text()
    right = secured_broker.scram_login(broker, certificates) | {
        "ssl.certificate.pem": (certificates / "client.pem").read_text(),
        "ssl.key.pem": key,
    }
    client = airflow.client()
    with CommandLines(MARKER) as lines:
        client.wait_for_dag(CALLS.name, 90)
        client.pause(CALLS.name, False)
        told = ""
        for number, changes in enumerate(({"sasl.password": f"wrong-{MARKER}"}, {"debug": "misplaced"}, {})):
            connection = {"connection_id": "kafka_default", "conn_type": "kafka", "extra": json.dumps(right | changes)}
            if number:
                client.call("PATCH", "/connections/kafka_default", connection)
            else:
                client.call("POST", "/connections", connection)
            run_id, state = ended(client)
            assert state == ("failed" if changes else "success"), client.task_log(CALLS.name, run_id, "land_events")
            told += shown(client, run_id)
    assert all(f'"task_id": "{task}"' in told for task in TASKS) and "kafka_default" in told
    assert "uthentication failed" in told and "refused by the client: Invalid value" in told and "land_events: " in told
    # The connection itself, which its owner may see, has it; what is said of it has not.
    assert 'Invalid value \\"misplaced' not in told
    assert lines.seen > 1_000 and not lines.found
    for secret in (MARKER, key.splitlines()[3]):
        assert secret not in told, told[told.index(secret) - 300 :][:600]
        # The database, task logs, Spark's log and the pages among it.
        assert holding(tmp_path, secret) == []
