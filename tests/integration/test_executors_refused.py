"""Executors that may not do what the driver may: no rights in the store, another Python, a wrong clock. One line says so; nothing is half done."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from include.config.store import OPTIONS_VARIABLE
from include.local.cluster import LocalCluster
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.schemas import LEDGER, raw_table
from tests.helpers.all_stages import land, run_all
from tests.helpers.credential_server import handing_out
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.store_users import OTHER, OTHERS_SECRET
from tests.helpers.stores import data_files, running_store, skip_or_fail
from tests.helpers.two_warehouses import both_on

pytestmark = [pytest.mark.integration, pytest.mark.long]

# What is refused once is refused again; Spark would ask four times.
ONE_TRY = {"spark.task.maxFailures": "1"}
CLOCK = "import time\nright = time.time\ntime.time = lambda: right() - 3600\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), free_port(), ("127.0.0.1",)) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with running_store("s3 with users", tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def both(request, store, spark, broker, tmp_path, monkeypatch):
    return both_on(store, request.node.originalname.split("_")[1], spark, broker, tmp_path, monkeypatch)


def jobs_on(server, both):
    return Jobs(both.file, both.stored.pipeline, both.bootstrap, server.url, both.stored.root, by_spark=True)


def written(warehouse):
    """The data files of all tables but the ledger, whose rows the driver writes."""
    return {name for name in data_files(warehouse.root, warehouse.pipeline) if not name.startswith(f"{LEDGER}/")}


def refusal(jobs, job):
    """The line with which the job ends."""
    running = jobs.start(job)
    assert running.wait(300) == 1, running.told()
    (line,) = [line for line in running.told().splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


def test_rights_that_only_the_driver_has(both, store, cluster, tmp_path):
    """Driver and executors have roles of two users of one real store. Each job is refused, and goes on when the executors' user has the rights."""
    here = {name: value for name, value in store.options.items() if "key" not in name}
    both.portions.send()
    with (
        handing_out(store.user, store.secret, tmp_path / "driver") as drivers,
        handing_out(OTHER, OTHERS_SECRET, tmp_path / "executors") as others,
        LocalSpark(
            tmp_path / "spark",
            free_port(),
            cluster.master,
            ONE_TRY | {"spark.executorEnv.AWS_METADATA_ENDPOINT": others.address},
        ) as server,
    ):
        jobs = jobs_on(server, both)
        jobs.environment |= {OPTIONS_VARIABLE: json.dumps(here), "AWS_METADATA_ENDPOINT": drivers.address}
        for job in JOBS:
            store.allow(False)
            files = written(both.stored)
            line = refusal(jobs, job)
            assert line.startswith(f"the store of {both.stored.root}/"), line
            assert (
                f" cannot be used: the store does not allow it (asked by executor host {socket.gethostname()}): the user needs the rights to get, put, "
                "list and delete objects there; completed steps are kept"
            ) in line, line
            assert written(both.stored) == files
            store.allow(True)
            jobs.run(job)
    # The second landing has finished the first batch, and begun one without records.
    land(both.foldered)
    run_all(both.foldered)
    assert both.differences() == []


def other_python() -> str:
    """A Python of another minor version on this machine; skips the test if there is none, or fails it if REQUIRED is set."""
    folders = [*map(Path, os.get_exec_path()), *Path.home().glob(".pyenv/versions/*/bin")]
    for program in (folder / f"python3.{minor}" for minor in range(sys.version_info.minor + 1, 8, -1) for folder in folders):
        if program.name != f"python3.{sys.version_info.minor}" and program.is_file():
            # What pyenv has on the path may be no Python.
            if subprocess.run([program, "-c", ""], capture_output=True, check=False, timeout=20).returncode == 0:
                return str(program)
    skip_or_fail("this machine has no Python of another minor version: install one")


def test_python_of_another_version(both, cluster, tmp_path):
    program = other_python()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(program)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}"
    settings = {"spark.executorEnv.PATH": path}
    versions = Path(program).name.removeprefix("python"), f"3.{sys.version_info.minor}"
    assert refused_with(settings, both, cluster, tmp_path).startswith(
        "the Python of an executor is {}, that of the driver {}: both must have".format(*versions)
    )


def test_clock_that_is_an_hour_off(both, cluster, tmp_path):
    """Python in the executors tells another time."""
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    line = refused_with({"spark.executorEnv.PYTHONPATH": str(tmp_path)}, both, cluster, tmp_path)
    # The answer took its time.
    assert re.fullmatch(
        r"the clock of executor host \S+ is -3[67]\d\d s off the driver's: a store refuses what is signed .*", line
    )


def refused_with(settings, both, cluster, tmp_path):
    """The line of the first job whose executors have these settings; no table but the ledger has changed, and other executors go on."""
    both.portions.send()
    with LocalSpark(tmp_path / "spark", free_port(), cluster.master, ONE_TRY | settings) as server:
        jobs = jobs_on(server, both)
        line = refusal(jobs, JOBS[0])
    raw = [raw_table(side) for side in jobs.pipeline.sides]
    assert {table: jobs.version(table) for table in raw} == dict.fromkeys(raw, 0)
    assert written(both.stored) == set()
    with LocalSpark(tmp_path / "spark", free_port(), cluster.master) as server:
        jobs_on(server, both).run(JOBS[0])
    return line
