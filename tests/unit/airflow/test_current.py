"""The state and the metrics as Airflow serves them: what the last report wrote, and whether the pipeline stands still at that moment."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from include.airflow import current
from include.airflow.current import current_metrics, current_state
from include.config.health import METRICS_FILE, State, acknowledge, read_state, write_state
from include.config.store import write_text
from spark_jobs.quality.metrics_text import exposition
from spark_jobs.quality.trend import Trend
from tests.helpers.batch_history import history
from tests.helpers.pages import pages_in
from tests.helpers.states import AT, BROKEN, SILENT, made_up_state

# The newest batch is of 12:00, and runs are due every five minutes.
IN_TIME, MISSED = AT + 3_900, AT + 4_300
OVERDUE, PAUSED, STATE = "event_pairing_overdue_seconds", "event_pairing_paused", "event_pairing_state"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(now, *paused): the state and the numbers of `calls` then, while these DAGs are paused."""
    pages = pages_in(tmp_path)
    ask_for = SimpleNamespace(pages=pages)

    def at(now, *paused):
        monkeypatch.setattr(current, "time", SimpleNamespace(time=lambda: now))
        monkeypatch.setattr(current, "paused", set(paused).intersection)
        text = current_metrics(pages)
        families = {each.name: each for each in text_string_to_metric_families(text)}
        assert all(sample.labels["pipeline"] == "calls" for each in families.values() for sample in each.samples)
        numbers = {name: families[name].samples[0].value for name in (OVERDUE, PAUSED, STATE)}
        return json.loads(current_state(pages)), numbers

    def report(*problems):
        trend, state = Trend("calls"), made_up_state(7, *problems)
        trend.add(history(7))
        write_state(pages, state)
        write_text(pages, METRICS_FILE, exposition(trend, state))
        return at

    ask_for.report = report
    return ask_for


def test_a_pipeline_in_time_is_as_the_report_left_it(ask):
    state, numbers = ask.report()(IN_TIME, "others")
    assert (state.pop("verdict"), state.pop("is_paused")) == ("healthy", False)
    assert State.model_validate(state) == read_state(ask.pages)
    assert numbers == {OVERDUE: 0, PAUSED: 0, STATE: 0}


def test_an_overdue_one_says_so_and_since_when(ask):
    state, numbers = ask.report()(MISSED)
    (problem,) = state["problems"]
    assert (state["verdict"], state["is_paused"], problem["name"]) == ("warning", False, "overdue")
    assert problem["text"].startswith("no batch is reported after batch 7: by the schedule */5 * * * * a run was due at ")
    assert numbers == {OVERDUE: 4_000, PAUSED: 0, STATE: 1}


def test_a_paused_one_is_paused_and_not_overdue(ask):
    state, numbers = ask.report()(MISSED, "calls")
    assert (state["verdict"], state["is_paused"], state["problems"]) == ("healthy", True, [])
    assert numbers == {OVERDUE: 0, PAUSED: 1, STATE: 0}


def test_what_failed_stays_failed_and_what_was_said_since_the_report_counts(ask):
    at = ask.report(SILENT, BROKEN)
    assert at(MISSED)[1] == {OVERDUE: 4_000, PAUSED: 0, STATE: 2}
    acknowledge(ask.pages, BROKEN.name, "ann", "looks at it")
    state = at(IN_TIME)[0]
    assert (state["verdict"], state["problems"][1]["acknowledged"]["by"]) == ("warning", "ann")


def test_without_a_report_there_is_neither_and_an_old_one_is_served_as_it_is(tmp_path):
    pages = pages_in(tmp_path)
    assert (current_state(pages), current_metrics(pages)) == (None, None)
    # Version 1.0 wrote no state.
    write_text(pages, METRICS_FILE, "# EOF\n")
    assert (current_state(pages), current_metrics(pages)) == (None, "# EOF\n")
