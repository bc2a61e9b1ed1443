"""Several writers of one pipeline at once, on two Spark servers, so that Delta's own lock within a JVM does not help them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.schemas import schemas
from tests.helpers.comparing import differences, pages, records, rows
from tests.helpers.job_processes import JOBS, Faults, Jobs, Running, wait_for
from tests.helpers.timeless_traffic import MINUTE, START, Portions, timeless

pytestmark = pytest.mark.integration

LAND, PAIR, PUBLISH, REPORT = JOBS
# The time from which the late events of all portions come.
REPLAY = ("replay_interval", f"--window-start={START - 3 * 60 * MINUTE}", f"--window-end={START - 60 * MINUTE}")


class Machines(NamedTuple):
    """Two machines with a Spark each, and the pipeline that runs on one of them undisturbed."""

    one: Jobs
    other: Jobs
    calm: Jobs
    portions: Portions
    bootstrap: str

    def differences(self) -> list[str]:
        return differences(self.bootstrap, self.one.warehouse, self.one.pipeline, self.calm.pipeline)

    def state(self) -> list[object]:
        """Everything there is of the attacked pipeline."""
        warehouse, pipeline = self.one.warehouse, self.one.pipeline
        tables = [(rows(warehouse, pipeline, table), self.one.version(table)) for table in schemas(pipeline)]
        return [tables, records(self.bootstrap, pipeline.output_topic)]


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> Faults:
    return Faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def servers(faults, tmp_path_factory) -> Iterator[list[LocalSpark]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRING_FAULT_DIR", str(faults.folder))
        folder = tmp_path_factory.mktemp("spark-servers")
        with LocalSpark(folder / "one", free_port()) as one, LocalSpark(folder / "other", free_port()) as other:
            yield [one, other]


@pytest.fixture
def machines(servers, faults, broker, tmp_path, request) -> Machines:
    inputs = request.node.name.replace("test_", "")[:20]
    attacked, file = timeless(f"{inputs}_attacked", inputs, tmp_path / "jobs")
    calm, calm_file = timeless(f"{inputs}_calm", inputs, tmp_path / "jobs")
    options = (broker.bootstrap, tmp_path / "warehouse")
    one, other = (Jobs(file, attacked, options[0], server.url, options[1], faults) for server in servers)
    # The other server, for a publisher that stands still may have all of the first one's cores.
    undisturbed = Jobs(calm_file, calm, options[0], servers[1].url, options[1])
    return Machines(one, other, undisturbed, Portions(broker, attacked, calm), broker.bootstrap)


def stand_without_lock(jobs: Jobs, job: str, point: str, *arguments: str) -> Running:
    """A job that stands still, and that no lock keeps apart from others: as where a warehouse has none."""
    standing = jobs.start_and_stand(job, point, *arguments)
    (jobs.warehouse / jobs.pipeline.name / "writer.lock").unlink()
    return standing


@pytest.mark.long
def test_zombies_that_no_lock_keeps_apart_change_nothing(machines, faults):
    one, other, calm, portions = machines.one, machines.other, machines.calm, machines.portions
    zombies: dict[str, Running] = {}

    def zombie(jobs, job, point):
        zombies[point] = stand_without_lock(jobs, job, point)

    portions.send()
    other.run(LAND)
    calm.run(LAND)
    portions.send()
    zombie(one, LAND, "before_planned")
    zombie(one, LAND, "before_raw_left")
    calm.run(LAND)
    portions.send()
    other.run(LAND)
    calm.run(LAND)
    beside = {table: one.version(table) for table in ("compound_events", "rejected_events")}
    zombie(one, PAIR, "before_open_events")
    # The next job of its server would cancel what it is still writing beside that.
    wait_for(lambda: all(one.version(table) > begun for table, begun in beside.items()), "the writes beside it")
    other.run(PAIR)
    zombie(one, PUBLISH, "transaction_half_sent")
    zombie(other, PUBLISH, "before_published")
    other.run(PUBLISH)
    zombie(other, REPORT, "before_quality_metrics")
    # Once more, so that all of them are at a batch that is long over.
    portions.send()
    for job in JOBS:
        other.run(job)
        calm.run(job)

    before = machines.state()
    # The publisher stands in tasks, and may have all the cores that the others of its server need.
    for point, standing in sorted(zombies.items(), key=lambda zombie: zombie[0] != "transaction_half_sent"):
        faults.release(point)
        status = standing.wait()
        assert machines.state() == before, f"{point}: {standing.told()}"
        # Whoever only finds that all is done has not failed; the publisher was pushed aside.
        pushed_aside = point == "transaction_half_sent"
        assert status == int(pushed_aside), f"{point}: {standing.told()}"
        assert not pushed_aside or "fenced" in standing.told()
    assert machines.differences() == []


@pytest.mark.long
def test_live_run_manual_run_and_a_zombie_of_each_together(machines, faults):
    one, other, calm = machines.one, machines.other, machines.calm
    for _ in range(3):
        machines.portions.send()
    # Their Airflow tasks have died. The first has the lock, the second waits for it as everybody after it does.
    zombies = [one.start_and_stand(LAND, "before_raw_left"), other.start(LAND)]
    runs = [one.start(LAND), other.start(LAND)]
    faults.release("before_raw_left")
    for job in PAIR, PUBLISH, REPORT:
        for place, jobs in enumerate((one, other)):
            assert runs[place].wait() == 0, runs[place].told()
            runs[place] = jobs.start(job)
    assert [running.wait() for running in (*zombies, *runs)] == [0] * 4, [running.told() for running in (*zombies, *runs)]
    # A batch by each of the four that landed; the first took all there was.
    for _ in range(4):
        calm.run(LAND)
    for job in PAIR, PUBLISH, REPORT:
        calm.run(job)
    assert machines.differences() == []
    assert len(pages(one.warehouse, one.pipeline)) == 5


@pytest.mark.long
def test_a_replay_and_its_zombie_among_live_runs(machines, faults):
    one, other, calm, portions = machines.one, machines.other, machines.calm, machines.portions
    job, *window = REPLAY
    for _ in range(2):
        portions.send()
        for jobs in (one, calm):
            jobs.run(LAND)
            jobs.run(PAIR)
    # Two replays that no lock keeps apart, one without a plan and one with it, and the live batch that goes on.
    early = stand_without_lock(one, job, "before_planned", *window)
    zombie = stand_without_lock(one, job, "before_compound_events", *window)
    portions.send()
    for each in JOBS:
        other.run(each)
    calm.run(*REPLAY)
    for each in JOBS:
        calm.run(each)
    assert machines.differences() == []
    before = machines.state()
    faults.release("before_compound_events")
    assert (zombie.wait(), machines.state()) == (0, before), zombie.told()
    # Its plan comes too late: that batch_id is the first replay's, which found the same.
    faults.release("before_planned")
    assert (early.wait(), machines.state()) == (0, before), early.told()

    # A live run that stands still with the lock, a replay and another live run that wait for it.
    portions.send()
    first = one.start_and_stand(LAND, "before_raw_left")
    waiting = [other.start(*REPLAY), one.start(LAND)]
    faults.release("before_raw_left")
    assert [running.wait() for running in (first, *waiting)] == [0, 0, 0], [running.told() for running in (first, *waiting)]
    for each in (PAIR, PUBLISH, REPORT):
        other.run(each)
    other.run("reconcile")
    found = [record for partition in records(machines.bootstrap, one.pipeline.output_topic).values() for record in partition]
    assert sum(key.startswith(b"late") for key, _, _ in found) == 4
