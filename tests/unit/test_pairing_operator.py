"""What of a connection's extra Airflow hides in a task's log."""

from __future__ import annotations

import json

from tests.unit.test_secret_values import KEY, SETTINGS


def test_airflow_hides_whatever_is_a_secret_of_the_connection(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": SETTINGS}))
    from airflow.sdk._shared.secrets_masker import redact

    from plugins.pairing_operator import kafka_settings

    assert redact(f"with {KEY} in it") != "with *** in it"
    assert kafka_settings() == SETTINGS
    assert redact(f"with {KEY} in it") == "with *** in it"
    assert redact("somebody at b:1") == "somebody at b:1"
