"""What a job that is forked from its task prints, how it ends, and what it has of the task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from include.airflow import forked_jobs
from include.airflow.forked_jobs import ForkedJob
from include.airflow.ready_modules import ReadyModules
from include.config.project import ROOT


@pytest.fixture
def alive(tmp_path):
    with (tmp_path / "task.lock").open("w") as lock:
        yield lock


def run(job, arguments, alive):
    lines = []
    return ForkedJob(job, arguments, alive).wait(lines.append), lines


FORKS = """
import json, sys
from include.airflow.forked_jobs import ForkedJob, import_for_jobs

import_for_jobs()
ended = []
for arguments in (["--help"], ["--pipeline", "nowhere.yaml"]):
    lines = []
    with open(sys.argv[1], "w") as alive:
        ended.append([ForkedJob("land_events", arguments, alive).wait(lines.append), lines])
print(json.dumps(ended))
"""


def test_its_output_and_status_are_those_of_the_command(tmp_path):
    # From a process that is as young as a task: a library with threads need not outlive a fork of the tests' own.
    command = [sys.executable, "-c", FORKS, str(tmp_path / "task.lock")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (helped, lines), (status, errors) = json.loads(done.stdout.splitlines()[-1])
    assert helped == 0
    assert lines[0].startswith("usage: land_events [-h] --pipeline PIPELINE")
    assert (status, len([line for line in errors if "nowhere.yaml" in line])) == (2, 1)
    assert "Traceback" not in "\n".join(errors)


LOOKS = """
import json, runpy, sys
from include.airflow import forked_jobs
from include.config.project import ROOT

def ours():
    return {name for name in sys.modules if name.partition(".")[0] in ("include", "spark_jobs")}

def looks(name, **_):
    there = ours()
    import spark_jobs.job.arguments
    print(json.dumps([sorted(there), vars(spark_jobs.job.arguments).get("NEW")]))

runpy.run_module = looks
forked_jobs.LIBRARIES = ()
before = {name: sys.modules[name] for name in ours()}
forked_jobs.import_for_jobs()
ready = forked_jobs._ready._modules
forked_jobs.import_for_jobs()
once = forked_jobs._ready._modules is ready
unchanged = {name: sys.modules[name] for name in ours()} == before
arguments = ROOT / "spark_jobs" / "job" / "arguments.py"
looked = []
for change in ("", "NEW = 1", "if"):
    with arguments.open("a") as code:
        code.write(change)
    lines = []
    with open("task.lock", "w") as alive:
        forked_jobs.ForkedJob("some_job", [], alive).wait(lines.append)
    looked.append(lines[-1])
print(json.dumps([once, unchanged, *looked]))
"""


def test_the_projects_modules_are_ready_until_a_file_changes(tmp_path):
    for folder in ("include", "spark_jobs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    command = [sys.executable, "-c", LOOKS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=without_path())
    once, unchanged, ready, changed, broken = json.loads(done.stdout.splitlines()[-1])
    assert once, "a task takes what the scheduler has imported"
    assert unchanged, "Airflow's process has modules of its own"
    modules, new = json.loads(ready)
    assert {"spark_jobs.stages.land", "spark_jobs.quality.pages"} <= {*modules}
    assert "spark_jobs.land_events" not in modules
    assert not [name for name in modules if name.startswith("include.airflow")]
    assert new is None
    assert json.loads(changed) == [[], 1]
    assert "SyntaxError" in broken


def without_path():
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture
def job_that(monkeypatch):
    """Makes a job of these lines."""

    def made(code):
        monkeypatch.setattr("runpy.run_module", lambda name, **_: exec(code, {}))
        return "some_job"

    return made


def test_a_job_that_raises_says_so_and_fails(job_that, alive):
    status, lines = run(job_that("raise ValueError('no such thing')"), [], alive)
    assert status == 1
    assert lines[-1] == "ValueError: no such thing"


def test_a_job_that_a_signal_ends_has_a_negative_status(job_that, alive):
    assert run(job_that("import os; os.kill(os.getpid(), 9)"), [], alive) == (-9, [])


def test_it_imports_the_projects_code_anew_and_has_no_file_of_the_task(job_that, alive, monkeypatch):
    # Another test of this process may have imported all jobs.
    monkeypatch.setattr(forked_jobs, "_ready", ReadyModules())
    code = f"""
import os, sys
print([name for name in sys.modules if name.split(".")[0] in ("include", "spark_jobs")], {str(ROOT)!r} in sys.path)
print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")) - 1 <= 4, sys.argv)
"""
    code += "print(open('/proc/self/cmdline').read().split(chr(0))[0])"
    assert "include.airflow.forked_jobs" in sys.modules
    status, lines = run(job_that(code), ["--one", "two"], alive)
    assert (status, lines) == (
        0,
        ["[] True", "['0', '1', '2'] True ['some_job', '--one', 'two']", "spark_jobs.some_job --one two"],
    )


def test_its_task_can_end_it(job_that, alive, monkeypatch):
    monkeypatch.setattr("include.airflow.forked_jobs._ENDS_WITHIN_S", 0.2)
    forked = ForkedJob(job_that("import time; print('works', flush=True); time.sleep(60)"), [], alive)
    begin = time.monotonic()

    def end(line):
        assert line == "works"
        raise TimeoutError

    with pytest.raises(TimeoutError):
        forked.wait(end)
    assert time.monotonic() - begin < 5
    assert alive.closed
    assert os.waitstatus_to_exitcode(os.waitpid(forked.pid, 0)[1]) == -9


@pytest.mark.parametrize(
    ("program", "executor", "imports"),
    [("scheduler", "LocalExecutor", 1), ("scheduler", "CeleryExecutor", 0), ("triggerer", "LocalExecutor", 0)],
)
def test_libraries_are_imported_where_tasks_are_forked(monkeypatch, program, executor, imports):
    calls = []
    monkeypatch.setattr(forked_jobs, "import_for_jobs", lambda: calls.append(1))
    monkeypatch.setattr(sys, "argv", ["airflow", program])
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    forked_jobs.on_starting(None)
    assert len(calls) == imports
