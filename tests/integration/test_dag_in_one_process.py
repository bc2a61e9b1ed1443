"""The DAGs as Airflow runs them, with its database and its task API, but in one process, and jobs that only say what they are told to."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from include.local.airflow_database import migrate_database
from include.local.machine import VENV, project_environment
from include.local.process import free_port
from tests.helpers.copied_project import AirflowOf, copied

pytestmark = [pytest.mark.integration, pytest.mark.long]

SUBMIT = """#!/bin/bash
for word in "$@"; do case "$word" in */spark_jobs/*.py) job=$(basename "$word" .py);; esac; done
echo "$job" "${@: -1}" >> "$JOBS/submitted"
cp "$JOBS/$job.json" "$PAIRING_OUTCOME"
"""
REPLAYS = [
    {"run_id": f"late__batch_{batch}_2026-01-31T13:00:00+00:00", "batch_id": batch, "window_start": f"2026-01-31T13:0{batch}:00.001000+00:00",
     "window_end": "2026-01-31T13:10:00+00:00"} for batch in (7, 8)
]  # fmt: skip


class OneProcess:
    """`airflow dags test calls` of a copy of the project, whose jobs say what `says` gave them."""

    def __init__(self, folder: Path) -> None:
        project = copied(folder / "project")
        calls, settings = project / "include/pipelines/calls.yaml", project / "include/airflow/dag_settings.py"
        calls.write_text(calls.read_text().replace("late: dead_letter", "late: replay"))
        # Airflow's own command fails at the end of a run that has a deadline.
        settings.write_text(settings.read_text().replace(', "deadline": deadline}', "}"))
        self.jobs = folder / "jobs"
        self.jobs.mkdir()
        (folder / "bin").mkdir()
        submit = folder / "bin" / "spark-submit"
        submit.write_text(SUBMIT)
        submit.chmod(0o755)
        self.airflow = AirflowOf(project, "", folder / "airflow", free_port(), "127.0.0.1:1", str(folder / "warehouse"))
        migrate_database(self.airflow.folder, self.airflow.environment())
        more = {"JOBS": str(self.jobs)}
        self.environment = project_environment() | self.airflow.settings() | more
        self.environment["PATH"] = f"{folder / 'bin'}:{self.environment['PATH']}"
        self.airflow_command("dags", "reserialize")

    def airflow_command(self, *words: str) -> str:
        """What a command of Airflow's own has printed."""
        command = [str(VENV / "bin" / "airflow"), *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    def says(self, job: str, **counts: object) -> None:
        (self.jobs / f"{job}.json").write_text(json.dumps({"ok": True, "counts": counts}))

    def run(self, **conf: object) -> str:
        """What a run of the DAG has printed; the submitted jobs begin anew."""
        (self.jobs / "submitted").unlink(missing_ok=True)
        return self.airflow_command("dags", "test", "calls", "--conf", json.dumps(conf))

    def submitted(self) -> list[str]:
        """Job and last argument of each."""
        return (self.jobs / "submitted").read_text().splitlines()

    def rows(self, query: str) -> list[tuple]:
        with closing(sqlite3.connect(self.airflow.folder / "airflow.db", isolation_level=None)) as database:
            return database.execute(query).fetchall()


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    made = OneProcess(tmp_path_factory.mktemp("one"))
    made.says("land_events", batch_id=8, landed=0, backlog=0)
    made.says("pair_events", batch_id=8, pair=0, open_after=3)
    made.says("publish_compounds")
    made.says("report_quality", batch_id=8)
    return made


def replay_runs(calls):
    return calls.rows(
        "SELECT run_id, state, run_type, conf, content FROM dag_run LEFT JOIN dag_run_note ON dag_run_id = id "
        "WHERE dag_id = 'calls_replay' ORDER BY run_id"
    )


def last_run(calls):
    """States of its tasks, and the replays that it has started."""
    ((run_id,),) = calls.rows("SELECT run_id FROM dag_run WHERE dag_id = 'calls' ORDER BY id DESC LIMIT 1")
    told = calls.rows(
        f"SELECT value FROM xcom WHERE run_id = '{run_id}' AND task_id = 'replay_late' AND key = 'return_value'"
    )
    started = [run for (value,) in told for run in json.loads(value).get("started", [])]
    return dict(calls.rows(f"SELECT task_id, state FROM task_instance WHERE run_id = '{run_id}'")), started


def test_replays_are_started_once(calls):
    first, second = REPLAYS
    calls.says("replay_late", replays=[first], waiting=1, settled=6)
    calls.run()
    window = {name: first[name] for name in ("window_start", "window_end")}
    ((run_id, state, run_type, conf, note),) = replay_runs(calls)
    assert (run_id, state, run_type, json.loads(conf)) == (first["run_id"], "queued", "operator_triggered", window)
    assert note == "late events of batch 7"
    states, started = last_run(calls)
    assert started == [first["run_id"]]
    assert set(states.values()) == {"success"} and len(states) == 5
    assert calls.submitted()[-1] == "replay_late --after-batch=0"

    # The next task asks from where everything is started; what is there already is not started again.
    calls.says("replay_late", replays=[first, second], waiting=0, settled=8)
    said = calls.run()
    assert calls.submitted()[-1] == "replay_late --after-batch=6"
    assert f"{first['run_id']} of calls_replay was started before" in said
    assert [run[0] for run in replay_runs(calls)] == [first["run_id"], second["run_id"]]
    assert last_run(calls)[1] == [second["run_id"]]

    # Without its memory it asks for everything, and nothing is started twice.
    assert calls.rows("DELETE FROM asset_state_store RETURNING value") == [("8",)]
    calls.run()
    assert calls.submitted()[-1] == "replay_late --after-batch=0"
    assert len(replay_runs(calls)) == 2 and last_run(calls)[1] == []


def test_only_the_report(calls):
    calls.run(report_only=True)
    assert calls.submitted() == ["report_quality --again"]
    states, _ = last_run(calls)
    assert set(states.values()) == {"success"} and len(states) == 5
