"""The pools of the pipelines are made once Airflow knows of them, and only where there is a database."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from include.airflow import scheduling


@pytest.fixture
def made(monkeypatch):
    """How often pools were made, with threads that work at once."""
    calls = []

    class Thread:
        def __init__(self, target, **_):
            self.start = target

    monkeypatch.setattr(scheduling, "make_pools", lambda: calls.append(1))
    monkeypatch.setattr(scheduling, "Thread", Thread)
    monkeypatch.setattr(scheduling, "_known", set())
    return calls


def test_when_a_part_of_airflow_starts_but_not_when_a_task_does(made):
    task = type("TaskRunnerMarker", (), {"__module__": "airflow.sdk.execution_time.task_runner"})()
    scheduling.on_starting(task)
    assert made == []
    scheduling.on_starting(type("Job", (), {"__module__": "airflow.jobs.job"})())
    assert made == [1]


@pytest.mark.parametrize(
    ("dag_id", "times"), [("calls", 1), ("calls_replay", 1), ("calls_maintenance", 1), ("somebody_elses", 0)]
)
def test_when_a_pipeline_runs_for_the_first_time(dag_id, times, made, monkeypatch):
    run = SimpleNamespace(dag_id=dag_id, conf={})
    scheduling.on_dag_run_running(run, "")
    assert len(made) == times
    monkeypatch.setattr(scheduling, "_known", {"calls"})
    scheduling.on_dag_run_running(run, "")
    assert len(made) == times
