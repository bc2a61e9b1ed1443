"""Every alert is sent once, and none that is not true: with all parts of Airflow alive, and with one of them killed in between. What a report
failed for also reaches Slack, and a Prometheus that scrapes behind the login.
"""

from __future__ import annotations

import html
import json
import threading
import time
from argparse import Namespace
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest
import yaml
from confluent_kafka import Producer

from include.airflow.part_alerts import DOWN_VARIABLE
from include.config.store import pages_store
from include.local.broker import LocalBroker, create_topics
from include.local.process import free_port, running_program
from include.local.spark import LocalSpark
from include.local.watch import watch
from spark_jobs import acknowledge
from tests.helpers.alert_listener import listening
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.prometheus import prometheus
from tests.helpers.timeline import ROOT
from tests.unit.test_doc_examples import code_blocks

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DEADLINE_S = 45
KILLED = (None, "api-server", "scheduler", "triggerer")
SHOP = """
left:   {{topic: {0}.orders, payload: items}}
right:  {{topic: {0}.payments, payload: amount}}
output: {{topic: {0}.paid}}
key: [order]
timestamp: at
tolerance: 1s
gap: 1s
grace: 1s
schedule: null
run_deadline: {1}s
quality: {2}
"""
# A problem warns in the one pipeline, and fails the runs of the other one.
LASTING, STRICT = "shop_lasting", "shop_strict"
BOUND = "{silence: null, max_orphan_ratio: 0.5}"
WEBHOOK = "T0/B0/s3cret"


def name_of(killed):
    return f"shop_{(killed or 'none').replace('-', '_')}"


@pytest.fixture(scope="module")
def shops(tmp_path_factory):
    """A platform whose programs are watched, with a pipeline for each part that a test kills."""
    folder = tmp_path_factory.mktemp("alerts")
    project = copied(folder / "project")
    (project / "include/pipelines/calls.yaml").unlink()
    qualities = {name_of(killed): "{silence: 1m}" for killed in KILLED}
    qualities |= {LASTING: BOUND, STRICT: BOUND.replace("}", ", severities: {orphan_ratio: fail}}")}
    names = [*qualities]
    for name, quality in qualities.items():
        (project / f"include/pipelines/{name}.yaml").write_text(SHOP.format(name, DEADLINE_S, quality))
    with (project / f"include/pipelines/{STRICT}.yaml").open("a") as file:
        file.write("alerts: {slack: slack_shop}\n")
    broker, spark = LocalBroker(folder / "broker", free_port()), LocalSpark(folder / "spark", free_port())
    places = folder / "airflow", free_port(), broker.bootstrap, str(folder / "tables")
    airflow = AirflowOf(project, "", *places, spark=spark.url)
    over = threading.Event()
    with listening() as (address, heard), listening() as (slack, told):
        connection = {"conn_type": "slackwebhook", "host": slack, "password": WEBHOOK}
        airflow.more |= {"PAIRING_ALERT_URL": address, DOWN_VARIABLE: "5", "AIRFLOW_CONN_SLACK_SHOP": json.dumps(connection)}
        with broker, spark, airflow:
            topics = [f"{name}.{topic}" for name in names for topic in ("orders", "payments", "paid")]
            create_topics(broker.bootstrap, dict.fromkeys(topics, 1))
            client = airflow.client()
            for name in names:
                client.wait_for_dag(name, 120)
                client.wait_for_dag(f"{name}_replay", 30)
            watching = threading.Thread(target=watch, args=((broker, spark, airflow), over.is_set), daemon=True)
            watching.start()
            places = {"tables": str(folder / "tables"), "slack": told}
            yield SimpleNamespace(broker=broker, spark=spark, airflow=airflow, client=client, heard=heard, **places)
            over.set()
            watching.join(60)


def send_orders_alone(broker, name):
    """Two minutes of orders, and no payment."""
    producer, now = Producer({"bootstrap.servers": broker.bootstrap}), time.time_ns() // 1_000_000
    for ago in (120_000, 0):
        body = {"order": f"o{ago}", "at": now - ago, "items": 1}
        producer.produce(f"{name}.orders", json.dumps(body), timestamp=now - ago)
    assert producer.flush(20) == 0


@pytest.mark.parametrize("killed", KILLED)
def test_each_is_sent_once(shops, killed):
    client, name, airflow = shops.client, name_of(killed), shops.airflow
    send_orders_alone(shops.broker, name)

    def heard():
        return [alert for alert in shops.heard if alert.get("dag", "").startswith(name)]

    # The one waits, because its DAG is paused, the other one fails at once.
    waiting, failing = client.trigger(name), client.trigger(f"{name}_replay")
    begin = time.monotonic()
    assert client.wait_for_run(f"{name}_replay", failing, 120) == "failed"
    assert time.monotonic() - begin < DEADLINE_S, "the run has to fail before its deadline"
    if killed:
        process = running_program(airflow.folder, killed)
        process.kill()
        process.wait(10)
    wait_for(lambda: len(heard()) >= 2, "the alert of the run that is late", DEADLINE_S + 90)
    wait_for(airflow.is_running, "the part to be started again", 60)
    client.pause(name, False)
    assert client.wait_for_run(name, waiting, 300) == "success"
    # The deadline of the run that failed is over for long.
    wait_for(lambda: time.monotonic() - begin > DEADLINE_S + 20, "the other deadline", DEADLINE_S + 30)
    failed, late, warning = heard()
    assert (failed["run"], failed["task"]) == (failing, "replay_interval")
    assert "which interval?" in failed["reason"]
    assert late == {
        "text": f"{name}: run {waiting} has not ended 0:00:{DEADLINE_S} after it was queued",
        "dag": name,
        "run": waiting,
    }
    assert (warning["run"], warning["task"], warning["severity"]) == (waiting, "report_quality", "warning")
    assert warning["reason"].startswith(f"{name}.payments has not had one accepted record, while {name}.orders sends")


def send_shopping(broker, name, orders, *topics, ago_ms=30_000):
    """One event of each order, so old, on each of the topics."""
    producer, at = Producer({"bootstrap.servers": broker.bootstrap}), time.time_ns() // 1_000_000 - ago_ms
    for topic, payload in {"orders": "items", "payments": "amount"}.items():
        for order in orders if topic in topics else ():
            producer.produce(f"{name}.{topic}", json.dumps({"order": f"o{order}", "at": at, payload: 1}), timestamp=at)
    assert producer.flush(20) == 0


def test_a_problem_that_lasts_is_told_of_once_and_once_when_it_is_over(shops):
    client = shops.client
    client.pause(LASTING, False)

    def run(dag, state):
        run_id = client.trigger(dag)
        assert client.wait_for_run(dag, run_id, 300) == state
        return next(each["note"] or "" for each in client.runs(dag) if each["dag_run_id"] == run_id)

    def heard():
        return [(alert["severity"], alert["reason"]) for alert in shops.heard if alert.get("dag") == LASTING]

    send_shopping(shops.broker, LASTING, range(12), "orders")
    text = "12 of 12 compounds of batch 1 are one-sided: 100.0% where quality.max_orphan_ratio allows 50.0%"
    # It is in the note of every run, and in one alert.
    for _ in range(3):
        assert f"warning since batch 1: {text}" in run(LASTING, "success")
        assert heard() == [("warning", text)]
    (alert,) = (alert for alert in shops.heard if alert.get("dag") == LASTING)
    assert (alert["task"], alert["batch"], alert["runbook"]) == ("report_quality", 1, "docs/runbooks/orphans.md")
    # A run that fails says how the pipeline is, too.
    known = "last known state of the pipeline: warning after batch 3 (orphan_ratio: warning since batch 1)"
    assert known in run(f"{LASTING}_replay", "failed")

    # Whoever takes it over is seen at once.
    samples = 'problem_since_seconds{pipeline="%s",problem="orphan_ratio",severity="warning",acknowledged="%s"}'
    for is_taken in ("false", "true"):
        assert samples % (LASTING, is_taken) in page(shops, LASTING, "metrics")
        assert ("ann took it over" in page(shops, LASTING, "index.html")) is (is_taken == "true")
        if is_taken == "false":
            given = Namespace(list=False, problem="orphan_ratio", by="ann", note="the payments are back")
            acknowledge.main(pages_store(LASTING, shops.tables), given)
    assert "warning since" not in run(LASTING, "success")

    # After the clock of the run before, or they would be late; and the next run closes them.
    send_shopping(shops.broker, LASTING, range(100, 112), "orders", "payments", ago_ms=0)
    time.sleep(5)
    for _ in range(2):
        assert "warning since" not in run(LASTING, "success")
        assert heard() == [("warning", text), ("warning", f"over: {text}")]


def page(shops, name, file):
    request = Request(
        f"{shops.airflow.url}/quality/{name}/{file}", headers={"Authorization": f"Bearer {shops.client._token}"}
    )
    with urlopen(request, timeout=20) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def failed_run(shops):
    """A run of STRICT whose report fails."""
    client = shops.client
    send_shopping(shops.broker, STRICT, range(12), "orders")
    client.pause(STRICT, False)
    run_id = client.trigger(STRICT)
    assert client.wait_for_run(STRICT, run_id, 300) == "failed"
    return run_id


def test_a_run_whose_report_fails_says_why_and_how_the_pipeline_is(shops, failed_run):
    (note,) = (each["note"] for each in shops.client.runs(STRICT) if each["dag_run_id"] == failed_run)
    assert (
        "12 records landed" in note and "report_quality failed: checks failed that quality.severities sets to fail" in note
    )
    assert note.endswith("last known state of the pipeline: failed after batch 1 (orphan_ratio: failed since batch 1)")


def test_slack_is_told_of_a_run_that_fails_once_and_the_log_keeps_the_webhook_to_itself(shops, failed_run):
    # On a slow machine another one says that the run is late.
    (alert,) = (alert for alert in shops.heard if alert.get("run") == failed_run and "task" in alert)
    begin = f"{STRICT}: report_quality failed: "
    messages = [message["text"] for message in shops.slack if message["text"].startswith(begin)]
    shown = [f"{name}: {alert[name]}" for name in ("run", "task", "batch", "runbook") if name in alert]
    assert messages == ["\n".join([html.escape(alert["text"], quote=False), *shown])]
    log = "\n".join(shops.client.task_log(STRICT, failed_run, "report_quality"))
    assert begin in log and WEBHOOK not in log


def test_a_prometheus_scrapes_behind_the_login_by_the_settings_of_the_page(shops, failed_run, tmp_path):
    (text,) = code_blocks((ROOT / "docs/quality.md").read_text(), "yaml")
    token = tmp_path / "token"
    token.write_text(shops.client._token)
    for shown, mine in {
        "/quality/calls/": f"/quality/{STRICT}/",
        "airflow:8080": shops.airflow.url.removeprefix("http://"),
        "/etc/prometheus/airflow-token": str(token),
    }.items():
        assert shown in text
        text = text.replace(shown, mine)
    (report,) = yaml.safe_load(text)["scrape_configs"]
    parts = report | {"job_name": "parts", "metrics_path": "/parts/metrics"}
    stranger = {name: setting for name, setting in report.items() if name != "authorization"} | {"job_name": "stranger"}
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "docs/examples/prometheus/alerts.yaml")],
        "scrape_configs": [report, parts, stranger],
    }
    with prometheus(tmp_path, config) as server:

        def up():
            return {json.loads(labels)["job"]: value for labels, value in server.values("up").items()}

        wait_for(lambda: up() == {"event-pairing": 1, "parts": 1, "stranger": 0}, "the first scrapes", 60, every_s=0.5)
        assert [*server.values("event_pairing_state").values()] == [2]
        # Its runs begin by hand, so none is ever overdue.
        still = server.values('{__name__=~"event_pairing_(overdue_seconds|paused)"}')
        assert {json.loads(labels)["__name__"]: value for labels, value in still.items()} == {
            "event_pairing_overdue_seconds": 0,
            "event_pairing_paused": 0,
        }
        (problem,) = map(json.loads, server.values("event_pairing_problem_since_seconds"))
        assert (problem["pipeline"], problem["problem"], problem["severity"]) == (STRICT, "orphan_ratio", "failed")
        assert len(server.values("event_pairing_part_up == 1")) == 7
        firing = 'ALERTS{alertname="EventPairingFailed", alertstate="firing"}'
        wait_for(lambda: server.values(firing), "the alert of the rules", 60, every_s=0.5)


def test_a_part_that_is_down_is_told_of_once_and_once_when_it_is_back(shops):
    airflow, client = shops.airflow, shops.client

    def heard(name):
        return [alert["text"] for alert in shops.heard if alert.get("part") == name]

    def shown():
        return {part["name"]: part["ok"] for part in client._send("GET", "/parts/", None)}

    wait_for(lambda: all(shown().values()) and len(shown()) == 7, "all parts to be up", 60, every_s=1)
    # Both without a pid file, so that the watch leaves them alone.
    assert shops.spark.stop()
    processor = running_program(airflow.folder, "dag-processor")
    (airflow.folder / "dag-processor.pid").unlink()
    processor.kill()
    for name in ("Spark server", "DAG processor"):
        wait_for(lambda name=name: heard(name), f"the alert about the {name}", 120)
        assert heard(name)[0].startswith(f"{name} is down: ")
    assert {name for name, ok in shown().items() if not ok} == {"Spark server", "DAG processor"}
    assert shops.spark.start() and airflow.start()
    for name in ("Spark server", "DAG processor"):
        wait_for(lambda name=name: len(heard(name)) > 1, f"the {name} to be told back", 60)
        assert [text.partition(":")[0] for text in heard(name)] == [f"{name} is down", f"{name} is up again"]
    assert client.call("GET", "/variables")["total_entries"] == 0
