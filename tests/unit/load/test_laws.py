"""What the verdict of a load judges: growth by a line, bounds, predictions."""

from __future__ import annotations

import pytest

from tests.load.laws import LEAST_POINTS, Law, as_predicted, bounded, equal, flat, growth, table


def teeth(count, height, rise=0.0):
    """A saw of `count` teeth of ten points each, which rises by `rise` in all."""
    points = 10 * count
    return [(float(at), height * (at % 10) / 9 + rise * at / points) for at in range(points)]


def test_a_saw_does_not_grow_and_a_rising_one_grows_by_its_rise():
    assert growth(teeth(60, 100)) == pytest.approx(0, abs=6)
    assert growth(teeth(60, 100, rise=300)) == pytest.approx(300, abs=6)


@pytest.mark.parametrize(("rise", "held"), [(10.0, True), (10.1, False), (-50.0, True)])
def test_growth_is_allowed_up_to_a_share_of_the_mean(rise, held):
    series = [(float(at), 100 + rise * (at - 10) / 20) for at in range(21)]
    assert flat("memory", series, "MB", 0.1, 0.0).held is held


@pytest.mark.parametrize(("rise", "held"), [(8.0, True), (8.1, False)])
def test_or_up_to_a_number_where_that_is_more(rise, held):
    series = [(float(at), 10 + rise * (at - 10) / 20) for at in range(21)]
    assert flat("handles", series, "", 0.1, 8.0).held is held


def test_few_points_are_not_judged_and_do_not_fail():
    law = flat("memory", [(float(at), 100.0 * at) for at in range(LEAST_POINTS - 1)], "MB", 0.1, 0.0)
    assert law.held is None and law.verdict == "not judged"


@pytest.mark.parametrize(("worst", "held"), [(3.0, True), (3.01, False)])
def test_a_bound_is_inclusive(worst, held):
    assert bounded("lag", [(0.0, 1.0), (1.0, worst), (2.0, 0.5)], "min", 3.0).held is held


def test_what_was_not_measured_is_not_judged():
    assert bounded("lag", [], "min", 3.0).held is None


def disk(at_end):
    """A gigabyte that is there, 100 bytes a record for the first half, then `at_end` in all."""
    first = [(1000.0 * count, 1e9 + 100_000.0 * count) for count in range(20)]
    return [*first, *((1000.0 * count, 1e9 + 100_000.0 * count) for count in range(20, 39)), (39_000.0, 1e9 + at_end)]


@pytest.mark.parametrize(("at_end", "held"), [(3.9e6, True), (4.1e6, True), (4.2e6, False), (3.6e6, False)])
def test_the_first_part_predicts_the_last_point(at_end, held):
    law = as_predicted("disk", disk(at_end), 0.5, 0.1)
    assert law.held is held
    assert law.measured.startswith("100.0 bytes a record")


def test_nothing_is_predicted_from_few_points_or_without_an_event():
    assert as_predicted("disk", disk(3.9e6)[:10], 0.5, 0.1).held is None
    assert as_predicted("disk", [(5.0, float(size)) for size in range(40)], 0.5, 0.1).held is None


def test_counts_are_equal_or_not():
    assert equal("landed", 1000, 1000).held and not equal("landed", 1000, 999).held


def test_the_table_is_markdown_and_says_what_did_not_hold():
    lines = table([Law("lag", "at most 3", "2", True), Law("memory", "flat", "grows", False)])
    assert lines[0].startswith("| law ") and set(lines[1]) == {"|", "-"} and len({len(line) for line in lines}) == 1
    assert "| held" in lines[2] and "| NOT HELD |" in lines[3]
