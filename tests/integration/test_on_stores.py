"""All jobs on real object stores: the same rows, commits, messages and pages as in a folder."""

from __future__ import annotations

import pytest

from include.config.store import pages_store
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs import maintain_tables, publish_compounds, replay_interval, report_quality, rewind
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED
from tests.helpers.all_stages import run_all
from tests.helpers.comparing import rows
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.reading import table_rows
from tests.helpers.stores import texts_in
from tests.helpers.timeless_traffic import MINUTE, START
from tests.helpers.two_warehouses import both_on

pytestmark = pytest.mark.integration

# The time from which the late events of all portions come.
LATE = Window(START - 3 * 60 * MINUTE, START - 60 * MINUTE)


@pytest.fixture
def both(spark, broker, tmp_path, monkeypatch):
    return lambda store: both_on(store, store.name, spark, broker, tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ["azure", pytest.param("gs", marks=pytest.mark.long)])
def test_a_batch_on_another_store_is_as_in_a_folder(kind, request, both):
    pair = both(request.getfixturevalue(kind))
    for _ in range(2):
        pair.portions.send()
        pair.run(run_all)
    assert pair.differences() == []
    assert rows(pair.stored.root, pair.stored.pipeline, REJECTED).total() > 5


def test_every_command_does_on_s3_what_it_does_in_a_folder(s3, both, tmp_path):
    """The commands as operators run them, each a process, on S3; beside them the same work in a folder."""
    pair = both(s3)
    stored, root = pair.stored.pipeline, pair.stored.root
    with LocalSpark(tmp_path / "spark", free_port()) as server:
        jobs = Jobs(pair.file, stored, pair.bootstrap, server.url, root, by_spark=True)

        def batch():
            pair.portions.send()
            for job in JOBS:
                jobs.run(job)
            run_all(pair.foldered)

        batch()
        batch()
        jobs.run("replay_interval", f"--window-start={LATE.start}", f"--window-end={LATE.end}")
        replay_interval.main(pair.foldered, LATE)
        for job in ("publish_compounds", "report_quality"):
            jobs.run(job)
        publish_compounds.main(pair.foldered)
        report_quality.main(pair.foldered)
        # Batches 2 and 3 are void; what they published comes again with its next revision, written by workers.
        jobs.run("rewind", "--to-batch=1", "--yes")
        rewind.main(pair.foldered, 1)
        batch()
        jobs.run("maintain_tables")
        maintain_tables.main(pair.foldered)
        jobs.run("reconcile")
        # An operator without Spark asks this one.
        jobs.run("explain_pair", "pair0-0", "v")
        story = (tmp_path / "jobs" / f"{stored.name}-{jobs.started:03}-explain_pair.log").read_text()

    assert pair.differences() == []
    # What was compared is not nothing.
    kinds = [row.kind for row in Ledger(pair.stored).rows(1) if row.step == "planned"]
    assert kinds == ["live", "live", "replay", "rewind", "live"]
    assert rows(root, stored, REJECTED).total() > 15
    assert max(row["revision"] for row in table_rows(pair.stored, COMPOUNDS) if row["batch_id"] > 4) > 1
    # Nothing of it is on this machine.
    assert not (tmp_path / "warehouse" / stored.name).exists()
    assert {"index.html", "trend.html", "charts.js", "metrics.prom"} < texts_in(pages_store(stored.name, root)).keys()
    assert stored.output_topic in story and "revision" in story
    # An older version of open events is still there to be gone back to.
    version = next(row.versions[OPEN] for row in Ledger(pair.stored).rows(1, 1) if row.step == "paired")
    assert pair.stored.read(OPEN, version=version).count() > 0
