"""The channels that a pipeline file names get its alerts, each once, by Airflow's own notifiers."""

from __future__ import annotations

import json
import logging
import sys
from email import message_from_bytes
from email.policy import default
from types import SimpleNamespace

import pytest
from aiosmtpd.controller import Controller

from include.airflow import alerts, notifiers
from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline
from include.local.process import free_port
from tests.helpers.alert_listener import listening

# What a record may hold, and what a chat or a template would act on.
REASON = "topic <!channel> {{ 7 * 7 }} is not on the broker"
FAILED = {"dag": "calls", "run": "r1", "task": "land_events", "reason": REASON}
TEXT = f"calls: land_events failed: {REASON}"


@pytest.fixture
def pipelines(tmp_path, monkeypatch):
    """pipelines(calls={…}, …) makes a pipeline file for each name, with these alerts."""

    def make(**wanted):
        for name, to in wanted.items():
            text = (PIPELINES / "calls.yaml").read_text()
            (tmp_path / f"{name}.yaml").write_text(f"{text}\nalerts: {json.dumps(to)}\n")
        monkeypatch.setattr(notifiers, "PIPELINES", tmp_path)

    monkeypatch.delenv(alerts.URL_VARIABLE, raising=False)
    return make


def connect(monkeypatch, name, **connection):
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


@pytest.fixture
def slack(monkeypatch):
    with listening() as (address, heard):
        connect(monkeypatch, "slack_calls", conn_type="slackwebhook", host=address, password="T0/B0/s3cret")
        yield heard


@pytest.fixture
def pagerduty(monkeypatch):
    from pagerduty import EventsApiV2Client

    with listening(b'{"status": "success", "dedup_key": "k"}') as (address, heard):
        # Its own setter takes https:// only.
        monkeypatch.setattr(EventsApiV2Client, "url", address)
        monkeypatch.setattr(EventsApiV2Client, "default_base_url", address)
        connect(monkeypatch, "pagerduty_calls", conn_type="pagerduty_events", password="r0uting")
        yield heard


class Inbox:
    def __init__(self):
        self.received = []

    async def handle_DATA(self, server, session, envelope):
        self.received.append((envelope.rcpt_tos, message_from_bytes(envelope.content, policy=default)))
        return "250 OK"


@pytest.fixture
def mail(monkeypatch):
    server = Controller(Inbox(), hostname="127.0.0.1", port=free_port())
    server.start()
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.com"}
    connect(monkeypatch, "smtp_default", conn_type="smtp", host="127.0.0.1", port=server.port, extra=extra)
    yield server.handler.received
    server.stop()


def test_each_channel_gets_an_alert_once(pipelines, slack, pagerduty, mail):
    to = {"slack": "slack_calls", "pagerduty": "pagerduty_calls", "email": ["a@example.com", "b@example.com"]}
    pipelines(calls=to, other={"slack": "slack_of_others"})
    alerts.alert(TEXT, **FAILED, batch=None)
    (message,), (incident,), ((addresses, letter),) = slack, pagerduty, mail
    assert message["text"] == f"{TEXT}\nrun: r1\ntask: land_events".replace("<", "&lt;").replace(">", "&gt;")
    assert (incident["event_action"], incident["routing_key"]) == ("trigger", "r0uting")
    assert incident["payload"] == {
        "summary": TEXT,
        "severity": "error",
        "source": "calls",
        "component": "land_events",
        "custom_details": FAILED,
    }
    assert addresses == ["a@example.com", "b@example.com"] and letter["From"] == "airflow@example.com"
    assert letter["Subject"] == TEXT and "&lt;!channel&gt; {{ 7 * 7 }}" in letter.get_body(("html",)).get_content()


def test_what_is_over_starts_no_incident(pipelines, slack, pagerduty):
    pipelines(calls={"slack": "slack_calls", "pagerduty": "pagerduty_calls"})
    alerts.alert("calls: over: few pairs", is_over=True, dag="calls_replay")
    assert [message["text"] for message in slack] == ["calls: over: few pairs"] and pagerduty == []


def test_all_pipelines_are_told_of_a_part_that_is_down_each_channel_once(pipelines, slack):
    pipelines(calls={"slack": "slack_calls"}, other={"slack": "slack_calls"}, silent={})
    alerts.alert("scheduler is down", part="scheduler")
    assert [message["text"] for message in slack] == ["scheduler is down\npart: scheduler"]


def test_a_channel_that_takes_nothing_is_a_line_and_the_others_get_the_alert(pipelines, slack, monkeypatch, caplog):
    connect(monkeypatch, "smtp_default", conn_type="smtp", host="127.0.0.1", port=1, extra={"from_email": "a@example.com"})
    monkeypatch.delitem(sys.modules, "airflow.providers.pagerduty.notifications.pagerduty", raising=False)
    monkeypatch.setitem(sys.modules, "airflow.providers.pagerduty.notifications", None)
    pipelines(calls={"slack": "slack_calls", "pagerduty": "no_such", "email": "a@example.com"})
    with caplog.at_level(logging.WARNING, "include.airflow.notifiers"):
        alerts.alert("text", dag="calls")
    assert len(slack) == 1
    assert [record.message for record in caplog.records if record.name == "include.airflow.notifiers"] == [
        "alerts.pagerduty: PagerDuty needs a provider of Airflow that is not installed: pip install apache-airflow-providers-pagerduty",
        "e-mail did not take the alert (ConnectionRefusedError): see alerts.email",
    ]


def test_the_address_of_a_webhook_is_in_no_log(pipelines, monkeypatch, caplog):
    def refuse(**_):
        raise OSError("POST https://hooks.example.com/T0/B0/s3cret was refused")

    monkeypatch.setattr(notifiers, "import_module", lambda name: SimpleNamespace(SlackWebhookNotifier=refuse))
    pipelines(calls={"slack": "slack_calls"})
    alerts.alert("text", dag="calls")
    assert "Slack did not take the alert (OSError): see alerts.slack" in caplog.text and "s3cret" not in caplog.text


def test_a_missing_provider_refuses_the_file(pipelines, tmp_path, monkeypatch):
    pipelines(calls={"slack": "slack_calls"})
    file = tmp_path / "calls.yaml"
    notifiers.check_providers(load_pipeline(file), file)
    monkeypatch.setattr(notifiers, "find_spec", lambda name: None)
    with pytest.raises(PipelineError) as refused:
        notifiers.check_providers(load_pipeline(file), file)
    remedy = (
        "alerts.slack: Slack needs a provider of Airflow that is not installed: pip install apache-airflow-providers-slack"
    )
    assert str(refused.value) == f"{file}: {remedy}"


def test_nothing_is_imported_for_a_file_that_names_nobody(pipelines, monkeypatch):
    pipelines(calls={})
    monkeypatch.setattr(notifiers, "import_module", lambda name: pytest.fail(name))
    alerts.alert("text", dag="calls")
    alerts.alert("text", dag="no_such_pipeline")
