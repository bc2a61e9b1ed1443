"""Which timelines stand together in which picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.draw_timelines.clock_panels import ClockPanels
from tests.draw_timelines.panel import Panel, Shown
from tests.draw_timelines.scale import Scale
from tests.draw_timelines.svg import document
from tests.helpers.clock_cases import CLOCKS
from tests.helpers.timeline import ROOT
from tests.helpers.timeline_cases import TIMELINES

FOLDER = ROOT / "docs" / "pairing"


class Picture(NamedTuple):
    """The names of the timelines in it, and what all of them show."""

    title: str
    names: list[str]
    shown: Shown


PICTURES = {
    "tolerance": Picture(
        "Tolerance: how far apart the two sides of a pair may be",
        ["T apart is a pair", "T + 1 apart is two orphans"],
        Shown(Scale(-120, 240), ("tolerance",), tolerance=True, closing=False),
    ),
    "gap": Picture(
        "Gap: the longest silence inside a session",
        [
            "a gap apart is one session, which waits for the later event",
            "a gap + 1 apart is two sessions, and the first closes alone",
        ],
        Shown(Scale(-20, 960), ("gap", "grace")),
    ),
    "grace": Picture(
        "Grace and clock: when a session is closed",
        [
            "a clock at the end of grace leaves the session open",
            "a clock 1 ms past the end of grace closes the session",
            "the other half comes while the session is open",
        ],
        Shown(Scale(-20, 860), ("tolerance", "gap", "grace")),
    ),
    "late": Picture(
        "Late: a session that was over before",
        [
            "late by 0 ms is in time",
            "late by 1 ms is late",
            "an old event within a gap of an open one is rescued",
            "a half that comes too late is late, and the other stands alone",
        ],
        Shown(Scale(-20, 860), ("tolerance", "gap", "grace")),
    ),
    "future": Picture(
        "Future: stamped too far ahead of the wall clock",
        ["max_future ahead of the wall clock is accepted", "max_future + 1 ahead of the wall clock is future"],
        Shown(Scale(-500, 11_000), ("max_future",), closing=False, span="max_future"),
    ),
    "duplicates": Picture(
        "Duplicates: the same event sent again",
        ["a duplicate of an open event is dropped", "a duplicate of a closed event is late"],
        Shown(Scale(-20, 860), ("gap", "grace")),
    ),
    "max_session": Picture(
        "max_session: the longest session",
        ["1 ms less and it is a pair", "a cut separates what would be a pair"],
        Shown(Scale(-20, 1_120), ("tolerance", "gap", "max_session"), closing=False, span="max_session"),
    ),
    "matching": Picture(
        "Matching: several events in one session",
        [
            "two calls in a chain stay two",
            "the one between goes to the nearer",
            "more pairs win over nearer ones",
        ],
        Shown(Scale(-20, 240), ("tolerance", "gap"), closing=False),
    ),
    "collapse": Picture(
        "one_to_one and collapse: the same events, one compound an event or one a session",
        ["one_to_one makes a compound of each event", "collapse makes one compound of a session"],
        Shown(Scale(-20, 240), ("tolerance", "gap"), closing=False),
    ),
}


CLOCK_PICTURES = {
    "backlog": (
        "The clock of a batch while one partition has a backlog",
        ["a backlog of hours in one partition closes nothing early while the others are drained"],
        Scale(-10, 300, "min", 610),
    ),
    "silence": (
        "The clock of a batch in silence",
        ["one topic is silent, and the other's events are closed all the same"],
        Scale(-1, 6, "min", 610),
    ),
}


def draw(title: str, panels: Sequence[Panel | ClockPanels]) -> str:
    """The SVG: the panels one below the other."""
    elements, top = [], 10.0
    for panel in panels:
        drawn, bottom = panel.draw(top)
        elements += drawn
        top = bottom + 14
    return document(title, " ".join(panel.description() for panel in panels), elements, top - 6)


def drawings() -> dict[Path, str]:
    """Every file and what has to be in it."""
    found = {}
    for name, (title, names, shown) in PICTURES.items():
        found[FOLDER / f"{name}.svg"] = draw(title, [Panel(each, TIMELINES[each], shown) for each in names])
    for name, (title, names, scale) in CLOCK_PICTURES.items():
        found[FOLDER / f"{name}.svg"] = draw(title, [ClockPanels(each, CLOCKS[each], scale) for each in names])
    return found
