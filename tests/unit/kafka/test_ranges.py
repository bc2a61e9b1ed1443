"""Which offsets a batch reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.ranges import (
    LandedSpan,
    first_offsets,
    landed_beyond,
    new_topics,
    plan_ranges,
    ranges_given_up,
    ranges_left,
)
from spark_jobs.tables.ledger_rows import OffsetRange

A0, A1, M0 = ("a", 0), ("a", 1), ("m", 0)


def now(end, earliest=None, cut=None, epochs=None):
    return TopicsNow(1_000, dict.fromkeys(end, 0) | (earliest or {}), end, {}, epochs or {}, cut or {})


def until(place, offset, max_ts=None):
    return OffsetRange(*place, 0, offset, offset, max_ts)


def spans(ranges):
    return {(r.topic, r.partition): (r.from_offset, r.until_offset) for r in ranges}


def test_first_batch_reads_from_where_the_partitions_begin_and_says_so():
    planned = plan_ranges({}, now({A0: 9, A1: 700, M0: 4}, {A0: 3, A1: 700}), 100)
    assert spans(planned) == {A0: (3, 9), A1: (700, 700), M0: (0, 4)}
    # Nobody promised what was there before.
    assert [(r.began, r.lost) for r in planned] == [(3, 0), (700, 0), (0, 0)]


def test_where_a_partition_began_stays_known():
    later = plan_ranges({A0: OffsetRange(*A0, 700, 710, 710, began=700)}, now({A0: 720}, {A0: 705}), 100)
    assert [(r.began, r.from_offset, r.lost) for r in later] == [(700, 710, 0)]


@pytest.mark.parametrize("end", [700, 705])
def test_a_partition_that_comes_later_without_its_beginning_has_lost_it(end):
    previous, then = {A0: until(A0, 5), M0: until(M0, 2)}, now({A0: 5, A1: end, M0: 9}, {A1: 700, M0: 4})
    with pytest.raises(NeedsOperator, match=r"702 records that were never landed, a-1:0-700 m-0:2-4 \("):
        plan_ranges(previous, then, 100, ["m-0:2-4"])
    planned = plan_ranges(previous, then, 100, ["m-0:2-4", "a-1:0-700"])
    assert [(r.from_offset, r.lost, r.began) for r in planned] == [(5, 0, 0), (700, 700, 0), (4, 2, 0)]


def test_a_new_topic_begins_where_it_is_like_those_of_the_first_batch():
    planned = plan_ranges({A0: until(A0, 5)}, now({A0: 5, M0: 9}, {M0: 4}), 100)
    assert [(r.from_offset, r.until_offset, r.lost, r.began) for r in planned] == [(5, 5, 0, 0), (4, 9, 0, 4)]
    assert new_topics(planned, [until(A0, 5)]) == ["m"]
    assert first_offsets(planned, ["m"]) == {M0: 4} and first_offsets(planned, ["a"]) == {}
    # From then on what retention takes was promised.
    with pytest.raises(NeedsOperator, match=r"1 records that were never landed, m-0:9-10 \("):
        plan_ranges({at.place: at for at in planned}, now({A0: 5, M0: 12}, {M0: 10}), 100)


def test_what_goes_between_the_first_plan_and_its_landing_was_promised():
    first = plan_ranges({}, now({A0: 720}, {A0: 700}), 100)
    with pytest.raises(NeedsOperator, match=r"5 records that were never landed, a-0:700-705 \("):
        ranges_left(first, now({A0: 720}, {A0: 705}), {}, [])
    (left,) = ranges_left(first, now({A0: 720}, {A0: 705}), {}, ["a-0:700-705"])
    assert (left.from_offset, left.lost, left.began) == (705, 5, 700)


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


@pytest.mark.parametrize(("end", "cut", "from_"), [(7, {}, 7), (20, {A0: 7}, 7), (8, {A0: 7}, 7), (20, {A0: 8}, 8)])
def test_what_a_log_lost_at_its_end_before_it_was_planned_is_refused_and_given_up(end, cut, from_):
    seen = {A0: until(A0, 5)._replace(end_offset=12, epoch=1)}
    then = now({A0: end}, cut=cut, epochs={A0: 3})
    with pytest.raises(NeedsOperator, match=rf"{12 - from_} records .*, a-0:{from_}-12 \(the log was cut at its end\)"):
        plan_ranges(seen, then, 100)
    (planned,) = plan_ranges(seen, then, 100, [f"a-0:{from_}-12"])
    # What is written there now is read: nothing of it was landed.
    assert (planned.from_offset, planned.until_offset, planned.cut_from, planned.cut, planned.epoch) == (
        5,
        end,
        from_,
        12 - from_,
        3,
    )


def test_a_log_that_is_written_on_needs_no_other_word_for_its_end():
    seen = {A0: until(A0, 5)._replace(end_offset=12)}
    for accepted, refused in (
        ["a-0:7-12", False],
        ["a-0:9-12", True],
        ["a-0:7-13", True],
        ["a-0:7-1", True],
        ["aa-0:7-12", True],
    ):
        if refused:
            with pytest.raises(NeedsOperator, match=r"a-0:8-12 \("):
                plan_ranges(seen, now({A0: 8}), 100, [accepted])
        else:
            assert plan_ranges(seen, now({A0: 8}), 100, [accepted])[0].cut == 4


def test_both_ends_of_all_partitions_are_told_and_accepted_at_once():
    seen = {A0: until(A0, 2)._replace(end_offset=9), M0: until(M0, 1)}
    then = now({A0: 6, M0: 9}, {A0: 3, M0: 4})
    told = "a-0:2-3 a-0:6-9 m-0:1-4"
    with pytest.raises(
        NeedsOperator,
        match=rf"7 records .*, {told} \(its retention was faster and the log was cut at its end\): .* = {told}$",
    ):
        plan_ranges(seen, then, 100, ["a-0:2-3", "m-0:1-4"])
    ranges = plan_ranges(seen, then, 100, told.split())
    assert [ranges_given_up(at) for at in ranges] == [["a-0:2-3", "a-0:6-9"], ["m-0:1-4"]]


def test_records_that_were_landed_beyond_the_end_are_told():
    landed = [until(A0, 5).behind(), until(A1, 7).behind(), until(M0, 9).behind()]
    assert landed_beyond(landed, now({A0: 5, A1: 20, M0: 8}, cut={A1: 6})) == {A1: 6, M0: 8}
    # What was given up before a range was not landed.
    assert landed_beyond([OffsetRange(*A0, 9, 12, 12, lost=3)], now({A0: 6})) == {}
    assert landed_beyond([OffsetRange(*A0, 9, 12, 12, lost=3)], now({A0: 5})) == {A0: 5}


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
    landed = {A0: LandedSpan(5, 8), A1: LandedSpan(2, 3)}
    left = ranges_left(PLANNED, FORGOTTEN, landed, ["a-1:0-2"])
    assert [(r.from_offset, r.lost) for r in left] == [(5, 2), (2, 2), (3, 0)]


CUT_PLAN = [OffsetRange(*A0, 5, 9, 14, 7, lost=2, epoch=1), OffsetRange(*M0, 0, 6, 6, epoch=1)]


@pytest.mark.parametrize("then", [({A0: 7, M0: 6}, {}), ({A0: 30, M0: 6}, {A0: 7})], ids=["ends there", "written on"])
def test_a_log_that_ends_before_the_plan_is_refused_and_landed_without(then):
    end, cut = then
    there = now(end, cut=cut, epochs={A0: 2, M0: 1})
    with pytest.raises(NeedsOperator, match=r"7 records that were never landed, a-0:7-14 \(the log was cut at its end\)"):
        ranges_left(CUT_PLAN, there, {}, ["a-0:8-14"])
    left = ranges_left(CUT_PLAN, there, {}, ["a-0:7-14"])
    # The next plan begins where the log went on, and holds this end against its new leader.
    assert left[0] == CUT_PLAN[0]._replace(until_offset=7, end_offset=7, cut_from=7, cut=7, epoch=2)
    assert left[1] == CUT_PLAN[1]


def test_an_end_that_was_cut_behind_the_plan_is_the_next_plans_to_refuse():
    assert ranges_left(CUT_PLAN, now({A0: 9, M0: 6}), {}, []) == tuple(CUT_PLAN)
    with pytest.raises(NeedsOperator, match="a-0:9-14"):
        plan_ranges({(at.topic, at.partition): at for at in CUT_PLAN}, now({A0: 9, M0: 6}), 100)


def test_what_was_landed_before_the_log_was_cut_is_the_next_plans_to_refuse():
    then = now({A0: 7, M0: 6})
    assert ranges_left(CUT_PLAN, then, {A0: LandedSpan(5, 7)}, []) == tuple(CUT_PLAN)
    # A job that had accepted the loss, landed, and died.
    with pytest.raises(NeedsOperator, match="a-0:7-14"):
        ranges_left(CUT_PLAN, then, {A0: LandedSpan(5, 6)}, [])


def test_what_is_cut_twice_counts_twice():
    planned = [OffsetRange(*A0, 5, 9, 9, cut_from=8, cut=4)]
    with pytest.raises(NeedsOperator, match=r"3 records that were never landed, a-0:6-9 \("):
        ranges_left(planned, now({A0: 6}), {}, ["a-0:8-12"])
    (left,) = ranges_left(planned, now({A0: 6}), {}, ["a-0:6-9"])
    assert (left.until_offset, left.cut_from, left.cut) == (6, 6, 7)


def test_both_ends_may_be_lost_after_the_plan():
    (left, _) = ranges_left(CUT_PLAN, now({A0: 7, M0: 6}, {A0: 6}), {}, ["a-0:5-6", "a-0:7-14"])
    assert (left.from_offset, left.until_offset, left.lost, left.cut) == (6, 7, 3, 7)
