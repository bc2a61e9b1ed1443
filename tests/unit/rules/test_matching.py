"""The matching against searches written from the rule's words: most pairs, least distance, smallest list."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.rules import excursions
from spark_jobs.rules.matching import match_collapse, match_one_to_one
from spark_jobs.rules.rules import LEFT, RIGHT
from tests.helpers.reference_pairing import best_matching, best_of_all

times = st.lists(st.integers(0, 30), max_size=6).map(sorted)


def in_session_order(sessions, left_topic_first=True):
    """Events (session, ts, topic, rank, side) of sessions given as (left times, right times)."""
    topics = (0, 1) if left_topic_first else (1, 0)
    return sorted(
        (number, ts, topics[side], rank, side)
        for number, both in enumerate(sessions)
        for side, times in enumerate(both)
        for rank, ts in enumerate(times)
    )


def matched(sessions, tolerance, left_topic_first=True):
    """What the matching finds: (session, left rank, right rank), in order."""
    events = in_session_order(sessions, left_topic_first)
    number, ts, side = (np.array([event[field] for event in events], dtype=np.int64) for field in (0, 1, 4))
    partners = match_one_to_one(number, ts, side, tolerance)
    return [(events[i][0], events[i][3], events[j][3]) for i, j in zip(*map(list, partners), strict=True)]


@settings(max_examples=2_000, deadline=None)
@given(left=times, right=times, tolerance=st.integers(0, 20), left_topic_first=st.booleans())
@example(left=[0, 10], right=[9, 19], tolerance=10, left_topic_first=True)
@example(left=[5, 5, 5], right=[5, 5], tolerance=0, left_topic_first=False)
def test_optimum_of_one_session(left, right, tolerance, left_topic_first):
    expected = [(0, i, j) for i, j in best_of_all(left, right, tolerance)]
    assert matched([(left, right)], tolerance, left_topic_first) == expected


@settings(max_examples=500, deadline=None)
@given(left=times, right=times, tolerance=st.integers(0, 20))
def test_the_reference_for_many_events_is_right_about_few(left, right, tolerance):
    assert best_matching(left, right, tolerance) == best_of_all(left, right, tolerance)


# A chain of hundreds: steps to the next event (0: equal timestamps) and its side.
chains = st.integers(1, 12).flatmap(
    lambda step: st.lists(st.tuples(st.integers(0, step), st.sampled_from([LEFT, RIGHT])), min_size=20, max_size=300)
)


@settings(max_examples=150, deadline=None)
@given(chain=chains, tolerance=st.integers(0, 200), left_topic_first=st.booleans())
def test_optimum_of_a_long_chain(chain, tolerance, left_topic_first):
    at = np.cumsum([step for step, _ in chain]).tolist()
    both = tuple([ts for ts, (_, side) in zip(at, chain, strict=True) if side == which] for which in (LEFT, RIGHT))
    expected = [(0, i, j) for i, j in best_matching(*both, tolerance)]
    assert matched([both], tolerance, left_topic_first) == expected


@pytest.mark.parametrize("one_by_one", [0, 1, 100])
def test_sessions_do_not_touch_each_other_however_they_are_walked(one_by_one):
    @settings(max_examples=400, deadline=None)
    @given(st.lists(st.tuples(times, times), min_size=1, max_size=8), st.integers(0, 20))
    def check(sessions, tolerance):
        expected = [(n, i, j) for n, both in enumerate(sessions) for i, j in best_of_all(*both, tolerance)]
        assert matched(sessions, tolerance) == expected

    with mock.patch.object(excursions, "_ONE_BY_ONE", one_by_one):
        check()


@pytest.mark.parametrize("one_by_one", [0, 100])
def test_sums_beyond_64_bits(one_by_one):
    @settings(max_examples=200, deadline=None)
    @given(times, times, st.integers(0, 20))
    def check(left, right, tolerance):
        assert matched([(left, right)], tolerance) == [(0, i, j) for i, j in best_of_all(left, right, tolerance)]

    with mock.patch.object(excursions, "_LARGEST", 50), mock.patch.object(excursions, "_ONE_BY_ONE", one_by_one):
        check()


@pytest.mark.parametrize("tolerance", [0, 1, 365 * 86_400_000])
def test_the_last_timestamps_there_are(tolerance):
    end = 2**63 - 1
    assert matched([([end - 2, end], [end - 1])], tolerance) == ([(0, 0, 0)] if tolerance else [])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(times, times).filter(any), min_size=1, max_size=8))
def test_collapse_takes_the_first_of_each_side(sessions):
    events = in_session_order(sessions)
    numbers, sides = (np.array([event[field] for event in events], dtype=np.int64) for field in (0, 4))
    partners, collapsed = match_collapse(numbers, sides)
    first = {}
    for place, event in enumerate(events):
        first.setdefault((event[0], event[4]), place)
    pairs = [(first[n, LEFT], first[n, RIGHT]) for n, (left, right) in enumerate(sessions) if left and right]
    assert list(zip(*map(list, partners), strict=True)) == pairs
    assert np.flatnonzero(collapsed).tolist() == [place for place in range(len(events)) if place not in first.values()]
