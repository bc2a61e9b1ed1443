"""An input topic that was deleted and created again is known by its id."""

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.topic_ids import check_ids
from spark_jobs.tables.records import TopicIds
from tests.helpers.timeline import CALLS

LEFT, RIGHT = (side.topic for side in CALLS.sides)
OLD, NEW, OTHER = "old_left", "new_left", "right"
FIRST = TopicIds(OLD, OTHER)


def now(left, right):
    return TopicsNow(0, {}, {}, {LEFT: left, RIGHT: right})


def test_the_first_plan_notes_the_ids_and_later_ones_keep_them():
    assert check_ids(CALLS, None, now(OLD, OTHER)) == FIRST
    assert check_ids(CALLS, FIRST, now(OLD, OTHER)) == FIRST


@pytest.mark.parametrize(
    ("left", "right", "refused"),
    [(NEW, OTHER, (LEFT, OLD, NEW)), (OLD, OLD, (RIGHT, OTHER, OLD)), (OTHER, OLD, (LEFT, OLD, OTHER))],
    ids=["left", "right", "exchanged"],
)
def test_another_id_is_refused_with_both(left, right, refused):
    topic, before, after = refused
    line = rf"input topic {topic} was deleted and created again \(id {before}, now {after}\): .* start a new one"
    with pytest.raises(NeedsOperator, match=line):
        check_ids(CALLS, FIRST, now(left, right))
