"""Which offsets a batch reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.broker.offsets import TopicsNow, plan_ranges
from spark_jobs.problems import NeedsOperator
from spark_jobs.storage.ledger import OffsetRange

A0, A1, M0 = ("a", 0), ("a", 1), ("m", 0)


def now(end, earliest=None):
    return TopicsNow(1_000, dict.fromkeys(end, 0) | (earliest or {}), end)


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


def test_a_recreated_topic_is_told_by_its_end():
    with pytest.raises(NeedsOperator, match="created again"):
        plan_ranges({A0: until(A0, 5)}, now({A0: 4}), 100)


def test_a_missing_partition_is_told():
    with pytest.raises(NeedsOperator, match="partition 1 of a is gone"):
        plan_ranges({A0: until(A0, 5), A1: until(A1, 5)}, now({A0: 5}), 100)
