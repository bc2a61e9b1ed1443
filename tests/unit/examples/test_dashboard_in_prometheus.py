"""A real Prometheus scrapes what reports and parts write: it answers each expression of the dashboard, and its alerts fire."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from include.airflow import parts_app
from include.airflow.parts import Part
from include.config.health import Lag, Problem, State
from spark_jobs.quality.metrics_text import exposition
from spark_jobs.quality.trend import Trend
from spark_jobs.quality.windows import windows_of
from tests.helpers.batch_history import history
from tests.helpers.job_processes import wait_for
from tests.helpers.prometheus import prometheus
from tests.helpers.timeline import ROOT
from tests.helpers.web_server import Quiet, serving
from tests.unit.examples.test_dashboard import PANELS

pytestmark = pytest.mark.long

REPORT, PARTS = "/quality/calls/metrics", "/parts/metrics"


@pytest.fixture
def scraped(monkeypatch):
    """The port of a server that answers as Airflow's: with the numbers of a report after which something waits and a check has failed."""
    trend, (*others, newest) = Trend("calls"), history(400)
    skew = {"skew_q1": -5.0, "skew_median": 10.0, "skew_q3": 30.0}
    trend.add([*others, replace(newest, metrics=newest.metrics | skew)])
    windows, hours = windows_of(trend)
    problem = Problem(name="lost", severity="failed", text="x", batch=7, since=1_000.0, last=1_000.0)
    lag = Lag(unread=12, oldest_unread=1_234.5, oldest_open=1_300.0)
    state = State(pipeline="calls", at=9.0, batch=400, problems=(problem,), windows=windows, hours=hours, lag=lag)
    monkeypatch.setattr(parts_app, "parts", lambda: [Part("scheduler", True, "answers")])
    of_parts = parts_app.as_metrics()
    texts = {REPORT: exposition(trend, state).encode(), PARTS: of_parts.body}

    class Pages(Quiet):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", of_parts.media_type)
            self.end_headers()
            self.wfile.write(texts[self.path])

    with serving(Pages) as address:
        yield int(address.rpartition(":")[2])


def test_each_expression_has_data_and_alerts_fire(scraped, tmp_path):
    every = {"scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "docs/examples/prometheus/alerts.yaml")],
        "scrape_configs": [{"job_name": path, "metrics_path": path, **every} for path in (REPORT, PARTS)],
    }
    began = time.time()
    with prometheus(tmp_path, config) as server:

        def states():
            return {alert["labels"]["alertname"]: alert["state"] for alert in server.ask("alerts")["alerts"]}

        # These wait for nothing, the others for ten minutes.
        fired = {"EventPairingFailed": "firing", "EventPairingStandsStill": "firing"}
        wait_for(lambda: fired.items() <= states().items(), "the alerts", 60, every_s=0.5)
        assert states() == fired | {"EventPairingProblem": "pending", "EventPairingBehind": "pending"}
        # A rate takes two scrapes.
        wait_for(lambda: server.values("count_over_time(event_pairing_state[1m]) >= 2"), "two scrapes", 60, every_s=0.5)
        for panel in PANELS:
            for target in panel["targets"]:
                expression = target["expr"].replace("$pipeline", ".+").replace("$__rate_interval", "1m")
                answer = server.ask("query_range", query=expression, start=began, end=time.time(), step="1s")
                assert answer["result"], f"{panel['title']}: {expression} has no data"
