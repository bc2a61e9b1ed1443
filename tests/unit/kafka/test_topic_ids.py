"""An input topic that was deleted and created again is told by its id."""

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow, topic_id
from spark_jobs.kafka.topic_ids import checked_ids, known_ids
from tests.helpers.timeline import CALLS

LEFT, RIGHT = (side.topic for side in CALLS.sides)
OLD, NEW, OTHER = (1, -5), (1, 5), (3, 0)
FIRST = {"left_topic_high": 1, "left_topic_low": -5, "right_topic_high": 3, "right_topic_low": 0}


def now(left, right):
    return TopicsNow(0, {}, {}, {LEFT: left, RIGHT: right})


def test_the_first_plan_notes_the_ids_and_later_ones_keep_them():
    assert checked_ids(CALLS, {}, now(OLD, OTHER)) == FIRST
    assert checked_ids(CALLS, {"open_before": 9, **FIRST}, now(OLD, OTHER)) == FIRST
    assert known_ids({"open_before": 9, **FIRST}) == FIRST


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [(NEW, OTHER, (LEFT, OLD, NEW)), (OLD, OLD, (RIGHT, OTHER, OLD)), ((2, -5), OTHER, (LEFT, OLD, (2, -5)))],
    ids=["left", "right", "high half"],
)
def test_another_id_is_refused_with_both(left, right, told):
    topic, before, after = told
    line = rf"input topic {topic} was deleted and created again \(id {topic_id(*before)}, now {topic_id(*after)}\): .* start a new one"
    with pytest.raises(NeedsOperator, match=line):
        checked_ids(CALLS, FIRST, now(left, right))
