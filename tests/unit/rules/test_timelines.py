"""The rules as timelines, each boundary with its neighbour."""

import pytest

from tests.helpers.timeline import Batch, play, records, story
from tests.helpers.timeline_cases import FAR, GROUPS, TIMELINES

every_timeline = pytest.mark.parametrize("case", TIMELINES.values(), ids=TIMELINES)


def test_no_name_stands_twice():
    assert len(TIMELINES) == sum(len(group) for group in GROUPS)


@every_timeline
def test_timeline(case, tmp_path):
    assert story(tmp_path, [Batch(*batch) for batch in case.batches], case.pipeline) == case.told


@every_timeline
def test_no_event_lost(case, tmp_path):
    """Whatever the timeline expects: events sent = events told, those that a compound swallowed included."""
    batches = [Batch(*batch) for batch in case.batches]
    rows = play(tmp_path, batches, case.pipeline)
    told = sum(2 if row.get("kind") == "pair" else 1 for row in rows if row["table"] != "batch_ledger")
    collapsed = sum(row["collapsed"] for row in rows if row["table"] == "batch_ledger")
    assert told + collapsed == sum(len(mine) for mine, _ in records(batches))


@pytest.mark.parametrize(
    ("events", "dropped"),
    [("a0=x a0=x", "analyticsTopic-0-1"), ("a0@1=x a0@0=x", "analyticsTopic-1-0")],
    ids=["the first offset stays", "the first partition stays"],
)
def test_which_duplicate_is_dropped(events, dropped, tmp_path):
    rows = play(tmp_path, [Batch(events, FAR)])
    assert [row["source"] for row in rows if row["table"] == "rejected_events"] == [dropped]
