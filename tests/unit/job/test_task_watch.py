"""A job ends with the process that holds its task's lock, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from spark_jobs.job.run import TASK_VARIABLE
from tests.helpers.timeline import ROOT

TASK = "import fcntl, time; held = open({path!r}, 'w'); fcntl.flock(held, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
JOB = "from spark_jobs.job.task_watch import end_with_the_task; end_with_the_task(); print('works', flush=True); {then}"


def start(program, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
