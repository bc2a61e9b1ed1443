"""The numbers of the newest report through Airflow's own metrics, where its settings `[metrics]` send these to StatsD, Datadog or OpenTelemetry.

They are those of `metrics.prom`, by the same names, behind Airflow's prefix. Each is sent as a gauge, once after each report, with its labels
as tags. Plain StatsD has no tags: there the labels' values are parts of the name.
"""

from __future__ import annotations

import logging

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from include.config.health import METRICS_FILE
from include.config.store import pages_store, read_text

# In the order in which Airflow looks at them: the first one counts.
_DATADOG, _STATSD, _OTEL = "statsd_datadog_enabled", "statsd_on", "otel_on"

_log = logging.getLogger(__name__)


def send_metrics(pipeline: str) -> None:
    """Called in the report's task when its job has ended, with success or not. Never raises: the report is made."""
    if not any(map(_is_set, (_DATADOG, _STATSD, _OTEL))):
        return
    # Imported here, because most installations send nothing.
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = read_text(pages_store(pipeline), METRICS_FILE) or ""
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        for sample in samples:
            # Some databases keep the type of the first number: 0 would keep 0.5 out.
            value = float(sample.value)
            if _has_tags():
                stats.gauge(sample.name, value, tags=dict(sample.labels))
            else:
                stats.gauge(_with_values(sample.name, sample.labels), value)
    except Exception as error:
        _log.warning("the report's numbers were not sent to Airflow's metrics: %s", str(error).partition("\n")[0])


def _with_values(name: str, labels: dict[str, str]) -> str:
    """The name with the values of the labels behind it.

    >>> _with_values("event_pairing_in_window", {"pipeline": "calls", "window": "24h", "of": "a.b"})
    'event_pairing_in_window.calls.24h.a_b'
    """
    # A dot begins a level of the name.
    values = [stats.normalize_name_for_stats(value.replace(".", "_"), log_warning=False) for value in labels.values()]
    return ".".join([name, *values])


def _has_tags() -> bool:
    return _is_set(_DATADOG) or not _is_set(_STATSD) or _is_set("statsd_influxdb_enabled")


def _is_set(name: str) -> bool:
    return bool(conf.getboolean("metrics", name, fallback=False))
