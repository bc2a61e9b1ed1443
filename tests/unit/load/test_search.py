"""The search for the highest rate, and what a step of it is judged by."""

from __future__ import annotations

import pytest

from tests.load.phases import objection
from tests.load.samples import Sample
from tests.load.search import LEAST, LOWERED, NEAR_ENOUGH, confirmed, highest_rate


@pytest.mark.parametrize("limit", [20, 130, 2_000, 2_001, 3_999, 9_000, 77_777])
def test_what_is_found_holds_and_lies_near_the_limit(limit):
    found = highest_rate(lambda rate: rate <= limit, 2_000.0)
    assert found <= limit < found * NEAR_ENOUGH


def test_no_rate_is_asked_for_twice_and_few_are():
    asked = []
    highest_rate(lambda rate: asked.append(rate) or rate <= 7_000, 2_000.0)
    assert asked == [2_000, 4_000, 8_000, pytest.approx(5_657, abs=1), pytest.approx(6_727, abs=1)]


def test_where_nothing_holds_there_is_no_rate():
    asked = []
    assert highest_rate(lambda rate: bool(asked.append(rate)), 100.0) is None
    assert min(asked) >= LEAST


@pytest.mark.parametrize("limit", [20, 999, 1_000, 5_000])
def test_a_rate_that_does_not_hold_for_long_is_lowered(limit):
    found = confirmed(lambda rate: rate <= limit, 1_000.0)
    assert found == 1_000 if limit >= 1_000 else found <= limit < found / LOWERED


def test_where_no_rate_holds_for_long_there_is_none():
    assert confirmed(lambda rate: False, 1_000.0) is None


def window(*minutes, sent=1_000.0):
    """A sample each ten seconds: minutes of unread traffic at 1,000 records a second, of which `sent` are sent; None: no broker."""
    return [
        Sample(at * 10.0, None, None, {}, 0, 0)
        if each is None
        else Sample(at * 10.0, int(sent * at * 10), int(each * 60_000), {}, 0, 0)
        for at, each in enumerate(minutes)
    ]


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        (window(0, 1, 2, 0.5, 1), ""),
        (window(0, 1, 2.1, 0.5, 1), "2.1 minutes of traffic are unread"),
        (window(0, 0.1, 1, 0.6, 1), "never under 0.6 minutes of unread traffic"),
        (window(0, 1, 2, 0.5, 1, sent=960), "only 960 records/s were sent"),
        (window(0, 1, 2, 0.5, 1, sent=970), ""),
        (window(0, None, 2, 0.5, 1), ""),
        (window(None, None, None), "the broker did not answer"),
    ],
)
def test_a_step_holds_or_says_why_not(samples, wanted):
    assert objection(samples, 1_000.0) == wanted
