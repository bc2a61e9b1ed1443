"""Why there is no rule for three sides at once: what the pair's rule promises, no rule for three does. All groupings are tried.

Sides are callers, callees and the switch; the tolerance is 10. See docs/decisions/0074-three-sides-are-a-chain.md.
"""

from itertools import product

import pytest

from tests.helpers.reference_pairing import best_of_all, every_matching
from tests.helpers.three_sides import around, best, complete, every_grouping, grouped, within

T = 10


def test_of_two_sides_every_optimum_leaves_as_many_alone_on_each_side():
    """So what is missing is a fact of the traffic, however ties are broken."""
    for times in product(range(0, 26, 5), repeat=4):
        left, right = sorted(times[:2]), sorted(times[2:])
        most = max(map(len, every_matching(left, right, T)))
        assert {len(pairs) for pairs in every_matching(left, right, T) if len(pairs) == most} == {most}
        assert len(best_of_all(left, right, T)) == most


def test_of_three_sides_equal_optima_say_that_other_sides_are_missing():
    sides = [[0], [10], [20]]
    found = best(sides, every_grouping(sides, within(T)))
    # The switch is missing, or the caller: only the order of the sides in the file could decide.
    assert sorted(found, key=str) == [((0, 0, None),), ((None, 0, 0),)]


@pytest.mark.parametrize(("anchor", "groups"), [(0, {((0, 0, None),)}), (1, {((0, 0, 0),)}), (2, {((None, 0, 0),)})])
def test_the_anchor_decides_whether_a_call_is_complete(anchor, groups):
    sides = [[0], [10], [20]]
    assert set(best(sides, every_grouping(sides, around(anchor, T)))) == groups


def test_complete_groups_first_leave_events_alone_that_had_a_partner():
    """Of two sides most pairs are fewest orphans. Of three these are different aims."""
    sides = [[0], [0], [0, 0]]
    groupings = every_grouping(sides, within(T))
    assert {(complete(each), grouped(each)) for each in best(sides, groupings)} == {(1, 3)}
    assert max(map(grouped, groupings)) == 4


def test_the_third_side_changes_who_called_whom():
    """So a late event of the switch would take back a pair that is right by itself."""
    callers, callees, switch = [10], [6, 15], [20]
    assert best_of_all(callers, callees, T) == [(0, 0)]
    sides = [callers, callees, switch]
    assert best(sides, every_grouping(sides, within(T))) == [((0, 1, 0),)]


def test_the_order_of_a_chain_counts_too_and_the_files_say_it():
    """Each step is the pair's rule, and the time of its compound is the smaller one: that of the caller, or of the callee."""
    caller, callee, switch = 0, 10, 20
    assert best_of_all([caller], [callee], T) == best_of_all([callee], [switch], T) == [(0, 0)]
    assert best_of_all([min(caller, callee)], [switch], T) == []
    assert best_of_all([caller], [min(callee, switch)], T) == [(0, 0)]
