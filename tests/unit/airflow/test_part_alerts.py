"""A part that is down is told of once, whoever looks and however often that one is started again, and once more when it is back."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from airflow.models.variable import Variable
from airflow.utils import session as airflow_session
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from include.airflow import part_alerts
from include.airflow.alerts import URL_VARIABLE
from include.airflow.part_alerts import DOWN_VARIABLE, AlertMemoryInDatabase, PartWatch
from include.airflow.parts import Part
from tests.helpers.alert_listener import listening

UP, DOWN = Part("scheduler", True, "heartbeat 1 s ago"), Part("scheduler", False, "last heartbeat 95 s ago")


@pytest.fixture
def heard(monkeypatch):
    with listening() as (address, bodies):
        monkeypatch.setenv(URL_VARIABLE, address)
        yield bodies


@pytest.fixture
def database(monkeypatch):
    """Airflow's table of variables, alone."""
    engine = create_engine("sqlite://")
    Variable.__table__.create(engine)

    @contextmanager
    def create_session():
        with Session(engine) as session:
            yield session
            session.commit()

    monkeypatch.setattr(airflow_session, "create_session", create_session)


def test_a_part_is_told_of_once_and_once_when_it_is_back(heard, database):
    api_server, triggerer = PartWatch(AlertMemoryInDatabase(), 120), PartWatch(AlertMemoryInDatabase(), 120)
    for at in range(0, 120, 15):
        api_server.look([DOWN], at)
        triggerer.look([DOWN], at)
    assert heard == []
    for watch in (api_server, triggerer, api_server):
        watch.look([DOWN], 120)
    down = {"text": f"scheduler is down: {DOWN.text}", "part": "scheduler", "reason": DOWN.text}
    assert heard == [down]
    again = PartWatch(AlertMemoryInDatabase(), 120)
    for at in (200, 400):
        again.look([DOWN], at)
    assert heard == [down]
    for watch in (again, triggerer, api_server):
        watch.look([UP], 500)
    up = {"text": f"scheduler is up again: {UP.text}", "part": "scheduler", "reason": UP.text, "severity": "warning"}
    assert heard == [down, up]
    assert AlertMemoryInDatabase().names() == set()


def test_two_who_see_it_at_the_same_moment_tell_it_once(heard, database):
    first, second = AlertMemoryInDatabase(), AlertMemoryInDatabase()
    assert [first.add("scheduler", "x"), second.add("scheduler", "x")] == [True, False]
    assert [first.remove("scheduler"), second.remove("scheduler")] == [True, False]


def test_a_part_that_comes_back_in_time_is_not_told_of(heard, database):
    watch = PartWatch(AlertMemoryInDatabase(), 120)
    for at, part in ((0, DOWN), (105, UP), (119, DOWN), (230, DOWN), (238, DOWN)):
        watch.look([part], at)
    assert heard == []
    watch.look([DOWN], 239)
    assert len(heard) == 1


def test_a_cluster_that_is_no_part_any_more_is_forgotten(heard, database):
    watch = PartWatch(AlertMemoryInDatabase(), 0)
    watch.look([DOWN], 0)
    watch.look([], 1)
    assert AlertMemoryInDatabase().names() == set() and len(heard) == 1


def test_the_triggerer_looks_and_no_task_does(monkeypatch):
    begun = []
    monkeypatch.setattr(part_alerts, "start_watch", lambda: begun.append(1))
    for component in (SimpleNamespace(job_type="SchedulerJob"), object()):
        part_alerts.on_starting(component)
    assert begun == []
    part_alerts.on_starting(SimpleNamespace(job_type="TriggererJob"))
    assert begun == [1]


@pytest.mark.parametrize(("text", "seconds"), [("", 120), ("5", 5), ("soon", 120)])
def test_how_long_a_part_must_be_down(text, seconds, monkeypatch, caplog):
    monkeypatch.setenv(DOWN_VARIABLE, text)
    assert part_alerts._down_s() == seconds
    assert ("no number of seconds" in caplog.text) == (text == "soon")
