"""The state of a pipeline as the first thing on a page: healthy or not, what is wrong and what to do, what waits, what came and paired.

Drawn the same on the jobs' pages and on Airflow's page over all pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from jinja2 import Template
from markupsafe import Markup

from include.config.advice import Advice, advice
from include.config.health import FAILED, HEALTHY, Counts, Problem, State
from include.config.page_templates import page_environment
from include.config.pictures import sparkline
from include.config.time_text import rough

_DAY = "24h"


class Card(NamedTuple):
    """A problem with what is known of it."""

    problem: Problem
    advice: Advice


class Tile(NamedTuple):
    """One number, large, with lines about it below and a picture of its last day, oldest hour first (may be empty)."""

    name: str
    number: int
    lines: Sequence[str]
    picture: Markup


def panel(
    state: State,
    counts: Counts | None = None,
    subject: str = "",
    links: Sequence[tuple[str, str]] = (),
    now: float | None = None,
) -> Markup:
    """The section: headings from h2 on. `counts`: those of the batch, for a state without the window of a day. `subject`: of what it is the state,
    if not of the pipeline. `links`: (address, words). `now`: epoch seconds at which somebody looks, if that is not when the page was written.
    """
    title, shown = sentence(state, subject or state.pipeline), [*tiles(state, counts)]
    ago = None if now is None else rough(max(now - state.at, 0) * 1000)
    return Markup(_template().render(state=state, title=title, cards=cards(state), tiles=shown, links=links, ago=ago))


@cache
def _template() -> Template:
    return page_environment().get_template("health.html")


def sentence(state: State, subject: str) -> str:
    """The verdict on the subject in words."""
    open_ones = state.open_problems
    if state.verdict == HEALTHY:
        taken = len(state.problems)
        return f"{subject} is healthy" + (f", {_number(taken, 'problem')} taken over" if taken else "")
    failed = sum(problem.severity == FAILED for problem in open_ones)
    rest = len(open_ones) - failed
    found = [_number(failed, "failed check")] * bool(failed) + [_number(rest, "warning")] * bool(rest)
    return f"{subject}: {' and '.join(found)}"


def cards(state: State) -> list[Card]:
    """The problems: those that nobody has taken over first, failed before warned, newest first."""
    ordered = sorted(state.problems, key=lambda each: (each.acknowledged is not None, each.severity != FAILED, -each.since))
    return [Card(problem, advice(problem.name, problem.runbook)) for problem in ordered]


def tiles(state: State, counts: Counts | None) -> Iterator[Tile]:
    """What waits, then what came and what became of it: in a day, or in the batch."""
    lag, day = state.lag, state.windows.get(_DAY)
    ages = [f"oldest unread {_age(state, lag.oldest_unread)}", f"oldest open {_age(state, lag.oldest_open)}"]
    yield Tile("Records unread", lag.unread, ages if state.windows else [], Markup(""))
    shown, when = (day, "24 h") if day else (counts, "this batch")
    if shown is None:
        return
    compounds = shown.pair + shown.left_only + shown.right_only
    for field, name in (("landed", "Landed"), ("pair", "Paired"), ("left_only", "Left only"), ("right_only", "Right only")):
        number, share, style = getattr(shown, field), [], "usual"
        if field.endswith("_only"):
            share, style = [f"{number / compounds if compounds else 0:.1%} of compounds"], "alone"
        yield Tile(f"{name}, {when}", number, [*share, *_others(state, field)], _trend(state, field, name, style))
    late = [f"late: {shown.late:,}", *([f"a replay pairs {shown.late_healable:,}"] if shown.late_healable else [])]
    yield Tile(f"Rejected, {when}", shown.rejected, late, _trend(state, "rejected", "Rejected", "alone"))


def _others(state: State, field: str) -> list[str]:
    """The same number in the other windows."""
    found = {"1h": "1 h", "7d": "7 d"}
    return [f"{name}: {getattr(state.windows[each], field):,}" for each, name in found.items() if each in state.windows]


def _trend(state: State, field: str, name: str, style: str) -> Markup:
    return sparkline(f"{name} by hour, the last {len(state.hours)}", [getattr(hour, field) for hour in state.hours], style)


def _age(state: State, since: float | None) -> str:
    """How long before the state was written."""
    return "none" if since is None else rough(max(state.at - since, 0) * 1000)


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
