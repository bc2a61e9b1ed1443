"""Which offsets a batch reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.broker.offsets import TopicsNow
from spark_jobs.broker.ranges import plan_ranges, ranges_left
from spark_jobs.problems import NeedsOperator
from spark_jobs.storage.ledger import OffsetRange

A0, A1, M0 = ("a", 0), ("a", 1), ("m", 0)


def now(end, earliest=None):
    return TopicsNow(1_000, dict.fromkeys(end, 0) | (earliest or {}), end, {})


def until(place, offset, max_ts=None):
    return OffsetRange(*place, 0, offset, offset, max_ts)


def spans(ranges):
    return {(r.topic, r.partition): (r.from_offset, r.until_offset) for r in ranges}


def test_first_batch_reads_from_the_earliest_to_the_end():
    assert spans(plan_ranges({}, now({A0: 9, M0: 4}, {A0: 3}), 100)) == {A0: (3, 9), M0: (0, 4)}


def test_goes_on_where_the_last_one_stopped_and_keeps_the_largest_timestamp():
    planned = plan_ranges({A0: until(A0, 5, max_ts=77)}, now({A0: 8, A1: 2}), 100)
    assert spans(planned) == {A0: (5, 8), A1: (0, 2)}
    assert [r.max_ts for r in planned] == [77, None]


def test_nothing_new_is_an_empty_range_that_reaches_the_end():
    (planned,) = plan_ranges({A0: until(A0, 5)}, now({A0: 5}), 100)
    assert planned.planned == 0
    assert planned.until_offset == planned.end_offset


@given(
    st.dictionaries(st.tuples(st.sampled_from("am"), st.integers(0, 3)), st.integers(0, 50), min_size=1), st.integers(1, 120)
)
def test_never_more_than_allowed_and_never_nothing(ends, most):
    planned = plan_ranges({}, now(ends), most)
    total = sum(r.planned for r in planned)
    assert total == min(most, sum(ends.values()))
    assert all(r.planned <= ends[(r.topic, r.partition)] for r in planned)


def test_lost_records_are_refused_with_the_range():
    with pytest.raises(NeedsOperator, match=r"3 records .* a-0:5-8"):
        plan_ranges({A0: until(A0, 5)}, now({A0: 9}, {A0: 8}), 100)


def test_lost_records_are_counted_when_accepted():
    (planned,) = plan_ranges({A0: until(A0, 5)}, now({A0: 9}, {A0: 8}), 100, ["a-0:5-8"])
    assert (planned.from_offset, planned.until_offset, planned.lost) == (8, 9, 3)


def test_accepting_another_range_does_not_help():
    with pytest.raises(NeedsOperator, match="a-0:5-8"):
        plan_ranges({A0: until(A0, 5)}, now({A0: 9}, {A0: 8}), 100, ["a-0:5-7"])


def test_all_lost_ranges_are_told_at_once_and_accepted_at_once():
    previous, earliest = {A0: until(A0, 5), A1: until(A1, 2), M0: until(M0, 1)}, {A0: 8, A1: 2, M0: 3}
    lost = now({A0: 9, A1: 9, M0: 9}, earliest)
    with pytest.raises(NeedsOperator, match=r"5 records that were never landed, a-0:5-8 m-0:1-3 \(.* = a-0:5-8 m-0:1-3$"):
        plan_ranges(previous, lost, 100, ["a-0:5-8"])
    assert [r.lost for r in plan_ranges(previous, lost, 100, ["a-0:5-8", "m-0:1-3"])] == [3, 0, 2]


def test_a_topic_that_lost_its_end_is_told():
    with pytest.raises(NeedsOperator, match="a-0 ends at offset 4, but 5 was already planned"):
        plan_ranges({A0: until(A0, 5)}, now({A0: 4}), 100)


def test_a_missing_partition_is_told():
    with pytest.raises(NeedsOperator, match="partition 1 of a is gone"):
        plan_ranges({A0: until(A0, 5), A1: until(A1, 5)}, now({A0: 5}), 100)


PLANNED = [OffsetRange(*A0, 5, 9, 9, 7, lost=2), OffsetRange(*A1, 0, 4, 9), OffsetRange(*M0, 3, 6, 6)]
FORGOTTEN = now({A0: 20, A1: 9, M0: 6}, {A0: 30, A1: 3, M0: 1})


def test_what_is_lost_after_the_plan_is_left_out_and_counted():
    left = ranges_left(PLANNED, FORGOTTEN, {}, ["a-0:5-9", "a-1:0-3"])
    assert [(r.from_offset, r.until_offset, r.lost, r.max_ts) for r in left] == [
        (9, 9, 6, 7), (3, 4, 3, None), (3, 6, 0, None),
    ]  # fmt: skip


def test_what_is_lost_after_the_plan_is_refused_without_what_was_given_up_before():
    with pytest.raises(NeedsOperator, match=r"7 records that were never landed, a-0:5-9 a-1:0-3 \("):
        ranges_left(PLANNED, FORGOTTEN, {}, ["a-0:3-5", "a-0:5-9"])


def test_what_was_landed_before_it_was_lost_is_not_lost():
    landed_from = {A0: 5, A1: 2}
    left = ranges_left(PLANNED, FORGOTTEN, landed_from, ["a-1:0-2"])
    assert [(r.from_offset, r.lost) for r in left] == [(5, 2), (2, 2), (3, 0)]


def test_a_plan_that_the_broker_never_heard_of_is_refused():
    with pytest.raises(NeedsOperator, match="a-0 ends at offset 4, but 9 was already planned"):
        ranges_left([OffsetRange(*A0, 0, 9, 9)], now({A0: 4}), {}, [])
