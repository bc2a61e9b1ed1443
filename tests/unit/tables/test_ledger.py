"""How far each step is: asked of the newest batches first, further back only for a step that lags behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REMOVED_RAW, REPORTED, STEPS, OffsetRange
from spark_jobs.tables.records import REPLAY, TopicIds
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS


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


def test_the_wall_time_of_each_batch_is_that_of_its_plan():
    rows = [(1, PLANNED, 1_000), (1, LANDED, 9_000), (2, PLANNED, 900)]
    known = [dict(zip(("batch_id", "step", "wall_time"), row, strict=True)) for row in rows]
    ledger = Ledger(SimpleNamespace(small_rows=lambda table, first, columns: known))
    assert ledger.wall_times() == {1: 1_000, 2: 900}


def test_ids_are_of_the_topics_that_were_read_whatever_the_settings_name_by_now():
    """A replay may be planned with a topic that no batch has read yet; the ids of its plan are those of the last live batch."""
    grown = replace(CALLS, left=replace(CALLS.left, topic=("aaa", CALLS.left.topic)))
    offsets = tuple(OffsetRange(side.topic, 0, 5, 5, 5) for side in CALLS.sides)
    row = ledger_row(2, PLANNED, REPLAY, grown, offsets=offsets, topic_ids=TopicIds("1", "2"))
    assert row.topics == (("aaa", CALLS.left.topic), (CALLS.right.topic,))
    assert row.topic_ids == {CALLS.left.topic: "1", CALLS.right.topic: "2"}
