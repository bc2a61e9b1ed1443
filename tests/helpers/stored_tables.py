"""Tables as version 1.0 wrote them, kept in tests/fixtures/tables-1.0: every later version has to read them.

    python -m tests.helpers.stored_tables

writes them anew, with a real broker and Spark: live batches with every outcome and rejection, a replay that corrects, a rewind, and tables
that were maintained. Only before a release that may change the format; afterwards the files are never touched again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from include.config.project import ROOT
from include.local.broker import LocalBroker
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.helpers.job_processes import Jobs
from tests.helpers.timeless_traffic import MINUTE, START, Portions, timeless

FOLDER = ROOT / "tests" / "fixtures" / "tables-1.0"
NAME = "calls"
_INPUTS = "stored"


def make(target: Path) -> None:
    """Runs the jobs of six batches on fresh topics and copies the pipeline's tables to `target`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            LocalBroker(folder / "broker", free_port()) as broker,
            LocalSpark(folder / "spark", free_port()) as server,
        ):
            pipeline, file = timeless(NAME, _INPUTS, folder / "jobs")
            jobs = Jobs(file, pipeline, broker.bootstrap, server.url, folder / "warehouse")
            portions = Portions(broker, pipeline)
            for _ in range(3):
                portions.send()
                _batch(jobs)
            jobs.run("replay_interval", f"--window-start={START - 180 * MINUTE}", f"--window-end={START - 60 * MINUTE}")
            _publish(jobs)
            jobs.run("rewind", "--to-batch=2", "--yes")
            _publish(jobs)
            portions.send()
            _batch(jobs)
            jobs.run("maintain_tables")
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder / "warehouse" / NAME, target / NAME, ignore=shutil.ignore_patterns("*.lock", "quality"))


def _batch(jobs: Jobs) -> None:
    jobs.run("land_events")
    jobs.run("pair_events")
    _publish(jobs)


def _publish(jobs: Jobs) -> None:
    jobs.run("publish_compounds")
    jobs.run("report_quality")


if __name__ == "__main__":
    os.chdir(ROOT)
    make(FOLDER)
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{FOLDER.relative_to(ROOT)}: {size:,} bytes")
