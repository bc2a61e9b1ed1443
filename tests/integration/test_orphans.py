"""What the report says of orphans, on a timeline of which every number is known."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from spark_jobs import land_events, pair_events, publish_compounds, replay_interval, report_quality
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED
from spark_jobs.tables.records import Window
from tests.helpers.pages import pages_folder
from tests.helpers.reading import table_rows

pytestmark = pytest.mark.integration

HOUR = 3_600_000


def run_all(warehouse):
    land_events.main(warehouse, 1_000_000)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)


def row_of(warehouse, batch_id):
    (row,) = (row for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == batch_id)
    return row


def metrics_of(warehouse, batch_id):
    return dict(row_of(warehouse, batch_id)["metrics"])


def family(warehouse, batch_id, name):
    """Bucket, or field and value, -> number."""
    rows = [row for row in row_of(warehouse, batch_id)["breakdowns"] if row["family"] == name]
    return {row["bucket"] if row["field"] is None else (row["field"], row["value"]): row["number"] for row in rows}


@pytest.fixture
def earlier(warehouse):
    """Eight batches before, in which no event stayed alone and the clocks were apart."""
    metrics = {
        "live": 1.0,
        "compounds": 50.0,
        "corrections": 0.0,
        "orphan_ratio": 0.0,
        "skew_median": -5_000.0,
        "wall_time": time.time() * 1000,
    }
    now = datetime.now(UTC)
    row = {"judged_at": now, "success": True, "metrics": metrics, "breakdowns": []}
    rows = [row | {"batch_id": number} for number in range(-7, 1)]
    commit_rows(warehouse, "quality_metrics", rows, "quality_metrics", 0)


@pytest.mark.long
def test_every_number_of_a_known_timeline(warehouse, send, earlier):
    now = time.time_ns() // 1_000_000
    begin = (now // HOUR - 4) * HOUR + 600_000
    for number, apart in enumerate((100, 200, 300, 400)):
        send("a", f"pair{number}", begin, 1)
        send("m", f"pair{number}", begin + apart, 1)
    # Further apart than the gap, and so than the tolerance, which is as long.
    for user, apart in (("near", 75_000), ("further", 75_001), ("far", HOUR)):
        send("a", user, begin, 1)
        send("m", user, begin + apart, 1)
    for after in (0, 200_000, 400_000):
        send("a", "hot", begin + after, 1)
    run_all(warehouse)
    one, paired = metrics_of(warehouse, 1), Ledger(warehouse).rows(1, 1)[2]
    assert paired.step == PAIRED
    counts = {name: one[name] for name in ("pair", "left_only", "right_only", "compounds", "live")}
    assert counts == {"pair": 4, "left_only": 6, "right_only": 3, "compounds": 13, "live": 1}
    assert one["orphan_ratio_left"] == 6 / 10 and one["orphan_ratio_right"] == 3 / 7
    assert family(warehouse, 1, "distance") == {100: 1, 250: 1, 500: 2}
    assert family(warehouse, 1, "miss_left") == {75_000: 1, 90_000: 1, 3_600_000: 1, None: 3}
    assert family(warehouse, 1, "miss_right") == {75_000: 1, 90_000: 1, 3_600_000: 1}
    first, second = begin - 600_000, begin - 600_000 + HOUR
    assert family(warehouse, 1, "hour_left_only") == {first: 6}
    assert family(warehouse, 1, "hour_right_only") == {first: 2, second: 1}
    assert family(warehouse, 1, "hour_pair") == {first: 4}
    assert sum(family(warehouse, 1, "partition_left_only").values()) == 6
    assert [one["orphan_age_max_left"], one["orphan_age_median_left"]] == [paired.clock - begin] * 2
    assert one["orphan_age_max_right"] == paired.clock - begin - 75_000
    assert family(warehouse, 1, "top_user") == {("user1", "hot"): 3, ("user2", "v"): 9}
    assert (family(warehouse, 1, "users"), one["top_user_share"]) == ({("user1", None): 4, ("user2", None): 1}, 1)
    assert [one[name] for name in ("skew_q1", "skew_median", "skew_q3")] == [100, 200, 300]
    assert (one["comparable_batches"], one["orphan_ratio_median"]) == (8, 0)
    assert one["orphan_ratio_deviation"] > 6 and (one["skew_before"], one["skew_drift"]) == (-5_000, 5_200)
    page = (pages_folder(warehouse.root, warehouse.pipeline.name) / "batch-1.html").read_text()
    assert (
        page.count('<td class="warning">warning</td>') == 2 and "T = 90 s (and gap = 90 s) would pair up to 4 of 9." in page
    )

    # One that an orphan has waited for, one that nobody has.
    send("m", "hot", begin + 30_000, 1)
    send("a", "nobody", begin, 1)
    run_all(warehouse)
    two = metrics_of(warehouse, 2)
    assert [two[name] for name in ("late_left", "late_right", "late_healable")] == [1, 1, 1]
    assert family(warehouse, 2, "grace_needed") == {21_600_000: 2}
    assert two["orphan_ratio"] == 0 and "orphan_age_max_left" not in two and "skew_median" not in two
    assert "orphan_ratio_deviation" not in two

    replay_interval.main(warehouse, Window(begin, begin + HOUR))
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    three = metrics_of(warehouse, 3)
    assert [three[name] for name in ("live", "healed_left", "healed_right", "corrections")] == [0, 1, 0, 2]
    assert not family(warehouse, 3, "miss_left") and "comparable_batches" not in three
    assert (three["due_on_topic"], three["on_topic"]) == (2, 2)
