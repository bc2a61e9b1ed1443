"""How events, pairs and clocks look in every picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spark_jobs.rules.rules import LEFT
from tests.draw_timelines.scale import Scale
from tests.draw_timelines.svg import WIDTH, element, line, rows_of_words, text_width, words

VERDICTS = {"left_only": "alone", "right_only": "alone"}
Point = tuple[float, float]


def is_rejected(verdict: str) -> bool:
    """Whether the event ends in rejected_events."""
    return verdict in ("late", "future", "duplicate")


def event_mark(side: int, verdict: str, x: float, y: float) -> list[str]:
    """Left events are circles, right ones squares; filled: paired, hollow: alone, dashed: open or unread, crossed: rejected."""
    css = f"{'left' if side == LEFT else 'right'} mark"
    if verdict != "pair":
        css += " hollow"
    css += {"open": " open", "unread": " unread"}.get(verdict, "")
    circle = element("circle", css, cx=x, cy=y, r=7.0)
    mark = circle if side == LEFT else element("rect", css, x=x - 6.5, y=y - 6.5, width=13.0, height=13.0)
    if is_rejected(verdict):
        return [mark, element("path", "cross", d=f"M{x - 9:.1f} {y - 9:.1f} l18 18 m0 -18 l-18 18")]
    return [mark]


def pair_line(one: Point, other: Point, label: str) -> list[str]:
    """A line from event to event, its label on it where it is flat and beside it where it is steep."""
    drawn = [line("pair", *one, *other)]
    x, y = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2 + 5
    if abs(one[0] - other[0]) > text_width(label):
        drawn.append(words(label, x, y, "pair"))
    else:
        fits = x + 10 + text_width(label) < WIDTH
        drawn.append(words(label, x + 12 if fits else x - 10, y, "pair", "start" if fits else "end"))
    return drawn


class ClockWords(NamedTuple):
    """The labels of clocks, in as many rows as they need."""

    placed: list[tuple[str, float, str, int]]

    @property
    def rows(self) -> int:
        """How many."""
        return 1 + max((row for *_, row in self.placed), default=-1)

    def at(self, y: float) -> list[str]:
        """The first row is the lowest, nearest to the lanes."""
        return [words(text, x, y + 16 * (self.rows - 1 - row), "clock", anchor) for text, x, anchor, row in self.placed]


def clock_lines(labels: list[tuple[str, int]], scale: Scale) -> tuple[ClockWords, Callable[[float, float], list[str]]]:
    """(text, time) each -> the labels, and a function (top, bottom) that draws the lines; clocks off the picture get an arrow."""
    shown = [(text, scale.x(at)) for text, at in labels if scale.shows(at)]
    far = [(f"{text} →", float(WIDTH)) for text, at in labels if not scale.shows(at)]
    return ClockWords(rows_of_words([*shown, *far])), lambda top, bottom: [
        line("clock", x, top, x, bottom) for _, x in shown
    ]
