"""The numbers of a report reach StatsD and OpenTelemetry as Airflow is set to send its own metrics."""

from __future__ import annotations

import atexit
import socket

import pytest
from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from opentelemetry import metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from include.airflow import report_metrics
from include.config.health import METRICS_FILE
from include.config.store import WAREHOUSE_VARIABLE, pages_store, write_text
from spark_jobs.quality import metrics_text
from spark_jobs.quality.trend import Trend
from tests.helpers.batch_history import history
from tests.helpers.web_server import Quiet, serving


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """The exposition of a report, which is in the file that tasks read."""
    monkeypatch.setenv(WAREHOUSE_VARIABLE, str(tmp_path))
    trend = Trend("calls")
    trend.add(history(3))
    text = metrics_text.exposition(trend)
    write_text(pages_store("calls"), METRICS_FILE, text)
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


@pytest.fixture
def airflow_sends(monkeypatch):
    """airflow_sends(statsd_on="True", …) sets Airflow's metrics as a task's process does when it starts."""

    def send(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", value)
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)

    yield send
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


@pytest.fixture
def datagrams():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(2)
        yield server


def received(server, expected):
    found = {}
    while len(found) < expected:
        name, _, rest = server.recv(65_536).decode().rpartition(":")
        found[name] = float(rest.removesuffix("|g"))
    return found


def test_plain_statsd_has_the_labels_in_the_names(reported, airflow_sends, datagrams):
    airflow_sends(statsd_on="True", statsd_host="127.0.0.1", statsd_port=str(datagrams.getsockname()[1]))
    report_metrics.send_metrics("calls")
    found = received(datagrams, len(reported))
    assert found["airflow.event_pairing_pair.calls"] == float(reported['event_pairing_pair{pipeline="calls"}'])
    assert found["airflow.event_pairing_batch.calls.live"] == 3
    assert sorted(found.values()) == sorted(map(float, reported.values()))


def test_statsd_of_influxdb_has_them_as_tags(reported, airflow_sends, datagrams):
    port = str(datagrams.getsockname()[1])
    airflow_sends(statsd_on="True", statsd_influxdb_enabled="True", statsd_host="127.0.0.1", statsd_port=port)
    report_metrics.send_metrics("calls")
    found = received(datagrams, len(reported))
    assert found["airflow.event_pairing_batch,pipeline=calls,kind=live"] == 3
    assert sorted(found.values()) == sorted(map(float, reported.values()))


@pytest.fixture
def collector():
    """A receiver of OTLP over HTTP: its address, and the data points it was sent."""
    points = {}

    class Receiver(Quiet):
        def do_POST(self):
            request = ExportMetricsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
                for point in metric.gauge.data_points:
                    labels = ",".join(f'{each.key}="{each.value.string_value}"' for each in point.attributes)
                    points[f"{metric.name}{{{labels}}}"] = point.as_double
            self.send_response(200)
            self.end_headers()

    with serving(Receiver) as address:
        yield address, points
        # Its thread would send for as long as this process lives, and once more at its end.
        metrics.get_meter_provider().shutdown()
        atexit.unregister(flush_otel_metrics)


def test_opentelemetry_has_them_as_attributes(reported, airflow_sends, collector, monkeypatch):
    address, points = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    airflow_sends(otel_on="True")
    report_metrics.send_metrics("calls")
    # Airflow does so at the end of a task's process.
    metrics.get_meter_provider().force_flush()
    assert {name.removeprefix("airflow."): value for name, value in points.items()} == {
        name: float(value) for name, value in reported.items()
    }


def test_where_airflow_sends_nothing_no_file_is_read(airflow_sends, monkeypatch):
    airflow_sends()
    monkeypatch.setattr(report_metrics, "pages_store", lambda pipeline: pytest.fail("read"))
    report_metrics.send_metrics("calls")


def test_a_store_that_does_not_answer_fails_nothing(airflow_sends, datagrams, monkeypatch, caplog):
    airflow_sends(statsd_on="True", statsd_host="127.0.0.1", statsd_port=str(datagrams.getsockname()[1]))
    monkeypatch.setenv(WAREHOUSE_VARIABLE, "/proc/no-such-folder")
    monkeypatch.setattr(report_metrics, "read_text", lambda *_: 1 / 0)
    report_metrics.send_metrics("calls")
    assert "the report's numbers were not sent to Airflow's metrics: division by zero" in caplog.text
