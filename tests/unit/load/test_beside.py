"""What is started beside the live runs, and when: only of intervals that are closed and have traffic."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.config.pipeline import PIPELINES
from include.config.pipeline_file import load_pipeline
from include.local.airflow_client import AirflowError
from tests.load.beside import CLOSED_AFTER, INTERVAL, MAINTENANCE, REPLAY, REPLAYED, Beside
from tests.load.servers import copied_pipeline


class Asked:
    """Notes what Airflow was asked for; refuses all if `refuses`."""

    refuses = False

    def __init__(self):
        self.triggered, self.backfills = [], []

    def trigger(self, dag_id, params=None):
        if self.refuses:
            raise AirflowError("its database is locked")
        self.triggered.append((dag_id, params))

    def call(self, method, path, body):
        assert (method, path) == ("POST", "/backfills")
        self.backfills.append((datetime.fromisoformat(body["from_date"]), datetime.fromisoformat(body["to_date"])))


@pytest.fixture
def asked():
    return Asked()


def started(asked, minutes, times=3):
    """What is started one after the other, `minutes` after the traffic began."""
    beside = Beside(asked, 0.0)
    beside.began = datetime.now(UTC) - timedelta(minutes=minutes)
    return [beside.start_what_is_due() for _ in range(times)]


def test_before_an_interval_is_closed_only_maintenance_runs(asked):
    assert started(asked, 1) == ["maintenance", "", ""]
    assert [dag_id for dag_id, _ in asked.triggered] == [MAINTENANCE] and not asked.backfills


def test_later_all_three_take_turns(asked):
    assert started(asked, 60, times=4) == ["maintenance", "replay", "backfill", "maintenance"]


@pytest.mark.parametrize("minutes", [11.1, 14, 15.1, 18, 20, 25, 60])
def test_what_is_replayed_has_traffic_and_is_closed(asked, minutes):
    started(asked, minutes)
    began, closed = datetime.now(UTC) - timedelta(minutes=minutes, seconds=2), datetime.now(UTC) - CLOSED_AFTER
    (window,) = [params for dag_id, params in asked.triggered if dag_id == REPLAY]
    start, end = (datetime.fromisoformat(window[name]) for name in ("window_start", "window_end"))
    assert end - start == REPLAYED and began <= start and end <= closed
    for first, last in asked.backfills:
        assert began <= first <= last and last + INTERVAL <= closed and last - first <= INTERVAL
        assert not (first.minute % 5 or first.second or first.microsecond)
    assert asked.backfills or minutes < 20


def test_a_refusal_is_left_for_the_next_turn(asked):
    asked.refuses = True
    assert started(asked, 60) == ["", "", "backfill"]


def test_after_the_stop_nothing_is_started_until_it_resumes(asked):
    beside = Beside(asked, 0.0)
    beside.stop()
    assert beside.start_what_is_due() == "" and not asked.triggered
    beside.resume()
    assert beside.start_what_is_due() == "maintenance"


def test_the_pipeline_under_load_is_the_shipped_one_but_for_its_schedules(tmp_path):
    changed, shipped = load_pipeline(copied_pipeline(tmp_path / "project")), load_pipeline(PIPELINES / "calls.yaml")
    assert (changed.schedule, changed.replay_schedule, changed.consumer_group) == (
        "* * * * *",
        "*/5 * * * *",
        "calls.landed",
    )
    settings = {name: getattr(shipped, name) for name in ("schedule", "replay_schedule", "consumer_group")}
    assert replace(changed, **settings) == shipped
