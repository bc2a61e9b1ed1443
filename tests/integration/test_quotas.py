"""A broker that throttles its clients makes the jobs slow, and nothing else."""

from __future__ import annotations

import json
import subprocess

import pytest

from include.local.broker import LocalBroker
from include.local.machine import JARS, java
from include.local.process import free_port
from spark_jobs.kafka.settings import VARIABLE

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of these tests' own, with quotas of theirs."""
    with LocalBroker(tmp_path_factory.mktemp("broker"), free_port()) as running:
        yield running


@pytest.fixture
def throttled(broker, monkeypatch):
    """throttled(bytes_a_second): every client of the jobs reads and writes no faster than that; the test's own clients do not know of it."""

    def limit(change, entity="throttled"):
        tool = [
            java(),
            "-cp",
            f"{JARS}/broker/*",
            "kafka.admin.ConfigCommand",
            "--bootstrap-server",
            broker.bootstrap,
            "--alter",
        ]
        subprocess.run(
            [*tool, *change, "--entity-type", "clients", "--entity-name", entity], check=True, capture_output=True
        )

    def throttle(bytes_a_second):
        limit(["--add-config", f"producer_byte_rate={bytes_a_second},consumer_byte_rate={bytes_a_second}"])
        monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap, "client.id": "throttled"}))

    yield throttle
    limit(["--delete-config", "producer_byte_rate,consumer_byte_rate"])
