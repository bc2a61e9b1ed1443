"""The channels that a pipeline's `alerts` name: Slack, PagerDuty and e-mail, by the notifiers of Airflow's providers.

A provider is imported only where a file names its channel. Texts are never templates: they quote what came over Kafka.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from include.config.pipeline import PIPELINES, Pipeline, PipelineError, pipeline_of
from include.config.pipeline_file import load_pipeline

# PagerDuty's own limit; a subject has to fit into a line.
_SUMMARY, _SUBJECT = 1024, 150
# What people need beside the text.
_SHOWN = ("run", "task", "batch", "part", "runbook")

_log = logging.getLogger(__name__)


class _Channel(NamedTuple):
    """`name`: for people. `notifier`: module and class. `settings`: its arguments, from where to send, the alert's text, and its parts."""

    name: str
    provider: str
    notifier: str
    settings: Callable[[str, str, dict[str, Any]], dict[str, Any]]


def _slack(connection: str, text: str, parts: dict[str, Any]) -> dict[str, Any]:
    # Slack reads <!channel> and links in angle brackets.
    return {"slack_webhook_conn_id": connection, "text": html.escape(_lines(text, parts), quote=False)}


def _pagerduty(connection: str, text: str, parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "pagerduty_events_conn_id": connection,
        "summary": text[:_SUMMARY],
        "severity": parts.get("severity", "error"),
        "source": parts.get("dag", "event-pairing"),
        "component": parts.get("task") or parts.get("part"),
        "custom_details": parts,
    }


def _email(addresses: str, text: str, parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "to": addresses.split(","),
        "subject": text[:_SUBJECT],
        "html_content": f"<pre>{html.escape(_lines(text, parts))}</pre>",
    }


_CHANNELS = {
    "slack": _Channel("Slack", "slack", "slack_webhook.SlackWebhookNotifier", _slack),
    "pagerduty": _Channel("PagerDuty", "pagerduty", "pagerduty.PagerdutyNotifier", _pagerduty),
    "email": _Channel("e-mail", "smtp", "smtp.SmtpNotifier", _email),
}


def check_providers(pipeline: Pipeline, file: object) -> None:
    """Called when a DAG is made. Raises PipelineError if the provider of a channel is not installed: an alert would find that out too late."""
    for setting, _ in pipeline.alerts.channels:
        if find_spec(f"airflow.providers.{_CHANNELS[setting].provider}") is None:
            raise PipelineError(f"{file}: {_not_installed(setting)}")


def notify(text: str, parts: dict[str, Any], is_over: bool = False) -> None:
    """Sends an alert to the channels of its pipeline, or, without a `dag` among its parts, to those of all pipelines, each once.

    `is_over`: what it says is that something has ended, which starts no incident. Never raises: a channel that takes nothing is a line in the log.
    """
    for setting, to in _channels(parts.get("dag")):
        channel = _CHANNELS[setting]
        if is_over and setting == "pagerduty":
            continue
        try:
            module, _, name = channel.notifier.rpartition(".")
            notifier = getattr(import_module(f"airflow.providers.{channel.provider}.notifications.{module}"), name)
            # Not by its call, which renders templates.
            notifier(**channel.settings(to, text, parts)).notify({})
        except ModuleNotFoundError:
            _log.warning("%s", _not_installed(setting))
        except Exception as error:
            # Only the type: the text may hold the address of a webhook, which is a secret.
            _log.warning("%s did not take the alert (%s): see alerts.%s", channel.name, type(error).__name__, setting)


def _channels(dag: str | None) -> list[tuple[str, str]]:
    files = sorted(PIPELINES.glob("*.yaml")) if dag is None else [PIPELINES / f"{pipeline_of(dag)}.yaml"]
    found: dict[tuple[str, str], None] = {}
    for file in files:
        try:
            found |= dict.fromkeys(load_pipeline(file).alerts.channels)
        except PipelineError:
            # Its DAG says so.
            continue
    return [*found]


def _not_installed(setting: str) -> str:
    channel = _CHANNELS[setting]
    package = f"apache-airflow-providers-{channel.provider}"
    return f"alerts.{setting}: {channel.name} needs a provider of Airflow that is not installed: pip install {package}"


def _lines(text: str, parts: dict[str, Any]) -> str:
    return "\n".join([text, *(f"{name}: {parts[name]}" for name in _SHOWN if name in parts)])
