"""Who is told of failed tasks and late runs, and that nothing fails because nobody listens."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from include.airflow import alerts
from tests.helpers.alert_listener import listening

TASK = SimpleNamespace(dag_id="calls", task_id="land_events", run_id="r1")


@pytest.fixture
def heard(monkeypatch):
    """What was posted to the address of alerts."""
    with listening() as (address, bodies):
        monkeypatch.setenv(alerts.URL_VARIABLE, address)
        yield bodies


def test_a_failed_task_is_told_of_with_its_runbook(heard, caplog):
    line = "no answer from Kafka at b:9 within 20 s (x): is the broker up"
    with caplog.at_level(logging.ERROR):
        alerts.task_failed({"ti": TASK, "task": SimpleNamespace(batch_id=7), "exception": RuntimeError(line)})
    page = "docs/runbooks/kafka-not-reachable.md"
    text = f"calls: land_events failed: {line}"
    assert heard == [
        {"text": text, "dag": "calls", "run": "r1", "task": "land_events", "reason": line, "batch": 7, "runbook": page}
    ]
    assert text in caplog.text


def test_a_task_that_was_ended_from_outside_is_told_of_too(heard):
    alerts.task_failed({"ti": TASK})
    assert heard[0]["reason"] == "the task was ended from outside" and "batch" not in heard[0]


def test_a_late_run_is_told_of(heard):
    asyncio.run(alerts.run_is_late("0:30:00", context={"dag_run": {"dag_id": "calls", "dag_run_id": "r1"}}))
    assert heard == [{"text": "calls: run r1 has not ended 0:30:00 after it was queued", "dag": "calls", "run": "r1"}]


def test_a_run_that_has_failed_before_its_deadline_is_not_late(heard):
    for state, alerted in (("failed", 0), ("success", 0), ("running", 1), ("queued", 2)):
        run = {"dag_id": "calls", "dag_run_id": "r1", "state": state}
        asyncio.run(alerts.run_is_late("0:30:00", context={"dag_run": run}))
        assert len(heard) == alerted, state


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1/s3cret", "no address s3cret"])
def test_nothing_fails_because_nobody_listens(url, monkeypatch, caplog):
    if url:
        monkeypatch.setenv(alerts.URL_VARIABLE, url)
    alerts.alert("text")
    assert "text" in caplog.text and ("does not take alerts" in caplog.text) == bool(url)
    assert "s3cret" not in caplog.text
