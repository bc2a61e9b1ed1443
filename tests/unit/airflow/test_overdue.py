"""A pipeline that stands still is a problem from a moment on that follows from its schedule; one whose DAG is paused says so."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from airflow.models.dag import DagModel
from airflow.utils import session as airflow_session
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from include.airflow import overdue as module
from include.airflow.overdue import overdue, paused, schedule_of
from include.airflow.overview import overview
from include.airflow.pages import runbook
from include.config.advice import advice
from include.config.health import write_state
from tests.helpers.pages import pages_in
from tests.helpers.states import made_up_state


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "batch", "last_good", "due"),
    [
        pytest.param("*/5 * * * *", "2026-03-02 10:00:07", "2026-03-02 11:10:00", "10:05", id="an interval and an hour"),
        pytest.param("0 9 * * *", "2026-03-02 09:00:07", "2026-03-05 09:00:00", "2026-03-03 09:00", id="two intervals"),
        pytest.param("0 9 * * 1-5", "2026-03-06 09:00:07", "2026-03-11 09:00:00", "2026-03-09 09:00", id="over a weekend"),
    ],
)
def test_overdue_begins_with_the_schedule(schedule, batch, last_good, due):
    state = made_up_state(7).model_copy(update={"at": at(batch)})
    assert overdue(state, schedule, at(last_good)) is None
    problem = overdue(state, schedule, at(last_good) + 1)
    assert (problem.name, problem.severity, problem.batch) == ("overdue", "warning", 7)
    assert f"by the schedule {schedule} a run was due at " in problem.text and f"{due} UTC" in problem.text
    assert problem.since < problem.last == at(last_good) + 1
    assert runbook(problem.text) == problem.runbook
    assert "stands still" in advice(problem.name, problem.runbook).meaning


def test_without_a_schedule_nothing_is_overdue(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIPELINES", tmp_path)
    text = "left: {topic: l, payload: p}\nright: {topic: r, payload: q}\noutput: {topic: o}\nkey: [k]\n"
    for name, more in {
        "default": "",
        "by_hand": "schedule: null",
        "with_data": "schedule: on_data\nconsumer_group: g",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(f"{text}tolerance: 1s\ngap: 1s\ngrace: 1s\n{more}\n")
    (tmp_path / "refused.yaml").write_text("{")
    found = {name: schedule_of(name) for name in ("default", "by_hand", "with_data", "refused")}
    assert found == {"default": "*/5 * * * *", "by_hand": None, "with_data": None, "refused": None}
    assert overdue(made_up_state(7), None, at("2030-01-01")) is None


@pytest.fixture
def database(monkeypatch):
    """Airflow's table of DAGs, alone; two of its DAGs are paused."""
    engine = create_engine("sqlite://")
    DagModel.__table__.create(engine)

    @contextmanager
    def create_session():
        with Session(engine) as session:
            yield session
            session.commit()

    with Session(engine) as session:
        for name, is_paused in {"calls": False, "resting": True, "new": True}.items():
            needed = {"bundle_name": "dags", "max_active_tasks": 1, "max_consecutive_failed_dag_runs": 0}
            row = {"dag_id": name, "is_paused": is_paused, "has_task_concurrency_limits": False} | needed
            session.execute(DagModel.__table__.insert().values(row))
        session.commit()
    monkeypatch.setattr(airflow_session, "create_session", create_session)
    return engine


def test_the_page_over_all_says_what_stands_still_and_what_is_paused(database, tmp_path, monkeypatch):
    monkeypatch.setattr("include.airflow.overview.parts", list)
    monkeypatch.setattr(module, "schedule_of", lambda _: "*/5 * * * *")
    for name in ("calls", "resting"):
        (tmp_path / name).mkdir()
        # Of January.
        write_state(pages_in(tmp_path / name), made_up_state(7, pipeline=name))
    page = overview(["calls", "resting", "new"], lambda name: pages_in(tmp_path / name))
    assert "<h1>All pipelines: 1 with a warning, 1 not reported yet, 1 healthy</h1>" in page
    assert "calls: 1 warning" in page and page.count("no batch is reported after batch 7: by the schedule */5 * * * *") == 1
    assert "resting is healthy" in page and page.count("ago; the DAG is paused</p>") == 1
    assert page.count('<p class="when">The DAG is paused</p>') == 1
    assert [page.count(f"{word}</span>") for word in ("with a warning", "healthy, paused", "not reported yet, paused")] == [
        1,
        1,
        1,
    ]


def test_a_database_that_does_not_answer_hides_no_page(database, caplog):
    assert paused(["calls", "resting", "other"]) == {"resting"}
    DagModel.__table__.drop(database)
    assert paused(["calls", "resting"]) == set()
    assert caplog.messages == ["which DAGs are paused cannot be asked: OperationalError"]
