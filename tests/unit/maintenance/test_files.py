"""The newest files of the ledger and of the metrics are merged once there are many; rows stay, and what is merged is not rewritten for ever."""

from __future__ import annotations

from datetime import UTC, datetime
from random import random
from uuid import uuid4

import pytest

from include.config.store import warehouse_store
from spark_jobs.maintenance import files
from spark_jobs.maintenance.files import merge_recent
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.delta_log import create
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.schemas import LEDGER, METRICS, declared_schema
from spark_jobs.tables.tables import Tables
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS

MANY = 4


@pytest.fixture
def warehouse(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MANY", MANY)
    for table in (LEDGER, METRICS):
        store = warehouse_store(str(tmp_path)).at(CALLS.name, table)
        create(store, declared_schema(CALLS, table), {"delta.dataSkippingStatsColumns": "batch_id"})
    return Tables(str(tmp_path), CALLS)


def unlike_any_other():
    return {uuid4().hex: random() for _ in range(500)}


def add(warehouse, *numbers, metrics=dict):
    for number in numbers:
        Ledger(warehouse).append(ledger_row(number, PLANNED, pipeline=CALLS))
        row = {"judged_at": datetime.now(UTC), "success": True, "metrics": metrics(), "breakdowns": []}
        commit_rows(warehouse, METRICS, [{"batch_id": number, **row}], METRICS, number)


def numbers(warehouse):
    """The batches of the rows of both tables, and the files of each."""
    found = [sorted(row["batch_id"] for row in warehouse.small_rows(table, 0)) for table in (LEDGER, METRICS)]
    assert found[0] == found[1]
    return found[0], [len(warehouse.files(table)) for table in (LEDGER, METRICS)]


def test_many_become_one_and_few_stay(warehouse):
    add(warehouse, *range(1, MANY))
    merge_recent(warehouse)
    assert numbers(warehouse) == ([1, 2, 3], [MANY - 1] * 2)
    add(warehouse, MANY)
    merge_recent(warehouse)
    assert numbers(warehouse) == ([1, 2, 3, 4], [1, 1])
    # As maintenance marks it, so that a report does not take it for another program's change.
    assert warehouse.newest(LEDGER).history(1)[0]["userMetadata"] == "compaction"


def test_what_is_merged_stays_small(warehouse, monkeypatch):
    def largest():
        return max(each.size for each in warehouse.files(METRICS))

    add(warehouse, 1, metrics=unlike_any_other)
    monkeypatch.setattr(files, "WHOLE_BYTES", full := int(1.1 * MANY * largest()))
    for number in range(2, 3 * MANY):
        add(warehouse, number, metrics=unlike_any_other)
        merge_recent(warehouse)
        assert largest() < full
    found, count = numbers(warehouse)
    assert found == [*range(1, 3 * MANY)] and count[1] < 2 * MANY
