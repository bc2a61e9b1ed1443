"""kill -9 at every fault point of every job, then the job again: in the end as if nothing had happened, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

import pytest

from include.local_process import free_port
from include.local_spark import LocalSpark
from spark_jobs.fault_points import FAULT_POINTS
from tests.integration.comparing import differences, records, rows
from tests.integration.timeless_traffic import Portions, timeless
from tests.job_processes import JOBS, Faults, Jobs

pytestmark = pytest.mark.integration

BEFORE_THE_PLAN = ("after_ledger_created", "before_planned")


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


@contextmanager
def told_after(point: str | None) -> Iterator[None]:
    """Says with a failure which kill was the last one."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"after the kill at {point}")
        raise


def test_every_job_is_killed_at_every_point_and_nothing_differs(server, faults, broker, tmp_path):
    warehouse = tmp_path / "warehouse"
    (killed, killed_file), (calm, calm_file) = (timeless(name, "matrix", tmp_path / "jobs") for name in ("killed", "calm"))
    attacked = Jobs(killed_file, killed, broker.bootstrap, server.url, warehouse, faults)
    undisturbed = Jobs(calm_file, calm, broker.bootstrap, server.url, warehouse)
    portions = Portions(broker, killed, calm)
    assert tuple(FAULT_POINTS) == JOBS
    first, *landing = FAULT_POINTS["land_events"]
    # Only the first run of all comes to this one.
    attacked.kill_at("land_events", first)
    points = [first]
    # One run of the DAG a line, every job killed once at its next point and then tried again.
    for line in zip_longest(landing, *(FAULT_POINTS[job] for job in JOBS[1:])):
        portions.send()
        beside = None
        for job, point in zip(JOBS, line, strict=True):
            if point:
                attacked.kill_at(job, point)
                points.append(point)
            if job == "land_events":
                if point not in BEFORE_THE_PLAN:
                    # The same batches: what comes after the plan must not slip into the batch that is finished as planned.
                    undisturbed.run("land_events")
                    portions.send()
                beside = undisturbed.start("land_events")
            with told_after(point):
                attacked.run(job)
        assert beside is not None and beside.wait() == 0, beside.told()
    for job in JOBS[1:]:
        undisturbed.run(job)

    assert Counter(points) == Counter(point for job in JOBS for point in FAULT_POINTS[job])
    assert differences(broker.bootstrap, warehouse, killed, calm) == []
    # What was compared is not nothing, and transactions really were left behind half sent.
    assert len(rows(warehouse, calm, "batch_ledger")) == 5 * portions.sent
    committed, all_there = (
        sum(map(len, records(broker.bootstrap, killed.output_topic, isolation).values()))
        for isolation in ("read_committed", "read_uncommitted")
    )
    assert committed == rows(warehouse, killed, "compound_events").total() > 10 * portions.sent
    assert all_there > committed
