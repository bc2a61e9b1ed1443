"""The local Airflow listens on loopback only and is not taken for one with other settings."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from include.local.airflow import LocalAirflow
from include.local.machine import SetupError
from include.local.process import running_program, start_program, stop_programs

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_airflow_is_told_to_listen_on_loopback_only(tmp_path: Path) -> None:
    settings = LocalAirflow(tmp_path, 8099, "127.0.0.1:9099", warehouse="/w").settings()
    assert settings["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8099/execution/"
    assert json.loads(settings["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"] == {"bootstrap.servers": "127.0.0.1:9099"}
    assert settings["PAIRING_WAREHOUSE"] == "/w"


def test_airflow_with_other_settings_is_refused(tmp_path: Path) -> None:
    running = LocalAirflow(tmp_path, 8099, "127.0.0.1:9099", warehouse="/w")
    start_program(tmp_path, "api-server", SLEEP, {**os.environ, **running.settings()})
    try:
        while running_program(tmp_path, "api-server") is None:
            time.sleep(0.05)
        running.check()
        with pytest.raises(SetupError, match="another AIRFLOW_CONN_KAFKA_DEFAULT: make stop"):
            LocalAirflow(tmp_path, 8099, "127.0.0.1:9098", warehouse="/w").check()
    finally:
        stop_programs(tmp_path)
