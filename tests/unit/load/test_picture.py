"""The picture of a run: what it shows is what was measured."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.load.picture import HEIGHT, LEFT, RIGHT, TOP, Mark, Panel, picture, ticks

LAG = Panel("Lag", "minutes", {"lag": [(60.0, 0.0), (360.0, 2.0), (660.0, 4.0)]}, bound=3.0)
MEMORY = Panel("Memory", "MB", {"Spark": [(60.0, 900.0)], "broker": [(60.0, 500.0), (700.0, 1e9)]}, dashed=("broker",))


def drawn(*panels, marks=(), begin=60.0, end=660.0):
    return ElementTree.fromstring(picture("A run", "What it shows.", panels, marks, begin, end))


def lines_of(svg):
    """Points of the drawn lines; those of the legend have two points of one height."""
    found = [node.get("points") for node in svg.iter() if node.tag.endswith("polyline")]
    points = [[tuple(map(float, each.split(","))) for each in line.split()] for line in found]
    return [line for line in points if not (len(line) == 2 and line[0][1] == line[1][1])]


def texts(svg):
    return [node.text for node in svg.iter() if node.tag.endswith("text")]


def test_a_line_goes_from_the_begin_to_the_end_and_from_zero_to_the_largest_value():
    (line,) = lines_of(drawn(LAG))
    bottom = TOP + 26 + HEIGHT
    assert line[0] == pytest.approx((LEFT, bottom)) and line[-1] == pytest.approx((RIGHT, bottom - HEIGHT))
    assert line[1] == pytest.approx(((LEFT + RIGHT) / 2, bottom - HEIGHT / 2))


def test_what_lies_outside_of_the_run_is_not_drawn():
    first, second = lines_of(drawn(MEMORY))
    assert len(first) == len(second) == 1
    assert "1e+09" not in texts(drawn(MEMORY))


def test_it_names_panels_lines_minutes_and_marks():
    shown = texts(drawn(LAG, MEMORY, marks=[Mark(100.0, "kill -9", "cross"), Mark(200.0, "kill -9", "cross")]))
    assert {"A run", "Lag, minutes", "Memory, MB", "Spark", "broker", "bound", "0 min", "10 min"} <= set(shown)
    assert shown.count("kill -9") == 1


def test_it_is_whole_by_itself():
    text = picture("A run", "What it shows.", [LAG], [], 60.0, 660.0)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|<script|<image", text)


@pytest.mark.parametrize("most", [0.3, 1.0, 2.95, 3.0, 9.99, 55, 60, 64, 1812, 23_456])
def test_ticks_reach_the_largest_value_and_are_few(most):
    steps = ticks(most)
    assert steps[0] == 0 and steps[-2] < most <= steps[-1] * 1.000001 and 3 <= len(steps) <= 6
