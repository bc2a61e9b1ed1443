"""All jobs on a Spark cluster whose executors share nothing with the driver: the same rows, commits, messages and pages as in one process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from include.config.project import REMOTE_VARIABLE
from include.local.cluster import LocalCluster
from include.local.machine import ROOT, project_environment
from include.local.process import free_port, processes_of
from include.local.spark import LocalSpark
from spark_jobs.tables.schemas import REJECTED
from tests.helpers.all_stages import run_all
from tests.helpers.comparing import rows
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.two_warehouses import both_on

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), free_port()) as running:
        yield running


def executors(cluster):
    """The Python workers of the cluster's executors."""
    named = {process: " ".join(process.cmdline()) for process in processes_of(cluster.folder)}
    return [process for process, command in named.items() if "pyspark.daemon" in command]


def test_jobs_on_a_cluster_do_what_they_do_in_one_process(s3, cluster, spark, broker, tmp_path, monkeypatch):
    """By a Spark Connect server on the cluster, and by spark-submit in client mode."""
    pair = both_on(s3, "cluster", spark, broker, tmp_path, monkeypatch)
    with LocalSpark(tmp_path / "spark", free_port(), cluster.master) as server:
        jobs = Jobs(pair.file, pair.stored.pipeline, pair.bootstrap, server.url, pair.stored.root)
        pair.portions.send()
        for job in JOBS:
            jobs.run(job)
        found = executors(cluster)
        # The project is not on their path: its code came with the session.
        assert found
        for process in found:
            assert str(ROOT) not in process.environ().get("PYTHONPATH", "").split(os.pathsep)
            assert not process.exe().startswith(str(ROOT / ".venv"))
    run_all(pair.foldered)

    pair.portions.send()
    for job in JOBS:
        submit(job, pair, cluster)
    run_all(pair.foldered)

    assert pair.differences() == []
    assert rows(pair.stored.root, pair.stored.pipeline, REJECTED).total() > 5


def submit(job, pair, cluster):
    """spark-submit as an operator runs it, with executors on the cluster."""
    environment = project_environment() | {
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": pair.bootstrap}),
        "PAIRING_WAREHOUSE": pair.stored.root,
    }
    environment.pop(REMOTE_VARIABLE, None)
    options = ["--master", cluster.master, "--conf", "spark.pyspark.python=python3", "--conf", "spark.executor.memory=1g"]
    command = ["spark-submit", *options, f"spark_jobs/{job}.py", "--pipeline", str(pair.file)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
