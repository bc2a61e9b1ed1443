"""The matching against a brute force written from the rule's words: most pairs, least distance, smallest list."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.pairing import matching
from spark_jobs.pairing.matching import align, match_one_to_one
from spark_jobs.pairing.rules import LEFT, RIGHT


def every_matching(left, right, tolerance, i=0, j=0):
    """All non-crossing matchings of the lefts from i and the rights from j, as lists of (left rank, right rank)."""
    if i == len(left):
        yield []
        return
    yield from every_matching(left, right, tolerance, i + 1, j)
    for k in range(j, len(right)):
        if abs(left[i] - right[k]) <= tolerance:
            for rest in every_matching(left, right, tolerance, i + 1, k + 1):
                yield [(i, k), *rest]


def best(left, right, tolerance):
    return min(
        every_matching(left, right, tolerance),
        key=lambda pairs: (-len(pairs), sum(abs(left[i] - right[k]) for i, k in pairs), pairs),
    )


times = st.lists(st.integers(0, 30), max_size=6).map(sorted)


@settings(max_examples=2_000, deadline=None)
@given(left=times, right=times, tolerance=st.integers(0, 20))
@example(left=[0, 10], right=[9, 19], tolerance=10)
@example(left=[5, 5, 5], right=[5, 5], tolerance=0)
def test_optimum_of_one_session(left, right, tolerance):
    events = sorted(
        [(ts, LEFT, rank) for rank, ts in enumerate(left)] + [(ts, RIGHT, rank) for rank, ts in enumerate(right)]
    )
    ts, side = np.array([e[0] for e in events], dtype=np.int64), np.array([e[1] for e in events], dtype=np.int64)
    rank = [e[2] for e in events]
    partners = match_one_to_one(np.zeros(len(events), dtype=np.int64), ts, side, tolerance)
    found = sorted(
        (rank[one], rank[other]) for one, other in zip(partners.left.tolist(), partners.right.tolist(), strict=True)
    )
    assert found == best(left, right, tolerance)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(times, times), min_size=1, max_size=8), st.integers(0, 20))
def test_sessions_do_not_touch_each_other(sessions, tolerance):
    events = [
        (number, ts, side, rank)
        for number, both in enumerate(sessions)
        for ts, side, rank in sorted((ts, side, rank) for side, times in enumerate(both) for rank, ts in enumerate(times))
    ]
    number, ts, side = (np.array([event[field] for event in events], dtype=np.int64) for field in range(3))
    partners = match_one_to_one(number, ts, side, tolerance)
    found = sorted(
        (events[one][0], events[one][3], events[other][3]) for one, other in zip(*map(list, partners), strict=True)
    )
    assert found == [(n, i, k) for n, (left, right) in enumerate(sessions) for i, k in best(left, right, tolerance)]


def test_kept_rows_give_what_all_rows_give(monkeypatch):
    random = np.random.default_rng(7)
    left, right = (np.sort(random.integers(0, 3_000, (3, n)), axis=1) for n in (60, 50))
    whole = align(left, right, 90)
    monkeypatch.setattr(matching, "_CELLS_AT_ONCE", 100)
    assert (align(left, right, 90) == whole).all()


def test_a_session_too_large_for_64_bits_is_refused():
    with pytest.raises(OverflowError, match="lower max_session"):
        align(np.zeros((1, 3), dtype=np.int64), np.zeros((1, 3), dtype=np.int64), 2**61)
