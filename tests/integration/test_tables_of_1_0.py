"""Tables that version 1.0 wrote are read by this one, row by row and by its commands (tests/helpers/stored_tables.py)."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from include.config.pipeline import Pipeline
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.changes.plan import plan_changes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.maintenance.upkeep import maintain_tables
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, STEPS
from spark_jobs.tables.records import LivePlan, ReplayPlan, RewindPlan
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, schemas
from spark_jobs.tables.table_format import FORMAT
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.stored_tables import FOLDER, NAME
from tests.helpers.timeless_traffic import timeless

pytestmark = pytest.mark.integration


@pytest.fixture
def stored(tmp_path) -> tuple[str, Pipeline]:
    """A copy, and the pipeline whose tables they are."""
    pipeline, _ = timeless(NAME, "stored", tmp_path / "jobs")
    shutil.copytree(FOLDER, tmp_path / "warehouse")
    return str(tmp_path / "warehouse"), pipeline


def test_every_row_of_the_ledger_is_understood(stored):
    root, pipeline = stored
    rows = Ledger(Tables(root, pipeline)).rows(1)
    kinds = {row.batch_id: type(row.plan) for row in rows if row.step == PLANNED}
    assert Counter(kinds.values()) == {LivePlan: 4, ReplayPlan: 1, RewindPlan: 1}
    live = [batch_id for batch_id, kind in kinds.items() if kind is LivePlan]
    assert {row.step for row in rows if row.batch_id in live} >= set(STEPS)
    paired = [row.paired for row in rows if row.step == PAIRED and row.batch_id in live]
    assert all(
        min(sum(getattr(each, name) for each in paired) for name in ("pair", "left_only", "duplicate", "late")) for _ in [0]
    )
    assert all(row.output_state.ends for row in rows if row.step == "published")


def test_every_table_is_read_with_its_columns(stored, spark):
    root, pipeline = stored
    warehouse = Warehouse(root, pipeline, spark)
    for table in schemas(pipeline):
        assert warehouse.read(table).count() > 0, table
    counted = {row["op"]: row["count"] for row in warehouse.read(COMPOUNDS).groupBy("op").count().collect()}
    assert counted["upsert"] > 20 and counted["retract"] > 0


def test_they_are_maintained(stored, spark):
    root, pipeline = stored
    warehouse = Warehouse(root, pipeline, spark)
    before = sorted(tuple(row.values()) for row in warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step"]))
    maintain_tables(warehouse)
    assert sorted(tuple(row.values()) for row in warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step"])) == before
    assert Path(root).is_dir()


@pytest.mark.parametrize("table", [LEDGER, COMPOUNDS])
def test_a_newer_format_is_refused_by_every_job_before_it_does_anything(table, stored, spark):
    """Maintenance opens every table first. The others go by the ledger, which a version marks before it writes anything of its format."""
    root, pipeline = stored
    warehouse = Warehouse(root, pipeline, spark)
    newer = {"eventPairing.format": str(FORMAT + 1), "eventPairing.version": "2.0.0"}
    DeltaTable(warehouse.path(table)).alter.set_table_properties(newer, raise_if_not_exists=False)
    before = {each: DeltaTable(warehouse.path(each)).version() for each in schemas(pipeline)}
    jobs = [partial(maintain_tables, warehouse)]
    if table == LEDGER:
        jobs += [partial(job, warehouse) for job in (pair_events.main, publish_compounds.main, report_quality.main)]
        jobs += [
            partial(land_events.main, warehouse, 1_000_000),
            partial(reconcile.main, warehouse),
            partial(rewind.main, warehouse, 2),
            partial(plan_changes, root, pipeline),
        ]
    for job in jobs:
        with pytest.raises(
            NeedsOperator, match=rf"^{warehouse.path(table)} has format {FORMAT + 1}, written by version 2\.0\.0"
        ):
            job()
    assert {each: DeltaTable(warehouse.path(each)).version() for each in schemas(pipeline)} == before
