"""A real Prometheus beside a real Airflow: it scrapes the pages, takes Airflow's OpenTelemetry, answers the dashboard, and its alerts fire."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer

from include.local.broker import create_topics
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.helpers.alert_listener import listening
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.prometheus import prometheus
from tests.helpers.timeline import ROOT
from tests.unit.examples.test_dashboard import PANELS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SHOP = """
left:   {topic: watched.orders, payload: items}
right:  {topic: watched.payments, payload: amount}
output: {topic: watched.paid}
key: [order]
timestamp: at
tolerance: 1s
gap: 1s
grace: 1s
schedule: null
quality: {silence: null, max_orphan_ratio: 0.1, severities: {orphan_ratio: fail}}
alerts: {slack: slack_shop}
"""
TOPICS = ("watched.orders", "watched.payments", "watched.paid")


def scraping(airflow_port, token):
    airflow = {
        "authorization": {"credentials": token},
        "static_configs": [{"targets": [f"127.0.0.1:{airflow_port}"]}],
        "scrape_interval": "1s",
    }
    jobs = {"event-pairing": "/quality/shop/metrics", "event-pairing-parts": "/parts/metrics"}
    return {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "docs/examples/prometheus/alerts.yaml")],
        # What tasks send may come in any order.
        "storage": {"tsdb": {"out_of_order_time_window": "10m"}},
        "otlp": {"translation_strategy": "UnderscoreEscapingWithSuffixes"},
        "scrape_configs": [{"job_name": name, "metrics_path": path, **airflow} for name, path in jobs.items()],
    }


def send(broker, numbers, ago_ms):
    producer, at = Producer({"bootstrap.servers": broker.bootstrap}), time.time_ns() // 1_000_000 - ago_ms
    for number in numbers:
        body = {"order": f"o{number}-{at}", "at": at + number}
        producer.produce(TOPICS[0], json.dumps(body | {"items": 1}))
        # Half of them have no payment, one is no JSON.
        if number % 2:
            producer.produce(TOPICS[1], json.dumps(body | {"at": at + number + 30, "amount": 4.5}))
    producer.produce(TOPICS[1], b"{")
    assert producer.flush(20) == 0


def test_prometheus_sees_what_a_report_says_and_tells_of_a_failed_one(broker, tmp_path):
    project = copied(tmp_path / "project")
    (project / "include/pipelines/calls.yaml").unlink()
    (project / "include/pipelines/shop.yaml").write_text(SHOP)
    create_topics(broker.bootstrap, dict.fromkeys(TOPICS, 1), {"retention.ms": "-1"})
    port, otlp_port = free_port(), free_port()
    places = tmp_path / "airflow", port, broker.bootstrap, str(tmp_path / "tables")
    with listening() as (address, slack), LocalSpark(tmp_path / "spark", free_port()) as spark:
        airflow = AirflowOf(project, "", *places, spark=spark.url)
        airflow.more |= {
            "AIRFLOW_CONN_SLACK_SHOP": json.dumps({"conn_type": "slackwebhook", "host": address, "password": "T0/B0/x"}),
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp_port}/api/v1/otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        with airflow:
            client = airflow.client()
            client.wait_for_dag("shop", 120)
            client.pause("shop", False)
            began = time.time()
            with prometheus(tmp_path, scraping(port, client._token), otlp_port) as server:
                send(broker, range(40), 3_600_000)
                failed = client.trigger("shop")
                assert client.wait_for_run("shop", failed, 600) == "failed"

                # The numbers of the pages, and those through Airflow's own metrics.
                scraped = 'event_pairing_left_only{pipeline="shop"}'
                wait_for(lambda: server.values(scraped), "a scrape", 60, every_s=0.5)
                assert [*server.values(scraped).values()] == [20.0]
                wait_for(lambda: server.values(f"airflow_{scraped}"), "what Airflow sends", 60, every_s=0.5)
                assert [*server.values(f"airflow_{scraped}").values()] == [20.0]

                def firing():
                    return {
                        alert["labels"]["alertname"]
                        for alert in server.ask("alerts")["alerts"]
                        if alert["state"] == "firing"
                    }

                wait_for(lambda: "EventPairingFailed" in firing(), "the alert", 60, every_s=0.5)
                (message,) = slack
                assert message["text"].startswith(
                    "shop: report_quality failed: checks failed that quality.severities sets to fail"
                )

                # What waits: open events, and records that the next batch leaves unread.
                send(broker, range(10), 0)
                assert client.wait_for_run("shop", client.trigger("shop", {"max_records": 6}), 600) in ("success", "failed")
                wait_for(lambda: server.values("event_pairing_unread > 0"), "the backlog", 60, every_s=0.5)
                wait_for(lambda: server.values("event_pairing_oldest_open_seconds"), "the open events", 60, every_s=0.5)
                time.sleep(3)
                variables = {"$pipeline": ".+", "$__rate_interval": "1m"}
                for panel in PANELS:
                    for target in panel["targets"]:
                        expression = target["expr"]
                        for name, value in variables.items():
                            expression = expression.replace(name, value)
                        series = server.ask("query_range", query=expression, start=began, end=time.time(), step="1s")
                        assert series["result"], f"{panel['title']}: {expression} has no data"
                assert {rule["health"] for group in server.ask("rules")["groups"] for rule in group["rules"]} == {"ok"}
