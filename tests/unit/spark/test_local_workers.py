"""Workers of this machine: they do all parts, bring errors back as what they are, and never outlive their job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from include.local.machine import ROOT
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.spark import local_workers
from spark_jobs.spark.local_workers import WORKERS_VARIABLE, start_workers
from spark_jobs.spark.session import cores_here

# In a process of its own, as a job: pytest's has threads.
JOB = """
import os, signal, time
from pathlib import Path
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.spark.local_workers import has_workers, run_parts, start_workers, stop_workers
start_workers()

def rows(value):
    return pa.record_batch({"value": [value], "by": [os.getpid()]})

def work(part):
    # The first takes longest.
    time.sleep(0.05 * (4 - part) if part < 4 else 0)
    yield rows(part)
    yield rows(-part)

def said(work):
    try:
        list(run_parts([1], work))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def job(code: str, **environment: str) -> str:
    """What the job prints."""
    done = subprocess.run(
        [sys.executable, "-c", JOB + code],
        cwd=ROOT,
        env=os.environ | {WORKERS_VARIABLE: "2"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_parts_are_done_in_their_order_by_two_workers():
    told = job("""
found = pa.Table.from_batches(run_parts(range(40), work)).to_pydict()
assert found["value"] == [each for part in range(40) for each in (part, -part)], found
print(len(set(found["by"])), os.getpid() in found["by"])
""")
    assert told == "2 False"


def test_problems_come_back_as_what_they_are():
    told = job("""
def refused(part): raise NeedsOperator("the remedy")
def full(part): raise OSError(28, "No space left on device", "s3://bucket/table")
def broker(part): raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
for each in (refused, full):
    print(said(each))
text = said(broker)
print(text.splitlines()[0].startswith("RuntimeError: KafkaException: KafkaError{code=_ALL_BROKERS_DOWN"), "in broker" in text)
# The workers are there for the next ones.
print(len(list(run_parts([1, 2], work))))
""")
    assert told.splitlines() == [
        "NeedsOperator: the remedy",
        "OSError: [Errno 28] No space left on device: 's3://bucket/table'",
        "True True",
        "4",
    ]


def test_the_stack_of_a_worker_comes_with_its_error():
    told = job("""
import traceback
def wrong(part): return [][part]
try:
    list(run_parts([1], wrong))
except IndexError as error:
    print("in a worker: " in traceback.format_exc() and "in wrong" in traceback.format_exc())
""")
    assert told == "True"


def test_after_an_error_nobody_works_on(tmp_path):
    told = job(f"""
def slow(part):
    if part == 0:
        raise JobProblem("part 0")
    time.sleep(0.3)
    Path({str(tmp_path)!r}, str(part)).touch()
try:
    list(run_parts(range(100), slow))
except JobProblem:
    before = os.listdir({str(tmp_path)!r})
    time.sleep(1)
    print(os.listdir({str(tmp_path)!r}) == before, len(before) < 8)
""")
    assert told == "True True"


def test_a_killed_worker_is_one_line_with_the_remedy():
    told = job("""
def killed(part): os.kill(os.getpid(), signal.SIGKILL)
print(said(killed))
""")
    assert told.startswith("JobProblem: a worker of this job was killed, perhaps for want of memory")
    assert WORKERS_VARIABLE in told and len(told.splitlines()) == 1


@pytest.mark.parametrize("wanted", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_job(wanted, tmp_path):
    code = f"""
def stands(part):
    Path({str(tmp_path)!r}, str(os.getpid())).touch()
    time.sleep(120)
list(run_parts([1, 2], stands))
"""
    running = subprocess.Popen(
        [sys.executable, "-c", JOB + code], cwd=ROOT, env=os.environ | {WORKERS_VARIABLE: "2"}, start_new_session=True
    )
    until = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < until and running.poll() is None
        time.sleep(0.05)
    os.kill(running.pid, wanted)
    running.wait()
    workers = [Path("/proc", each.name) for each in tmp_path.iterdir()]
    until = time.monotonic() + 10
    # One that has ended may wait for somebody to take its status.
    while any(each.exists() and "State:\tZ" not in (each / "status").read_text() for each in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_there_may_be_none(monkeypatch):
    assert job("print(has_workers())", **{WORKERS_VARIABLE: "0"}) == "False"
    assert job("stop_workers(); print(has_workers())") == "False"
    # No folder for the files that they share.
    none = {"TMPDIR": "/dev/null", "TMP": "/dev/null", "TEMP": "/dev/null"}
    assert (
        job("import tempfile; tempfile.tempdir = '/dev/null'; stop_workers(); start_workers(); print(has_workers())", **none)
        == "False"
    )
    # No memory that they share: a container whose /dev/shm is not to be written.
    unshared = """
import multiprocessing.synchronize
def refused(*_): raise PermissionError(13, "Permission denied")
multiprocessing.synchronize._multiprocessing.SemLock = refused
stop_workers(); start_workers(); print(has_workers())
"""
    assert job(unshared) == "False"
    monkeypatch.setenv(WORKERS_VARIABLE, "many")
    with pytest.raises(NeedsOperator, match=f"not a number of workers: {WORKERS_VARIABLE}=many"):
        start_workers()


@pytest.mark.parametrize(
    ("environment", "defaults", "cores"),
    [
        ({}, "", 64),
        ({}, "spark.masterful x\nspark.master   local[4]\n", 4),
        ({}, "# spark.master local\nspark.master=spark://cluster:7077\n", 0),
        ({"MASTER": "local[2]"}, "spark.master spark://cluster:7077\n", 2),
        ({"MASTER": "local[3, 5]"}, "", 3),
        ({"MASTER": "local[*,5]"}, "", 64),
        ({"MASTER": "local"}, "", 1),
        ({"MASTER": "local-cluster[2,1,1024]"}, "", 0),
        ({"MASTER": "yarn"}, "", 0),
        ({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, "", 0),
        ({"PAIRING_SPARK_REMOTE": "sc://127.0.0.1:15002"}, "spark.master yarn\n", 64),
        ({"PAIRING_SPARK_REMOTE": "sc://spark:15002/;token=x"}, "", 0),
    ],
)
def test_where_spark_would_work_on_this_machine(environment, defaults, cores, tmp_path, monkeypatch):
    for name in ("MASTER", "PAIRING_SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert cores_here() == 64
    (tmp_path / "spark-defaults.conf").write_text(f"\n{defaults}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cores_here() == cores


def test_a_container_limits_cores_and_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(local_workers, "_CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    machine = local_workers._memory()
    for quota, expected in (("max 100000", 16), ("250000 100000", 2), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert local_workers._cores() == expected
    for limit, expected in (("max\n", machine), ("2147483648\n", 2**31)):
        (tmp_path / "memory.max").write_text(limit)
        assert local_workers._memory() == expected
