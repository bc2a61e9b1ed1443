"""kill -9 at every fault point of every job, then the job again: in the end as if nothing had happened, row by row.

In a folder Spark's workers do the work of the jobs that are killed, on a store these jobs' own workers. Those that nothing disturbs do it themselves.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from include.local.machine import ROOT
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.tables.schemas import raw_table
from tests.helpers.comparing import differences, records, rows
from tests.helpers.job_processes import JOBS, Faults, Jobs, wait_for
from tests.helpers.stores import ON_A_STORE_IF_POSSIBLE, root_of
from tests.helpers.timeless_traffic import Portions, timeless

pytestmark = pytest.mark.integration

LINES = 3
BESIDE = "before_raw_left"
OF_ALL_CORES = ("records_read", "raw_file_complete")
BEFORE_THE_PLAN = ("before_ledger_created", "after_ledger_created", "before_planned")


@pytest.fixture
def faults(tmp_path) -> Faults:
    (tmp_path / "faults").mkdir()
    return Faults(tmp_path / "faults")


@pytest.fixture
def server(faults, tmp_path, monkeypatch) -> Iterator[LocalSpark]:
    # The publisher stands still in a worker of the server.
    monkeypatch.setenv("PAIRING_FAULT_DIR", str(faults.folder))
    with LocalSpark(tmp_path / "spark-server", free_port()) as running:
        yield running


@pytest.fixture(params=ON_A_STORE_IF_POSSIBLE)
def root(request, tmp_path, monkeypatch) -> str:
    """The warehouse of the test."""
    return root_of(request, "matrix", tmp_path / "warehouse", monkeypatch)


@contextmanager
def told_after(point: str | None) -> Iterator[None]:
    """Says with a failure which kill was the last one."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"after the kill at {point}")
        raise


def lines() -> list[dict[str, list[str]]]:
    """Every point once, dealt out to runs of the DAG: in each, a job is killed at its points in turn and then comes through.

    So what a kill leaves behind is taken up by a try that dies further down the way, or by one that does not.
    """
    first, *landing = FAULT_POINTS["land_events"]
    dealt = {**FAULT_POINTS, "land_events": landing}
    made = [{job: [*dealt[job][number::LINES]] for job in JOBS} for number in range(LINES)]
    # Only the first run of all comes to this one.
    made[0]["land_events"].insert(0, first)
    return made


def kill_when_the_other_side_is_in(jobs: Jobs) -> None:
    """What the next try finds of the side that is landed beside the point is then no matter of chance."""
    table = raw_table(jobs.pipeline.right)
    before = jobs.version(table)
    standing = jobs.start_and_stand("land_events", BESIDE)
    wait_for(lambda: jobs.version(table) > before, f"{table} to be landed")
    assert standing.kill() == -signal.SIGKILL


def test_every_job_is_killed_at_every_point_and_nothing_differs(root, server, faults, broker, tmp_path):
    # Each place has topics of its own on the one broker.
    place = "on_store" if "://" in root else "in_folder"
    (killed, killed_file), (calm, calm_file) = (
        timeless(f"{name}_{place}", f"matrix_{place}", tmp_path / "jobs") for name in ("killed", "calm")
    )
    on_a_store = "://" in root
    ways = {"by_spark": not on_a_store, "by_workers": on_a_store}
    attacked = Jobs(killed_file, killed, broker.bootstrap, server.url, root, faults, **ways)
    # Workers of the server would stand at the points, too, as those of the other pipeline.
    undisturbed = Jobs(calm_file, calm, broker.bootstrap, server.url, root)
    portions = Portions(broker, killed, calm)
    # Those of maintenance and of erasures have tests of their own.
    assert tuple(FAULT_POINTS) == (*JOBS, "maintain_tables", "erase_key")
    points = []
    for line in lines():
        portions.send()
        planned = False
        for job, at in line.items():
            for point in at:
                if point == BESIDE:
                    kill_when_the_other_side_is_in(attacked)
                else:
                    attacked.kill_at(job, point)
                if point in OF_ALL_CORES:
                    # Its tasks stand on both of the server's cores, and would keep the other pipeline from them.
                    attacked.faults.release(point)
                points.append(point)
                if job == "land_events" and point not in BEFORE_THE_PLAN and not planned:
                    # The same batches: what comes after the plan must not slip into the batch that is finished as planned.
                    undisturbed.run("land_events")
                    portions.send()
                    planned = True
            if job == "land_events":
                beside = undisturbed.start("land_events")
            with told_after(at[-1]):
                attacked.run(job)
        assert beside.wait() == 0, beside.told()
    for job in JOBS[1:]:
        undisturbed.run(job)

    assert Counter(points) == Counter(point for job in JOBS for point in FAULT_POINTS[job])
    assert differences(broker.bootstrap, root, killed, calm) == []
    # What was compared is not nothing, and transactions really were left behind half sent.
    assert len(rows(root, calm, "batch_ledger")) == 6 * portions.sent
    committed, all_there = (
        sum(map(len, records(broker.bootstrap, killed.output_topic, isolation).values()))
        for isolation in ("read_committed", "read_uncommitted")
    )
    assert committed == rows(root, killed, "compound_events").total() > 10 * portions.sent
    assert all_there > committed

    # The command by which an operator would ask the same.
    command = [sys.executable, "-m", "spark_jobs.reconcile", "--pipeline", str(killed_file)]
    asked = subprocess.run(
        command, cwd=ROOT, env=attacked.environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip().endswith(f"that {killed.output_topic} can still have are on it exactly once."), asked.stdout
