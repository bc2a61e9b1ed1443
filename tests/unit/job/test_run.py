"""A job ends as its work did, whatever libraries do at a process's end; and with the process that holds its task's lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from spark_jobs.job.run import TASK_VARIABLE
from tests.helpers.timeline import ROOT

FINISHED = """
import atexit, os, types
from spark_jobs.job import run as job
# As threads of a C++ library do that are still running.
atexit.register(os.abort)
job.spark_session = lambda *_: types.SimpleNamespace(conf={{}})
job.end_session = lambda _: None
given = job.job_parser("some_job", "").parse_args(["--pipeline", "include/pipelines/calls.yaml", "--warehouse", {folder!r}])
def work(_):
    {work}
job.run_job("some_job", given, work)
"""


def ended(folder, work):
    script = FINISHED.format(folder=str(folder), work=work)
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_job_that_is_done_ends_with_its_counts(tmp_path):
    done = ended(tmp_path, 'return {"rows": 5}')
    assert (done.returncode, done.stdout) == (0, "some_job: rows 5\n"), done.stderr


def test_a_job_that_failed_ends_with_its_line(tmp_path):
    done = ended(tmp_path, 'raise OSError("no space left")')
    assert (done.returncode, done.stderr) == (1, "error: no space left\n")


def test_a_line_is_said_though_nothing_takes_the_outcome():
    script = "from spark_jobs.job.run import job_parser; job_parser('some_job', '').parse_args([])"
    there = {"PAIRING_OUTCOME": "s3://lake/outcome.json", "PAIRING_STORE": '{"aws_acess_key_id": "x"}'}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | there, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr


TASK = "import fcntl, time; held = open({path!r}, 'w'); fcntl.flock(held, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
JOB = "from spark_jobs.job.run import end_with_the_task; end_with_the_task(); print('works', flush=True); {then}"


def start(program, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_driver_elsewhere_ends_when_the_lease_of_its_task_does():
    lease = "s3://lake/events/calls/outcomes/some.task"
    # In one piece, for the job prints at the same time.
    ends = (
        "from spark_jobs.job import run; run.wait_for_end = lambda store, name: print(f'{store.uri} {name}', flush=True); "
    )
    job = start(ends + JOB.format(then="import time; time.sleep(60)"), **{TASK_VARIABLE: lease})
    out, told = job.communicate(timeout=20)
    assert (job.returncode, told) == (1, "error: the Airflow task that started this job is gone, so the job ends, too\n")
    assert "s3://lake/events/calls/outcomes some.task" in out


def test_a_job_ends_when_its_task_is_killed(tmp_path):
    path = str(tmp_path / "task.lock")
    task = start(TASK.format(path=path))
    assert task.stdout.readline() == "held\n"
    job = start(JOB.format(then="import time; time.sleep(60)"), **{TASK_VARIABLE: path})
    assert job.stdout.readline() == "works\n"
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.5)
    task.send_signal(signal.SIGKILL)
    _, told = job.communicate(timeout=20)
    assert (job.returncode, told) == (1, "error: the Airflow task that started this job is gone, so the job ends, too\n")
    task.communicate()


def test_a_job_that_is_done_does_not_wait_for_its_task(tmp_path):
    path = str(tmp_path / "task.lock")
    task = start(TASK.format(path=path))
    assert task.stdout.readline() == "held\n"
    job = start(JOB.format(then=""), **{TASK_VARIABLE: path})
    assert job.communicate(timeout=20) == ("works\n", "")
    assert job.returncode == 0
    task.kill()
    task.communicate()


def test_a_job_started_by_hand_is_its_own_master():
    job = start(JOB.format(then="import threading; print(threading.active_count())"), **{TASK_VARIABLE: ""})
    assert job.communicate(timeout=20) == ("works\n1\n", "")
