"""How far each step is: asked of the newest batches first, further back only for a step that lags behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, PUBLISHED, REMOVED_RAW, REPORTED, STEPS, Ledger
from tests.helpers.timeline import SMALL


class Rows:
    """A ledger in a list; `asked`: how many batches were asked for each time."""

    def __init__(self, *batches):
        self.rows = [{"batch_id": number, "step": step} for number, steps in enumerate(batches, 1) for step in steps]
        self.asked = []

    def newest_rows(self, table, before, columns=None):
        self.asked.append(before)
        newest = max((row["batch_id"] for row in self.rows), default=0)
        return [row for row in self.rows if row["batch_id"] >= newest - before]


ALL = list(STEPS)


@pytest.mark.parametrize(
    ("batches", "ids", "asked"),
    [
        ([], (0, 0, 0, 0, 0), [1]),
        ([[PLANNED]], (1, 0, 0, 0, 0), [1]),
        ([ALL] * 9, (9, 9, 9, 9, 9), [1]),
        ([ALL] * 9 + [[PLANNED, LANDED]], (10, 10, 9, 9, 9), [1]),
        ([ALL] * 9 + [[PLANNED, LANDED, PAIRED]] * 5, (14, 14, 14, 9, 9), [1, 20]),
        ([ALL] * 9 + [[PLANNED, LANDED, PAIRED, PUBLISHED]] * 50, (59, 59, 59, 59, 9), [1, 20, 2**40]),
        # Not every batch comes to it, so nobody looks for it.
        ([[*ALL, REMOVED_RAW]] + [ALL] * 50, (51, 51, 51, 51, 51), [1]),
    ],
)
def test_the_largest_id_of_each_step(batches, ids, asked):
    rows = Rows(*batches)
    found = Ledger(rows).last_ids()
    assert [found[step] for step in (PLANNED, LANDED, PAIRED, PUBLISHED, REPORTED)] == list(ids)
    assert rows.asked == asked


def test_the_largest_timestamp_that_a_batch_can_have_accepted():
    first, second = (replace(SMALL, max_future_ms=each).to_json() for each in (7, 30))
    rows = [
        {"batch_id": 1, "step": PLANNED, "wall_time": 1_000, "config": first},
        {"batch_id": 1, "step": LANDED, "wall_time": 9_000, "config": first},
        # Wall clocks are set back.
        {"batch_id": 2, "step": PLANNED, "wall_time": 900, "config": second},
    ]
    ledger = Ledger(SimpleNamespace(small_rows=lambda table, first, columns: rows))
    assert ledger.latest_times() == {1: 1_030, 2: 930}
    rows.clear()
    assert ledger.latest_times() == {}
