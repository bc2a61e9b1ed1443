"""The rules for Prometheus: on the metrics that reports write, evaluated by Prometheus' own program."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
import yaml

from include.airflow import current
from include.config.health import METRICS_FILE
from include.config.store import write_text
from spark_jobs.quality import metrics_text
from spark_jobs.quality.trend import Trend
from tests.helpers.batch_history import history
from tests.helpers.prometheus import promtool
from tests.helpers.timeline import ROOT
from tests.unit.quality.test_problems import batch
from tests.unit.quality.test_state import Reports

RULES = ROOT / "docs" / "examples" / "prometheus" / "alerts.yaml"


@pytest.fixture
def reports(tmp_path, monkeypatch):
    return Reports(tmp_path, monkeypatch)


@pytest.fixture
def served(reports, monkeypatch):
    """served(text, minute): what Airflow makes of the text then; its database, in which nothing is paused, is not there."""

    def at(text, minute):
        write_text(reports.pages, METRICS_FILE, text)
        monkeypatch.setattr(current, "time", SimpleNamespace(time=lambda: minute * 60.0))
        return current.current_metrics(reports.pages)

    monkeypatch.setattr(current, "paused", set().intersection)
    return at


def as_written(text, minute):
    return text


def series_of(reports, minutes, served=as_written):
    """`metrics.prom` as it is scraped each minute up to `minutes`, inclusive. `reports`: minute -> the metrics of a batch that is reported then."""
    text, scraped = "# EOF\n", []
    for minute in range(minutes + 1):
        if minute in reports.story:
            state = reports.report(batch(minute, **reports.story[minute]))
            text = metrics_text.exposition(reports.trend, state)
        scraped.append(dict(line.rsplit(" ", 1) for line in served(text, minute).splitlines() if not line.startswith("#")))
    # A scrape that lacks a series which the one before had ends it.
    scrapes = [*zip([{}, *scraped], scraped, strict=False)]
    names = sorted({name for sample in scraped for name in sample})
    return [
        {"series": name, "values": " ".join(now.get(name, "stale" if name in before else "_") for before, now in scrapes)}
        for name in names
    ]


def run(folder, *arguments, **documents):
    for name, document in documents.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run([str(promtool()), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_rules_read_metrics_that_reports_write_and_airflow_serves(reports, served):
    reports.story = {1: {"left_only": 12.0}}
    written = {each["series"].split("{")[0] for each in series_of(reports, 1, served)} | {
        "event_pairing_oldest_unread_seconds"
    }
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    read = {word.split("{")[0].lstrip("(") for rule in rules for word in rule["expr"].split() if "event_pairing_" in word}
    assert len(rules) == 7 and read <= written, read - written


@pytest.mark.long
def test_prometheus_accepts_the_rules_and_the_metrics(reports, served, tmp_path):
    status, said = run(tmp_path, "check", "rules", str(RULES))
    assert status == 0 and "7 rules found" in said
    state = reports.report(batch(1))
    trend = Trend("calls")
    trend.add(history(40))
    done = subprocess.run(
        [str(promtool()), "check", "metrics", "--extended", "--lint=none"],
        input=served(metrics_text.exposition(trend, state), 90),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_an_alert_fires_through_two_empty_batches_and_ends_when_a_good_batch_heals(reports, tmp_path):
    reports.story = {5: {"left_only": 1_001.0}, 10: {}, 15: {}, 20: {"pair": 5_000.0}, 25: {}}
    series = series_of(reports, 60)
    labels = {
        "pipeline": "calls",
        "problem": "orphan_ratio",
        "severity": "warning",
        "acknowledged": "false",
        "team": "event-pairing",
    }
    fired = [{"exp_labels": labels, "exp_annotations": {"summary": "calls: orphan_ratio (warning), see /quality/calls/"}}]

    def at(minute, name, alerts):
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": alerts}

    orphans = {
        "exp_labels": {"pipeline": "calls", "severity": "warning"},
        "exp_annotations": {"summary": "calls: 100% of the compounds of a day are one-sided"},
    }
    tests = [
        at(minute, "EventPairingProblem", alerts)
        for minute, alerts in ((4, []), (14, []), (15, fired), (19, fired), (20, []), (30, []))
    ]
    tests += [at(minute, "EventPairingOrphans", alerts) for minute, alerts in ((14, []), (16, [orphans]), (21, []))]
    tests += [at(minute, "EventPairingFailed", []) for minute in (5, 15, 25)]
    # No report is made any more.
    still = {
        "exp_labels": {"pipeline": "calls", "severity": "critical"},
        "exp_annotations": {"summary": "calls: the newest batch is 31m 0s old"},
    }
    tests += [at(55, "EventPairingStandsStill", []), at(56, "EventPairingStandsStill", [still])]
    assert_alerts(tmp_path, series, tests)


def assert_alerts(folder, series, tests):
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": tests}],
    }
    status, said = run(folder, "test", "rules", "rules.yaml", rules=document)
    assert status == 0, said


@pytest.mark.long
def test_an_alert_fires_while_no_run_comes_and_one_when_a_dag_stays_paused(reports, served, tmp_path):
    # By the schedule */5 a run is due at minute 10. It is overdue an interval and an hour later.
    reports.story = {5: {}, 120: {}}
    series = series_of(reports, 140, served)
    labels = {"pipeline": "calls", "severity": "critical"}
    text = "calls: a run was due {} ago, and no batch was reported since"

    def at(minute, name, *alerts):
        return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": list(alerts)}

    def overdue(ago):
        return {"exp_labels": labels, "exp_annotations": {"summary": text.format(ago)}}

    tests = [at(minute, "EventPairingOverdue") for minute in (75, 85, 120)]
    tests += [at(86, "EventPairingOverdue", overdue("1h 16m 0s")), at(119, "EventPairingOverdue", overdue("1h 49m 0s"))]
    # Airflow knows the schedule, so the age of the newest batch says nothing.
    tests += [at(minute, "EventPairingStandsStill") for minute in (40, 86)]
    assert_alerts(tmp_path, series, tests)
    resting = {"exp_labels": {"pipeline": "calls", "severity": "warning"}}
    resting |= {"exp_annotations": {"summary": "calls has been paused for a day"}}
    series = [{"series": 'event_pairing_paused{pipeline="calls"}', "values": "0x4 1x1500"}]
    tests = [at(1444, "EventPairingPaused"), at(1445, "EventPairingPaused", resting)]
    assert_alerts(tmp_path, series, tests)
