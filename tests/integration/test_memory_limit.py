"""A job that takes more memory than its task may have, by a limit of the kernel, as a container has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from include.config.project import REMOTE_VARIABLE
from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.tables import Tables
from tests.conftest import yaml_of
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.reading import table_rows

pytestmark = [pytest.mark.integration, pytest.mark.long]

_GROUPS = Path("/sys/fs/cgroup/memory")
_RECORDS, _BYTES = 600, 450_000
# As a task: it has imported what jobs need, and forks one. The limit leaves it room for a part of the records.
TASK = """
import sys
from pathlib import Path
from include.airflow.forked_jobs import ForkedJob, import_for_jobs

group = Path(sys.argv[1])
import_for_jobs()
(group / "cgroup.procs").write_text("0")
(group / "memory.limit_in_bytes").write_text("150000000")
with open(sys.argv[2], "w") as alive:
    status = ForkedJob(sys.argv[3], sys.argv[4:], alive).wait(print)
print("status", status)
"""


@pytest.fixture
def group():
    place = _GROUPS / f"pairing-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"the kernel's memory limits cannot be set here (cgroup v1, as root): {error}")
    yield place
    place.rmdir()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LocalSpark(tmp_path_factory.mktemp("spark-server"), free_port()) as running:
        yield running


def test_it_is_killed_alone_and_the_next_try_continues(group, server, broker, pipeline, send, tmp_path):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(_RECORDS):
        send("a" if number % 2 else "m", f"u{number // 2}", ago, "x" * _BYTES)
    settings, root = yaml_of(pipeline, tmp_path), tmp_path / "warehouse"
    environment = project_environment() | {
        REMOTE_VARIABLE: server.url,
        "PAIRING_WAREHOUSE": str(root),
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap}),
    }
    command = [
        sys.executable,
        "-c",
        TASK,
        str(group),
        str(tmp_path / "task.lock"),
        "land_events",
        "--pipeline",
        str(settings),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "status -9", done.stdout
    tables = Tables(str(root), pipeline)
    assert [row.step for row in Ledger(tables).rows(1)] == [PLANNED]

    jobs = Jobs(settings, pipeline, broker.bootstrap, server.url, root)
    for job in JOBS:
        jobs.run(job)
    # As they were planned; the next batch is empty.
    for table in ("raw_analytics", "raw_metrics"):
        assert [row["batch_id"] for row in table_rows(tables, table)] == [1] * (_RECORDS // 2)
    assert [row["kind"] for row in table_rows(tables, "compound_events")] == ["pair"] * (_RECORDS // 2)
