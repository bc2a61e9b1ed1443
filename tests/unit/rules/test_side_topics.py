"""Topic and partition as one number, which only means something within a batch."""

import pyarrow as pa
import pytest

from spark_jobs.rules.rules import event_schema
from spark_jobs.rules.side_topics import (
    MOST_PARTITIONS,
    MOST_TOPICS,
    SideTopics,
    has_several,
    pack,
    renumbered,
    topics_of,
    unpack,
)
from tests.helpers.timeline import CALLS

ONE, SEVERAL = ("a",), ("a", "b", "c")


def ints(*values):
    return pa.array(values, pa.int32())


def test_of_one_topic_the_number_is_the_partition():
    places = ints(0, 2**31 - 1, None)
    assert pack(ONE, pa.array(["a"] * 3), places) is places
    topic, partition = unpack(ONE, places)
    assert topic.to_pylist() == ["a", "a", None] and partition is places


def test_the_largest_numbers_fit():
    topics = tuple(f"{number:04}" for number in range(MOST_TOPICS))
    packed = pack(topics, pa.array([topics[-1]]), ints(MOST_PARTITIONS - 1))
    assert packed.type == pa.int32() and packed.to_pylist() == [2**31 - 1]
    assert [column.to_pylist() for column in unpack(topics, packed)] == [[topics[-1]], [MOST_PARTITIONS - 1]]


def test_numbers_are_in_the_order_of_the_names():
    packed = pack(SEVERAL, pa.array(["c", "a", "b"]), ints(0, MOST_PARTITIONS - 1, 5)).to_pylist()
    assert sorted(packed) == [packed[1], packed[2], packed[0]]


def test_the_topics_of_a_batch_are_the_named_ones_and_those_that_it_read():
    assert topics_of(CALLS, ["other", "metricsTopic"]) == (("analyticsTopic",), ("metricsTopic",))
    assert not has_several(topics_of(CALLS)) and has_several(SideTopics(ONE, SEVERAL))


@pytest.mark.parametrize("now", [("0", *SEVERAL), ("a", "aa", "b", "c"), SEVERAL], ids=str)
def test_events_keep_their_topics_among_more_of_them(now):
    rows = [
        {"side": side, "partition": pack(topics, pa.array([topic]), ints(7))[0].as_py(), "offset": number}
        for number, (side, topics, topic) in enumerate(
            [(0, SEVERAL, "b"), (1, ONE, "a"), (0, SEVERAL, "c"), (0, SEVERAL, "a")]
        )
    ]
    events = pa.Table.from_pylist(rows, event_schema(CALLS))
    before, after = SideTopics(SEVERAL, ONE), SideTopics(now, ("_", "a"))
    found = {row["offset"]: row for row in renumbered(events, before, after).to_pylist()}
    names = {
        offset: [column[0].as_py() for column in unpack(after[row["side"]], ints(row["partition"]))]
        for offset, row in found.items()
    }
    assert names == {0: ["b", 7], 1: ["a", 7], 2: ["c", 7], 3: ["a", 7]}
