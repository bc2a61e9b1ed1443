"""A pipeline as version 1.0 left it in the middle of its work: tables, topics and positions, kept in tests/fixtures/pipeline-1.0.tar.gz.

    python -m tests.helpers.stored_pipeline

wrote it with the code of 1.0 (the last commit before the changelog had anything unreleased), with a real broker and Spark: three live
batches, a replay, a rewind, another batch, then one that is half published and one that is landed and not paired. The archive has the
broker's own files, so topics have their ids and the publisher's group its positions. It is never written again.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from pathlib import Path

from include.config.project import ROOT
from include.local.broker import LocalBroker
from include.local.machine import project_environment
from include.local.process import free_port
from tests.helpers.timeless_traffic import MINUTE, START, Portions, timeless

ARCHIVE = ROOT / "tests" / "fixtures" / "pipeline-1.0.tar.gz"
NAME, INPUTS = "calls", "stored"
# The broker's data and the warehouse, in the archive.
BROKER, WAREHOUSE = "broker", "warehouse"
# Portions of traffic that were sent; each batch that is not a correction has landed one.
PORTIONS = 6


def unpack(folder: Path) -> None:
    """Puts the broker's files into folder/broker, the tables and pages into folder/warehouse."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def make(archive: Path) -> None:
    """Runs the jobs on fresh topics, and packs what they leave."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with LocalBroker(folder / BROKER, free_port()) as broker:
            _work(folder, broker)
        with tarfile.open(archive, "w:gz") as made:
            for name in (f"{BROKER}/data", WAREHOUSE):
                made.add(folder / name, name, filter=_without_locks)


def _work(folder: Path, broker: LocalBroker) -> None:
    os.environ |= project_environment() | {"PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap})}
    # They read the environment when they are imported.
    from include.config.pipeline_file import load_pipeline
    from spark_jobs import pair_events, publish_compounds, replay_interval, report_quality, rewind
    from spark_jobs.spark.session import spark_session
    from spark_jobs.tables.records import Window
    from spark_jobs.tables.warehouse import Warehouse
    from tests.helpers.all_stages import land, run_all
    from tests.integration.test_publishing import publish_only

    pipeline = load_pipeline(timeless(NAME, INPUTS, folder / "jobs")[1])
    portions, spark = Portions(broker, pipeline), spark_session("stored", NAME)
    warehouse = Warehouse(str(folder / WAREHOUSE), pipeline, spark)
    for _ in range(3):
        portions.send()
        run_all(warehouse)
    replay_interval.main(warehouse, Window(START - 180 * MINUTE, START - 60 * MINUTE))
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    rewind.main(warehouse, 2)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    portions.send()
    run_all(warehouse)
    portions.send()
    land(warehouse)
    pair_events.main(warehouse)
    # A publisher that died after the first of its two transactions.
    publish_only(warehouse, 0)
    portions.send()
    land(warehouse)
    spark.stop()
    assert portions.sent == PORTIONS


def _without_locks(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith(".lock") else member


if __name__ == "__main__":
    os.chdir(ROOT)
    make(ARCHIVE)
    print(f"{ARCHIVE.relative_to(ROOT)}: {ARCHIVE.stat().st_size:,} bytes")
