"""A story of which messages, outcomes or compounds were removed for their age says so, and does not accuse the tables."""

from __future__ import annotations

import pytest

from spark_jobs.story.from_tables import explain
from spark_jobs.story.history import UnknownKey
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, REMOVED_COMPOUNDS, REMOVED_RAW, REMOVED_REJECTED
from tests.helpers.ledger_rows import AT, counts
from tests.helpers.reading import table_rows
from tests.helpers.story_tables import played, record, remove_up_to

RAW = ("raw_analytics", "raw_metrics")


def remove(warehouse, step, until, *tables):
    """As maintenance does it, up to this batch."""
    times = [
        row["ts"] for table in tables if table in RAW for row in table_rows(warehouse, table) if row["batch_id"] <= until
    ]
    until_ts = {"removed_until": max(times)} if times else {}
    base = next(row for row in Ledger(warehouse).rows(until, until) if row.step == PAIRED)
    record(warehouse, base.next_step(step, AT, counts(step, **until_ts)))
    for table in tables:
        remove_up_to(warehouse, table, until)


@pytest.fixture
def warehouse(tmp_path):
    # x is paired over two batches, y is of the first alone, z of the third.
    return played(tmp_path, [("a0:x a50:y", 100), ("m60:x", 2_000), ("a3000:z m3050:z", 9_000)])


def test_nothing_is_said_where_nothing_went(warehouse):
    assert not [line for line in explain(warehouse, ("x", "v")) if "removed" in line]


def test_what_went_is_said_and_the_rest_is_told(warehouse):
    remove(warehouse, REMOVED_RAW, 2, *RAW)
    lines = list(explain(warehouse, ("z", "v")))
    assert lines[1] == "removed for their age, so not in this story: messages up to batch 2"
    assert not [line for line in lines if "otherwise" in line or "the tables say" in line]
    assert any(line.startswith("compound ") for line in lines)
    # Compounds are still there without their messages.
    assert any(line.startswith("compound ") for line in explain(warehouse, ("x", "v")))


def test_a_partner_that_went_is_no_contradiction(warehouse):
    remove(warehouse, REMOVED_RAW, 1, *RAW)
    lines = list(explain(warehouse, ("x", "v")))
    said = [line for line in lines if "the tables say" in line]
    assert said == [
        "  the tables say: pair in batch 2; played without messages that were removed for their age, so this may come of them"
    ]


def test_a_key_of_which_all_went_says_why_it_is_unknown(warehouse):
    remove(warehouse, REMOVED_RAW, 2, *RAW)
    remove(warehouse, REMOVED_REJECTED, 2, "rejected_events")
    remove(warehouse, REMOVED_COMPOUNDS, 2, "compound_events")
    words = r"no message of .*y.* removed for their age, so not in this story: messages up to batch 2, rejected events up to batch 2, compounds up to batch 2"
    with pytest.raises(UnknownKey, match=words):
        list(explain(warehouse, ("y", "v")))
    with pytest.raises(UnknownKey, match=r"in the interval .*; removed for their age, so not in this story"):
        list(explain(warehouse, ("y", "v"), 50))
