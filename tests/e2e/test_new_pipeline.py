"""A second pipeline beside the shipped one, by a file that comes while Airflow is running: orders and payments."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from include.local.broker import create_topics
from include.local.machine import ROOT
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.helpers.alert_listener import listening
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.reading import consume

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ORDERS = """
left:   {topic: shop.orders, payload: items}
right:  {topic: shop.payments, payload: amount}
output: {topic: shop.paid-orders}
key: [shop, order]
timestamp: at
tolerance: 10m
gap: 10m
grace: 1m
schedule: null
run_deadline: 1s
"""
TOPICS = ("shop.orders", "shop.payments", "shop.paid-orders")


@pytest.fixture
def project(tmp_path):
    return copied(tmp_path / "project")


@pytest.fixture
def alerts():
    """The address at which alerts are heard, and their bodies."""
    with listening() as both:
        yield both


def test_a_file_is_all_that_another_pipeline_needs(project, alerts, broker, tmp_path):
    address, heard = alerts
    warehouse = tmp_path / "warehouse"
    with (
        LocalSpark(tmp_path / "spark", free_port()) as spark,
        AirflowOf(
            project, address, tmp_path / "airflow", free_port(), broker.bootstrap, str(warehouse), spark=spark.url
        ) as airflow,
    ):
        client = airflow.client()
        client.wait_for_dag("calls", 90)
        # 1: describe. 2: connect, which here is done, but for the topics. 3: unpause.
        file = project / "include/pipelines/orders.yaml"
        file.write_text(ORDERS)
        check = [sys.executable, "-m", "include.check_pipelines", str(file)]
        assert subprocess.run(check, cwd=ROOT, check=False).returncode == 0
        create_topics(broker.bootstrap, dict.fromkeys(TOPICS, 2), {"retention.ms": "-1"})
        client.wait_for_dag("orders", 120)
        client.wait_for_dag("orders_replay", 10)
        client.pause("orders", False)

        ago = time.time_ns() // 1_000_000 - 3_600_000
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(20):
            body = {"shop": "north", "order": f"o{number}", "at": ago + number}
            producer.produce(TOPICS[0], json.dumps(body | {"items": ["tea", number]}))
            if number:
                producer.produce(TOPICS[1], json.dumps(body | {"at": ago + 60_000, "amount": 4.50}))
        assert producer.flush(20) == 0
        run_id = client.trigger("orders")
        assert client.wait_for_run("orders", run_id, 300) == "success"
        paid = [message["value"] for message in consume(broker.bootstrap, TOPICS[2])]
        assert sorted(paid, key=lambda order: order["ts"]) == [
            {"shop": "north", "order": f"o{n}", "ts": ago + n, "items": ["tea", n], "amount": 4.5 if n else None}
            for n in range(20)
        ]
        assert client.call("GET", "/pools/orders")["slots"] == 1
        assert {path.name for path in (warehouse / "orders").iterdir()} >= {"raw_items", "raw_amount", "compound_events"}
        assert not (warehouse / "calls").exists()

        # The run took longer than a second.
        wait_for(lambda: heard, "Airflow to tell of the late run", 120)
        assert heard[0]["text"] == f"orders: run {run_id} has not ended 0:00:01 after it was queued"

        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics([TOPICS[1]])[TOPICS[1]].result(timeout=20)
        failed = client.trigger("orders")
        assert client.wait_for_run("orders", failed, 300) == "failed"
        (told,) = [alert for alert in heard if alert.get("task")]
        assert (told["dag"], told["run"], told["task"]) == ("orders", failed, "land_events")
        assert told["runbook"] == "docs/runbooks/topic-missing.md"
        assert told["reason"].startswith(f"topic {TOPICS[1]} is not on the broker at {broker.bootstrap}")
