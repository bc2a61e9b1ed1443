"""Patterns of topics: whole names, and linear whatever the expression."""

import time

import pytest

from include.config.topic_pattern import check_topic_pattern, matches, matching


def test_whole_names_match_in_their_order():
    assert matching("calls-.*", ["calls-us", "my-calls-us", "calls-", "calls", "calls-eu"]) == [
        "calls-us",
        "calls-",
        "calls-eu",
    ]
    assert matching("a|b", ["ab", "b", "a", "xa"]) == ["b", "a"]
    assert matching("calls.eu", ["calls-eu", "calls.eu"]) == ["calls-eu", "calls.eu"]


def test_topics_that_kafka_keeps_for_itself_never_match():
    assert matching(".*", ["__consumer_offsets", "_mine", "x"]) == ["_mine", "x"]
    assert not matches("__.*", "__transaction_state")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*)*b", "a*a*a*a*a*a*b"])
def test_an_expensive_expression_is_tried_in_no_time(pattern):
    assert check_topic_pattern(pattern) == pattern
    begun = time.perf_counter()
    assert matching(pattern, ["a" * 249] * 1_000) == []
    assert time.perf_counter() - begun < 5
