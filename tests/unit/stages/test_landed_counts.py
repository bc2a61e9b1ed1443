"""Counts of what a batch landed (the rows themselves: tests/integration/test_jobs.py)."""

from __future__ import annotations

from types import SimpleNamespace

from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.stages.landed_counts import LandedRows, count


def test_each_side_has_what_came_on_its_own_topics():
    def rows(topic, problem, records):
        return LandedRows(topic, 0, problem, records, 0, records - 1, None, records)

    planned = SimpleNamespace(topics=SideTopics(("a", "b"), ("c",)), batch_id=7, plan=None)
    came = [rows("a", None, 5), rows("b", None, 2), rows("b", "malformed_json", 1), rows("c", None, 4)]
    ranges = [SimpleNamespace(planned=20, lost=0, cut=0, end_offset=20, until_offset=20)]
    found = count(planned, ranges, came, (0, None), 0)
    assert (found.landed_left, found.accepted_left, found.landed_right, found.accepted_right) == (8, 7, 4, 4)
    assert (found.landed, found.accepted, found.offset_gaps, found.malformed_json) == (12, 11, 8, 1)
