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


# Of one severity these come last: nothing is wrong with what is published now.
_LAST = ("late_healable",)


class Card(NamedTuple):
    """A problem with what is known of it. `is_remark`: it could not be judged, and counts for nothing."""

    problem: Problem
    advice: Advice
    is_remark: bool = False

    @property
    def word(self) -> str:
        """What stands before its sentence."""
        return "not judged" if self.is_remark else "taken over" if self.problem.acknowledged else self.problem.severity


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
    is_paused: bool = False,
) -> Markup:
    """The section: headings from h2 on. `counts`: those of the batch, for a state without the window of a day. `subject`: of what it is the state,
    if not of the pipeline. `links`: (address, words). `now`: epoch seconds at which somebody looks, if that is not when the page was written.
    `is_paused`: whether the pipeline's DAG is, as far as the page knows.
    """
    title, shown = sentence(state, subject or state.pipeline), [*tiles(state, counts)]
    ago = None if now is None else rough(max(now - state.at, 0) * 1000)
    return Markup(
        _template().render(
            state=state, title=title, cards=cards(state), tiles=shown, links=links, ago=ago, is_paused=is_paused
        )
    )


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
    """The problems: those that nobody has taken over first, failed before warned, newest first, but late events last. Then the remarks."""
    ordered = sorted(
        state.problems,
        key=lambda each: (each.acknowledged is not None, each.severity != FAILED, each.name in _LAST, -each.since),
    )
    found = [Card(problem, advice(problem.name, problem.runbook)) for problem in ordered]
    return found + [Card(remark, advice(remark.name, remark.runbook), is_remark=True) for remark in state.remarks]


def tiles(state: State, counts: Counts | None) -> Iterator[Tile]:
    """What waits, then what came and what became of it: in a day, or in the batch."""
    lag, day = state.lag, state.windows.get(_DAY)
    ages = [f"oldest unread {_age(state, lag.oldest_unread)}", f"oldest open {_age(state, lag.oldest_open)}"]
    yield Tile("Records unread", lag.unread, ages if state.windows else [], Markup(""))
    shown, when = (day, "24 h") if day else (counts, "this batch")
    if shown is None:
        return
    for field, name in (("landed", "Landed"), ("pair", "Paired"), ("left_only", "Left only"), ("right_only", "Right only")):
        is_alone = field.endswith("_only")
        share = [f"{_share(shown, field)} of compounds"] if is_alone else []
        lines, style = [*share, *_others(state, field, is_alone)], "alone" if is_alone else "usual"
        yield Tile(f"{name}, {when}", getattr(shown, field), lines, _trend(state, field, name, style))
    late = [f"late: {shown.late:,}", *([f"with a partner: {shown.late_healable:,}"] if shown.late_healable else [])]
    yield Tile(f"Rejected, {when}", shown.rejected, late, _trend(state, "rejected", "Rejected", "alone"))


def _others(state: State, field: str, has_share: bool) -> list[str]:
    """The same number in the other windows: a day says little of what began a moment ago."""
    found = {name: state.windows[each] for each, name in {"1h": "1 h", "7d": "7 d"}.items() if each in state.windows}
    shares = {name: f" ({_share(counts, field)})" if has_share else "" for name, counts in found.items()}
    return [f"{name}: {getattr(counts, field):,}{shares[name]}" for name, counts in found.items()]


def _share(counts: Counts, field: str) -> str:
    compounds = counts.pair + counts.left_only + counts.right_only
    return f"{getattr(counts, field) / compounds if compounds else 0:.1%}"


def _trend(state: State, field: str, name: str, style: str) -> Markup:
    return sparkline(f"{name} by hour, the last {len(state.hours)}", [getattr(hour, field) for hour in state.hours], style)


def _age(state: State, since: float | None) -> str:
    """How long before the state was written."""
    return "none" if since is None else rough(max(state.at - since, 0) * 1000)


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
