"""The picture of a run: lag, run time, memory and disk over its minutes, one panel below the other. Pure: series in, SVG out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.draw_timelines.svg import WIDTH, document, element, line, number, text_width, words
from tests.load.laws import Series

LEFT, RIGHT, TOP = 64.0, WIDTH - 20.0, 46.0
HEIGHT, BETWEEN, BELOW, LOW = 118.0, 56.0, 62.0, 14.0
COLOURS = ("left", "right", "pair", "clock", "session")


class Panel(NamedTuple):
    """Lines over the same seconds. `bound`: a value that none may exceed. `dashed`: names of lines that were predicted."""

    name: str
    unit: str
    lines: Mapping[str, Series]
    bound: float | None = None
    dashed: tuple[str, ...] = ()


class Mark(NamedTuple):
    """What happened at a second. `css`: the class of its line, which is as high as the panel if `is_high`."""

    at: float
    name: str
    css: str
    is_high: bool = False


def picture(title: str, description: str, panels: Sequence[Panel], marks: Sequence[Mark], begin: float, end: float) -> str:
    """The panels from `begin` to `end` (seconds), with the minutes since `begin` below the last one."""
    elements = [words(title, LEFT, 26, "name", "start")]
    top = TOP
    for panel in panels:
        elements += _panel(panel, marks, begin, end, top + 26)
        top += HEIGHT + BETWEEN
    bottom = top - BETWEEN + 26
    elements += _minutes(begin, end, bottom) + _legend_of_marks(marks, bottom + 44)
    return document(title, description, elements, bottom + BELOW)


def ticks(most: float) -> list[float]:
    """Round values from 0 to `most` or just above, three to six of them.

    >>> ticks(3.0), ticks(71), ticks(0)
    ([0.0, 1.0, 2.0, 3.0], [0.0, 20.0, 40.0, 60.0, 80.0], [0.0, 0.5, 1.0])
    """
    if most <= 0:
        return [0.0, 0.5, 1.0]
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(round(factor * power, 12) for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * count, 12) for count in range(math.ceil(most / step * 0.999999) + 1)]


def _panel(panel: Panel, marks: Sequence[Mark], begin: float, end: float, top: float) -> list[str]:
    values = [value for series in panel.lines.values() for at, value in series if begin <= at <= end]
    steps = ticks(max([*values, panel.bound or 0.0]))
    bottom = top + HEIGHT

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * (at - begin) / (end - begin)

    def y(value: float) -> float:
        return bottom - HEIGHT * value / steps[-1]

    drawn = []
    for step in steps:
        drawn += [line("axis", LEFT, y(step), RIGHT, y(step)), words(f"{step:,g}", LEFT - 8, y(step) + 4, "tick", "end")]
    shown = [mark for mark in marks if begin <= mark.at <= end]
    drawn += [line(mark.css, x(mark.at), top if mark.is_high else bottom - LOW, x(mark.at), bottom) for mark in shown]
    if panel.bound is not None:
        drawn.append(line("cross", LEFT, y(panel.bound), RIGHT, y(panel.bound)))
    for colour, (name, series) in zip(COLOURS, panel.lines.items(), strict=False):
        points = " ".join(f"{number(x(at))},{number(y(value))}" for at, value in series if begin <= at <= end)
        drawn.append(element("polyline", colour, points=points, style=_style(name in panel.dashed)))
    return [*drawn, *_legend(panel, top - 12)]


def _style(dashed: bool) -> str:
    return f"fill:none;stroke-width:1.8;stroke-dasharray:{'5 4' if dashed else 'none'}"


def _legend(panel: Panel, y: float) -> list[str]:
    """The panel's name and unit, then a stroke and the name of each line."""
    heading = f"{panel.name}, {panel.unit}"
    drawn, x = [words(heading, LEFT, y, "name", "start")], LEFT + 9.2 * len(heading) + 24
    names = list(panel.lines) if len(panel.lines) > 1 else []
    for colour, name in zip(COLOURS, names, strict=False):
        drawn.append(element("polyline", colour, points=f"{x},{y - 4} {x + 20},{y - 4}", style=_style(name in panel.dashed)))
        drawn.append(words(name, x + 26, y, "small faint", "start"))
        x += 26 + text_width(name) + 14
    if panel.bound is not None:
        drawn += [line("cross", x, y - 4, x + 20, y - 4), words("bound", x + 26, y, "small faint", "start")]
    return drawn


def _minutes(begin: float, end: float, bottom: float) -> list[str]:
    minutes = (end - begin) / 60
    shown = [step for step in ticks(minutes) if step <= minutes]
    places = [(step, LEFT + (RIGHT - LEFT) * step / minutes) for step in shown]
    return [words(f"{step:g} min", x, bottom + 20, "tick") for step, x in places]


def _legend_of_marks(marks: Sequence[Mark], y: float) -> list[str]:
    drawn, x = [], LEFT
    for name, css in dict.fromkeys((mark.name, mark.css) for mark in marks):
        drawn += [line(css, x, y - 10, x, y + 2), words(name, x + 8, y, "small faint", "start")]
        x += 8 + text_width(name) + 18
    return drawn
