"""Jobs on a Spark that stays up: each in a process of its own, for PySpark cannot work both ways in one."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from include.config.project import REMOTE_VARIABLE
from include.local.machine import ROOT, project_environment
from include.local.process import free_port, running_program, stop_programs
from include.local.spark import LocalSpark
from spark_jobs.tables.tables import Tables
from tests.conftest import yaml_of
from tests.helpers.hostile_messages import FIRST_BEYOND
from tests.helpers.job_processes import JOBS, Jobs, wait_for
from tests.helpers.reading import table_rows

pytestmark = pytest.mark.integration

# Works for ten minutes on the server, unless somebody ends it. Ends as a job does: at the end of Python itself, Spark's client would call
# the server again, for 16 s a dead one, and its threads may hang.
BUSY = """
import time
from spark_jobs.job.run import errors_in_one_line, exit_without_cleanup
from spark_jobs.spark.session import end_session, spark_session

def sleep(batches):
    open({mark!r}, "w").close()
    time.sleep(600)
    yield from batches

with exit_without_cleanup(), errors_in_one_line():
    spark = spark_session("busy", "calls")
    try:
        spark.range(0, 1, 1, 1).mapInArrow(sleep, "id BIGINT").collect()
    finally:
        end_session(spark)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LocalSpark(tmp_path_factory.mktemp("spark-server"), free_port()) as running:
        yield running


def start(program, server):
    environment = project_environment() | {REMOTE_VARIABLE: server.url}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def answer(program, server):
    process = start(program, server)
    printed, _ = process.communicate(timeout=120)
    return process.returncode, printed


def busy(server, tmp_path):
    mark = tmp_path / "busy"
    process = start(BUSY.format(mark=str(mark)), server)
    deadline = time.monotonic() + 120
    while not mark.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def test_a_writer_ends_what_a_killed_one_left_running_and_a_reader_does_not(server, tmp_path):
    left_running = busy(server, tmp_path)
    count = "from spark_jobs.spark.session import *; spark = {session}('next', 'calls'); print(spark.range(7).count()); end_session(spark)"
    looked_up = count.replace("print(", "import pyspark.errors.utils as u; print(u.is_debugging_enabled(), ")
    status, printed = answer(looked_up.format(session="reading_session"), server)
    assert (status, printed.split()[-2:]) == (0, ["False", "7"]), "the caller of each function of a column"
    assert left_running.poll() is None
    status, printed = answer(count.format(session="spark_session"), server)
    assert (status, printed.split()[-1]) == (0, "7")
    assert "OPERATION_CANCELED" in left_running.communicate(timeout=60)[0]


def test_readers_leave_no_python_processes_behind(server):
    reads = "from spark_jobs.spark.session import *; spark = reading_session('reader', 'left'); print(spark.session_id); "
    reads += "spark.range(9).mapInArrow(lambda rows: rows, 'id BIGINT').toArrow(); end_session(spark)"
    process, answers, children = running_program(server.folder, "server"), [], []
    for _ in range(2):
        answers.append(answer(reads, server))
        children.append(len(process.children()))
    assert [status for status, _ in answers] == [0, 0], answers
    assert children[0] == children[1], "a daemon more with each reader"
    writer = "from spark_jobs.spark.session import *; print(spark_session('job', 'left').session_id)"
    sessions = [printed.split()[-1] for _, printed in (*answers, answer(writer, server))]
    assert sessions[0] == sessions[1] != sessions[2]


@pytest.mark.parametrize("session", ["spark_session", pytest.param("reading_session", marks=pytest.mark.long)])
def test_jobs_share_a_session_and_a_closed_one_is_replaced(server, session):
    told = f"from spark_jobs.spark.session import *; spark = {session}('job', 'calls'); print(spark.session_id); {{end}}"
    first, second = (answer(told.format(end="end_session(spark)"), server)[1].split()[-1] for _ in range(2))
    assert first == second
    assert answer(told.format(end="spark.stop()"), server)[1].split()[-1] == first
    status, printed = answer(told.format(end="print(spark.range(3).count()); end_session(spark)"), server)
    assert (status, printed.split()[-1]) == (0, "3")
    assert printed.split()[-2] != first


@pytest.mark.long
def test_a_record_whose_time_spark_cannot_hold_is_landed_there_too(server, broker, pipeline, send, tmp_path):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for side in "am":
        send(side, "u", ago, side, timestamp=FIRST_BEYOND)
    jobs = Jobs(yaml_of(pipeline, tmp_path), pipeline, broker.bootstrap, server.url, tmp_path / "warehouse")
    for job in JOBS:
        jobs.run(job)
    warehouse = Tables(str(jobs.warehouse), pipeline)
    assert [row["record_timestamp"] for row in table_rows(warehouse, "raw_analytics")] == [FIRST_BEYOND]
    assert [row["kind"] for row in table_rows(warehouse, "compound_events")] == ["pair"]


FORKED = """
import os, psutil, sys, time, types
from include.airflow import forked_jobs

BUSY = {busy!r}

def run_module(name, **_):
    from spark_jobs.job.run import end_with_the_task

    os.environ["PAIRING_TASK_LOCK"] = {lock!r}
    end_with_the_task()
    exec(BUSY, {{}})

forked_jobs.runpy = types.SimpleNamespace(run_module=run_module)
import fcntl

alive = open({lock!r}, "w")
fcntl.flock(alive, fcntl.LOCK_EX)
forked = forked_jobs.ForkedJob("busy", [], alive)
while not os.path.exists({mark!r}):
    time.sleep(0.1)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param("forked.end()", 0, id="its task ends it", marks=pytest.mark.long),
        pytest.param("os.kill(os.getpid(), 9)", -9, id="its task is killed"),
    ],
)
def test_a_job_whose_task_ends_leaves_nothing_running_on_the_server(server, tmp_path, end, status):
    mark = tmp_path / "busy"
    busy_worker = BUSY.format(mark=str(mark)).replace('"w").close()', '"w").write(str(__import__("os").getpid()))')
    process = start(FORKED.format(busy=busy_worker, lock=str(tmp_path / "task.lock"), mark=str(mark), end=end), server)
    assert process.wait(timeout=120) == status
    worker = int(mark.read_text())
    # Spark gives a worker whose task is killed two seconds.
    wait_for(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie", "the worker to end", 30)


def test_a_server_that_dies_is_given_up_and_then_said(server, tmp_path):
    """The last one: the server is dead afterwards."""
    working = busy(server, tmp_path)
    stop_programs(server.folder, patience_s=0)
    started = time.monotonic()
    printed, _ = working.communicate(timeout=120)
    assert working.returncode == 1, printed
    assert f"error: the Spark server at {server.url} went away during the job (" in printed.splitlines()[-1], printed
    assert time.monotonic() - started < 60
    job = [sys.executable, "spark_jobs/pair_events.py", "--pipeline", "include/pipelines/calls.yaml"]
    environment = project_environment() | {REMOTE_VARIABLE: server.url, "PAIRING_WAREHOUSE": str(tmp_path / "warehouse")}
    done = subprocess.run(job, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"no Spark server answers at {server.url}" in done.stderr
    assert os.linesep.join(done.stderr.splitlines()[:-1]) == "", "one line only"
