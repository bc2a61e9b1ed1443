"""All jobs on a Spark cluster whose executors share nothing with the driver: the same rows, commits, messages and pages as in one process.

Also when executors, workers and drivers die at every step, and when a second attempt of a task overtakes the first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from include.config.project import REMOTE_VARIABLE
from include.local.cluster import LocalCluster
from include.local.machine import ROOT, project_environment
from include.local.process import free_port, processes_of
from include.local.spark import LocalSpark
from spark_jobs import pair_events, publish_compounds, report_quality
from spark_jobs.spark.executors import WITHIN_VARIABLE
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.tables.schemas import REJECTED
from tests.helpers.all_stages import land, run_all
from tests.helpers.comparing import rows
from tests.helpers.job_processes import JOBS, Faults, Jobs, wait_for
from tests.helpers.stores import data_files, table_of
from tests.helpers.two_warehouses import Both, both_on

pytestmark = pytest.mark.integration

# At which points of the workers something happens, one of each job a batch.
BATCHES = (
    {"land_events": "records_read", "pair_events": "paired_file_begun", "publish_compounds": "transaction_half_sent"},
    {
        "land_events": "raw_file_complete",
        "pair_events": "paired_files_complete",
        "publish_compounds": "transaction_all_sent",
    },
    {"publish_compounds": "transaction_committed"},
)
# No executor here lives long enough for a full compilation of its code to pay.
FAST_START = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
# A task of a second is overtaken, whatever the others take.
SPECULATION = {"spark.speculation": "true", "spark.speculation.task.duration.threshold": "1s"}
# An executor is lost that is silent for so long. Others ask it for what it has of a shuffle only once, not again and again for a minute.
SILENT = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "1s",
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.maxRetries": "0",
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, faults):
    # Two hosts, so that two attempts of one task can run.
    given = ("127.0.0.1", "127.0.0.2"), {"PAIRING_FAULT_DIR": str(faults.folder)}
    with LocalCluster(tmp_path_factory.mktemp("cluster"), free_port(), *given) as running:
        yield running


class Attacked(NamedTuple):
    """Jobs of a pipeline on the cluster, and the same pipeline in a folder, which nothing disturbs."""

    both: Both
    jobs: Jobs

    def stand(self, job: str, point: str):
        """Starts the job, and returns it with the worker that stands at the point."""
        running = self.jobs.start_and_stand(job, point)
        return running, psutil.Process(self.jobs.faults.who(point))

    def files(self) -> dict[str, datetime]:
        """The data files of the stored tables, those of no commit, too: name -> when it was written last."""
        return data_files(self.both.stored.root, self.jobs.pipeline)

    def visible(self) -> set[str]:
        """Those that the newest versions of the tables have."""
        tables = {name.partition("/")[0] for name in self.files()}
        opened = {table: table_of(self.both.stored.root, self.jobs.pipeline, table) for table in tables}
        return {f"{table}/{uri.rpartition('/')[2]}" for table, each in opened.items() for uri in each.file_uris()}

    def finish(self) -> None:
        """Does the batch in the folder, and compares everything."""
        run_all(self.both.foldered)
        assert self.both.differences() == []


@pytest.fixture
def attacked(request, s3, cluster, faults, spark, broker, tmp_path, monkeypatch):
    # Each test has topics of its own on the one broker.
    name, settings = request.node.originalname.split("_")[1], getattr(request, "param", {})
    both = both_on(s3, name, spark, broker, tmp_path, monkeypatch)
    with LocalSpark(tmp_path / "spark", free_port(), cluster.master, FAST_START | settings) as server:
        jobs = Jobs(both.file, both.stored.pipeline, both.bootstrap, server.url, both.stored.root, faults, by_spark=True)
        yield Attacked(both, jobs)


def executors(cluster):
    """The Python workers of the cluster's executors."""
    named = {process: " ".join(process.cmdline()) for process in processes_of(cluster.folder)}
    return [process for process, command in named.items() if "pyspark.daemon" in command]


def test_jobs_on_a_cluster_do_what_they_do_in_one_process(s3, cluster, spark, broker, tmp_path, monkeypatch):
    """By a Spark Connect server on the cluster."""
    pair = both_on(s3, "cluster", spark, broker, tmp_path, monkeypatch)
    with LocalSpark(tmp_path / "spark", free_port(), cluster.master, FAST_START) as server:
        jobs = Jobs(pair.file, pair.stored.pipeline, pair.bootstrap, server.url, pair.stored.root, by_spark=True)
        pair.portions.send()
        for job in JOBS:
            jobs.run(job)
        found = executors(cluster)
        # The project is not on their path: its code came with the session.
        assert found
        for process in found:
            assert str(ROOT) not in process.environ().get("PYTHONPATH", "").split(os.pathsep)
            assert not process.exe().startswith(str(ROOT / ".venv"))
    equal_to_the_folder(pair)


@pytest.mark.long
def test_submitted_jobs_do_what_they_do_in_one_process(s3, cluster, spark, broker, tmp_path, monkeypatch):
    """By spark-submit in client mode, each with a session of its own."""
    pair = both_on(s3, "submitted", spark, broker, tmp_path, monkeypatch)
    pair.portions.send()
    for job in JOBS:
        submit(job, pair, cluster)
    equal_to_the_folder(pair)


def equal_to_the_folder(pair):
    """Does the batch in the folder, and compares everything."""
    run_all(pair.foldered)
    assert pair.differences() == []
    assert rows(pair.stored.root, pair.stored.pipeline, REJECTED).total() >= 5


def submit(job, pair, cluster):
    """Runs a job to its good end by spark-submit."""
    running = start(job, pair, cluster)
    told, _ = running.communicate(timeout=180)
    assert running.returncode == 0, told


def start(job, pair, cluster):
    """spark-submit as an operator runs it, with executors on the cluster; a process group of its own."""
    environment = project_environment() | {
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": pair.bootstrap}),
        "PAIRING_WAREHOUSE": pair.stored.root,
        FEW_VARIABLE: "0",
    }
    environment.pop(REMOTE_VARIABLE, None)
    options = ["--master", cluster.master, "--conf", "spark.pyspark.python=python3", "--conf", "spark.executor.memory=1g"]
    command = ["spark-submit", *options, f"spark_jobs/{job}.py", "--pipeline", str(pair.file)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def above(worker, program):
    """The program that started, or had started, a Python worker."""
    return next(each for each in worker.parents() if program in " ".join(each.cmdline()))


def kill_executor(worker):
    """kill -9 of the worker's executor, with all that it started."""
    executor = above(worker, "CoarseGrainedExecutorBackend")
    for process in [executor, *executor.children(recursive=True)]:
        process.kill()


def kill_machine(worker):
    """kill -9 of the executor of a Python worker, and of the program that would start another one there."""
    daemon, executor = above(worker, "deploy.worker.Worker"), above(worker, "CoarseGrainedExecutorBackend")
    for process in [daemon, executor, *executor.children(recursive=True)]:
        process.kill()


@pytest.mark.long
def test_executors_are_killed_at_every_point_and_nothing_differs(attacked):
    """Spark tries the task again, elsewhere; what the dead attempt left is never visible."""
    for points in BATCHES:
        attacked.both.portions.send()
        for job in JOBS:
            if job not in points:
                attacked.jobs.run(job)
                continue
            running, worker = attacked.stand(job, points[job])
            kill_executor(worker)
            assert running.wait() == 0, running.told()
        attacked.finish()


@pytest.mark.long
@pytest.mark.parametrize("attacked", [SPECULATION], indirect=True)
def test_tasks_are_overtaken_at_every_point_and_nothing_differs(attacked):
    """A second attempt is done while the first stands; the first goes on when the second has taken its place."""
    for points in BATCHES:
        attacked.both.portions.send()
        for job in JOBS:
            if job not in points:
                attacked.jobs.run(job)
                continue
            running, worker = attacked.stand(job, points[job])
            if job == "publish_compounds":
                attacked.jobs.faults.arm("publisher_fenced")
                wait_for(lambda: attacked.jobs.faults.is_reached("publisher_fenced"), "a second attempt to fence the first")
                attacked.jobs.faults.disarm("publisher_fenced")
                # The first now learns that it was fenced, before the second has sent anything.
                attacked.jobs.faults.release(points[job])
                attacked.jobs.faults.release("publisher_fenced")
            assert running.wait() == 0, running.told()
            attacked.jobs.faults.release(points[job])
            wait_for(lambda worker=worker: not worker.is_running(), "the first attempt to end")
        attacked.finish()


@pytest.mark.long
@pytest.mark.parametrize("attacked", [SILENT], indirect=True)
def test_stragglers_write_files_after_their_job_and_nobody_sees_them(attacked):
    """Their files have names of their own, so none takes the place of a visible one. Nor does a later batch see them."""
    both, late = attacked.both, set()
    both.portions.send()
    for job, point in (("land_events", "records_read"), ("pair_events", "paired_file_begun")):
        with left_behind(attacked, job, point) as worker:
            before = attacked.files()
            worker.resume()
            wait_for(lambda before=before: attacked.files() != before, "a late file")
        late |= {name for name, _ in attacked.files().items() - before.items()}
    assert late.isdisjoint(attacked.visible())
    for work in (land, pair_events.main):
        work(both.foldered)
    both.portions.send()
    both.run(run_all)
    assert late.isdisjoint(attacked.visible())
    assert both.differences() == []


@pytest.mark.long
@pytest.mark.parametrize("attacked", [SILENT], indirect=True)
def test_transactions_of_stragglers_are_fenced_after_their_job_and_nothing_differs(attacked):
    both, faults = attacked.both, attacked.jobs.faults

    def is_committed():
        return faults.is_reached("transaction_committed")

    for point in ("transaction_all_sent", "transaction_offsets_sent"):
        both.portions.send()
        both.run(land, pair_events.main)
        with left_behind(attacked, "publish_compounds", point) as worker:
            before = clients(worker)
            faults.arm("transaction_committed")
            worker.resume()
            # At its end a publisher closes its consumer.
            wait_for(
                lambda seen=(worker, before): is_committed() or clients(seen[0]) < seen[1], "the end of the late publisher"
            )
            assert not is_committed()
            faults.disarm("transaction_committed")
        publish_compounds.main(both.foldered)
        both.run(report_quality.main)
        assert both.differences() == []


@contextmanager
def left_behind(attacked, job, point):
    """The worker of a task that stands at the point with its whole machine, when others have done the task and the job is over.

    It goes on when it is resumed. Its executor, which would end it, stands until it is killed after the block.
    """
    running, worker = attacked.stand(job, point)
    executor, daemon = above(worker, "CoarseGrainedExecutorBackend"), above(worker, "deploy.worker.Worker")
    for process in (daemon, executor, worker):
        process.suspend()
    try:
        # A task of another machine may have come to the point as well.
        attacked.jobs.faults.release(point)
        assert running.wait(300) == 0, running.told()
        yield worker
    finally:
        daemon.resume()
        for process in [executor, *executor.children(recursive=True)]:
            process.kill()
    wait_for(lambda: not executor.is_running(), "the executor to end")


def clients(worker):
    """How many threads of this name the Kafka clients of a process have. Those of a client that is closed are gone."""
    return [file.read_text() for file in Path(f"/proc/{worker.pid}/task").glob("*/comm")].count("rdk:main\n")


@pytest.mark.long
def test_workers_die_and_the_next_job_says_so(attacked, cluster):
    """The other worker does the work of the first. Without any, landing nothing ends well, and landing records says what is wrong."""
    attacked.both.portions.send()
    running, worker = attacked.stand("land_events", "raw_file_complete")
    kill_machine(worker)
    assert running.wait() == 0, running.told()
    for job in JOBS[1:]:
        attacked.jobs.run(job)
    attacked.finish()

    kill_machine(executors(cluster)[0])
    attacked.jobs.run("land_events")
    attacked.both.portions.send()
    attacked.jobs.environment[WITHIN_VARIABLE] = "2"
    running = attacked.jobs.start("land_events")
    assert running.wait() == 1
    assert running.told().splitlines()[-1].startswith(f"error: no executor of {cluster.master} has taken a task for 2 s: ")

    cluster.start()


@pytest.mark.long
def test_executors_end_with_a_driver_that_was_killed(s3, cluster, faults, spark, broker, tmp_path, monkeypatch):
    """kill -9 of spark-submit in client mode; the next run waits for nothing."""
    both = both_on(s3, "driverless", spark, broker, tmp_path, monkeypatch)
    both.portions.send()
    for job, point in (
        ("land_events", "raw_file_complete"),
        ("pair_events", "paired_files_complete"),
        ("publish_compounds", "transaction_half_sent"),
    ):
        faults.arm(point)
        driver = start(job, both, cluster)
        wait_for(lambda point=point: faults.is_reached(point), f"{job} to come to {point}")
        faults.disarm(point)
        worker = psutil.Process(faults.who(point))
        executor = above(worker, "CoarseGrainedExecutorBackend")
        os.killpg(driver.pid, signal.SIGKILL)
        submit(job, both, cluster)
        wait_for(lambda executor=executor: not executor.is_running(), "the executor to end")
        wait_for(lambda worker=worker: not worker.is_running(), "its Python worker to end")
    submit("report_quality", both, cluster)
    # The second landing has finished the first batch, and begun one without records.
    land(both.foldered)
    run_all(both.foldered)
    assert both.differences() == []


@pytest.mark.long
def test_a_master_that_does_not_answer_is_named(tmp_path):
    # Spark gives up after a minute.
    master = f"spark://127.0.0.1:{free_port()}"
    job = ["spark-submit", f"--master={master}", "spark_jobs/pair_events.py", "--pipeline=include/pipelines/calls.yaml"]
    environment = project_environment() | {"PAIRING_KAFKA": "{}", "PAIRING_WAREHOUSE": str(tmp_path / "warehouse")}
    done = subprocess.run(job, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    # spark-submit hands the job's standard error over to its own output.
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error: ")]
    assert said == [f"error: no Spark master answers at {master}: start it, or correct spark_default"]
    assert "Traceback" not in done.stdout
