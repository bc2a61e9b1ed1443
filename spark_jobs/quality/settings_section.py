"""The section of a batch's page about tolerance, gap and grace: today's values, and what the newest batches say about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from include.config.pictures import Series, bars
from include.config.pipeline import Pipeline
from include.config.time_text import rough
from spark_jobs.quality.buckets import BOUNDS_MS, MISSES, histogram
from spark_jobs.quality.facts import GRACE
from spark_jobs.quality.numbers import Breakdown, Metrics, rows_of
from spark_jobs.quality.rendering import render

_DISTANCE, _GRACE = "distance", "grace_needed"
# The newest batches that count: more would take seconds, and change no share.
BATCHES = 200
# Shares of events that the sentences are about.
_HALF, _MOST, _NEARLY_ALL, _ALMOST_ALL = 0.5, 0.9, 0.99, 0.999


class Setting(NamedTuple):
    """`meaning`: what it decides. `says`: sentences of the data about it. `picture` and its `table` (up to, number …) are empty without data."""

    name: str
    letter: str
    value: str
    meaning: str
    says: Sequence[str]
    picture: Markup
    heads: Sequence[str]
    table: Sequence[tuple[str, Sequence[int]]]


def settings_section(pipeline: Pipeline, metrics: Metrics, batches: Sequence[Sequence[Breakdown]]) -> Markup:
    """The section; empty for a replay, rewind or erasure. `batches`: the breakdowns of this batch and of those before it,
    at most BATCHES of them.
    """
    if not metrics.get("live"):
        return Markup("")
    rows = [row for breakdowns in batches for row in breakdowns]
    settings = [_tolerance(pipeline, rows), _gap(pipeline, rows), _grace(pipeline, rows)]
    return render("settings.html", pipeline=pipeline.name, settings=settings, batches=len(batches))


def _tolerance(pipeline: Pipeline, rows: Sequence[Breakdown]) -> Setting:
    pairs, misses = histogram(rows, _DISTANCE), histogram(rows, *MISSES)
    says = [*_distances(pairs, _number(rows, _DISTANCE)), *within_reach(pipeline, rows)]
    if pipeline.matching == "collapse":
        says.insert(0, "With matching: collapse it decides nothing.")
    return Setting(
        "tolerance", "T", rough(pipeline.tolerance_ms), "Two sides of a call are at most this far apart.", says,
        _picture("Distances of pairs, and of orphans to the closest unpaired event", "T", pipeline.tolerance_ms, pairs, misses),
        ("Distance", "pairs", "orphans, to the closest unpaired event"), _table(pairs, misses),
    )  # fmt: skip


def _gap(pipeline: Pipeline, rows: Sequence[Breakdown]) -> Setting:
    pairs, number = histogram(rows, _DISTANCE), _number(rows, _DISTANCE)
    waits = rough(pipeline.gap_ms + pipeline.grace_ms)
    says = [f"A compound is decided at the earliest {waits} (gap + grace) after the last event of its session."]
    if (near := _bound_of(pairs, _NEARLY_ALL * number)) is not None and number:
        says.append(
            f"{_share(pairs, near, number)} of the pairs are at most {rough(near)} apart: a shorter gap would split others."
        )
    if split := sum(each for at, each in histogram(rows, *MISSES).items() if pipeline.gap_ms < at <= pipeline.tolerance_ms):
        says.append(f"{split:,} orphans have a partner within T, but beyond the gap: gap = T may pair them.")
    return Setting(
        "gap", "G", rough(pipeline.gap_ms), "A longer silence ends the session of a key.", says,
        _picture("Distances of pairs", "G", pipeline.gap_ms, pairs), ("Distance", "pairs"), _table(pairs),
    )  # fmt: skip


def _grace(pipeline: Pipeline, rows: Sequence[Breakdown]) -> Setting:
    needed, late = histogram(rows, _GRACE), _number(rows, _GRACE)
    of_all, number = histogram(rows, GRACE), _number(rows, GRACE)
    none = number - sum(row.number for row in rows_of(rows, GRACE) if row.bucket != 0)
    # Beside late ones, others of their sessions may have come in time.
    others = {at: max(each - needed[at], 0) for at, each in of_all.items()}
    return Setting(
        "grace", "R", rough(pipeline.grace_ms), "How long a session that has ended waits for events that come late.",
        [*_of_all(of_all, none, number), *_in_time(pipeline, needed, late)],
        _picture("Grace that events needed in order not to be late", "R", pipeline.grace_ms, others, needed),
        ("Grace needed", "events in time", "late events"), [*([("none", [none, 0])] if none else []), *_table(others, needed)],
    )  # fmt: skip


def _distances(pairs: dict[int, int], number: int) -> Iterator[str]:
    for share in (_HALF, _NEARLY_ALL):
        if number and (near := _bound_of(pairs, share * number)) is not None:
            yield f"{_share(pairs, near, number)} of {number:,} pairs are at most {rough(near)} apart."


def within_reach(pipeline: Pipeline, rows: Sequence[Breakdown]) -> Iterator[str]:
    """What a larger tolerance would pair. Sessions end at the gap, so the gap has to grow with it."""
    found, orphans = histogram(rows, *MISSES), sum(_number(rows, family) for family in MISSES)
    if orphans and not any(found.values()):
        yield f"None of {orphans:,} orphans has an unpaired event of the other side with its key near it."
    elif alone := orphans - sum(found.values()):
        yield f"{alone:,} of {orphans:,} orphans have no unpaired event of the other side with their key near them: no T pairs these."
    so_far = said = sum(number for at, number in found.items() if at <= pipeline.tolerance_ms)
    for at, number in found.items():
        if at > pipeline.tolerance_ms:
            so_far += number
        if so_far - said >= 0.1 * orphans and so_far > said:
            settings = f"T = {rough(at)}" + (f" (and gap = {rough(at)})" if at > pipeline.gap_ms else "")
            yield f"{settings} would pair up to {so_far:,} of {orphans:,}."
            said = so_far


def _of_all(needed: dict[int, int], none: int, number: int) -> Iterator[str]:
    """How much grace all events together needed. `none`: how many of them needed none."""
    if not number:
        return
    yield f"{none * 1000 // number / 10:g} % of {number:,} events would have been in time with R = 0."
    said = none
    for share in (_NEARLY_ALL, _ALMOST_ALL):
        at, so_far = next(((at, none + each) for at, each in _sums(needed) if none + each >= share * number), (0, 0))
        if so_far > said:
            said = so_far
            yield f"R = {rough(at)} takes {so_far * 1000 // number / 10:g} % of all events in time."


def _in_time(pipeline: Pipeline, needed: dict[int, int], late: int) -> Iterator[str]:
    """What a longer grace would have taken in time."""
    if not late:
        yield "No event came late."
        return
    yield f"{late:,} events came late."
    bounds = [next((at for at, so_far in _sums(needed) if so_far >= share * late), 0) for share in (_HALF, _MOST)]
    for at in sorted({at for at in bounds if at > pipeline.grace_ms}):
        yield f"R = {rough(at)} would have taken {_share(needed, at, late)} of the late events in time; every compound would wait as long."
    if beyond := late - sum(needed.values()):
        yield f"{beyond:,} came more than {rough(BOUNDS_MS[-1])} late: a replay pairs them, no grace does."


def _number(rows: Sequence[Breakdown], family: str) -> int:
    return sum(row.number for row in rows_of(rows, family))


def _sums(found: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Each bound with what is up to it."""
    so_far = 0
    for at, number in found.items():
        so_far += number
        yield at, so_far


def _bound_of(found: dict[int, int], least: float) -> int | None:
    """The first bound up to which there are so many; None if there is none."""
    return next((at for at, so_far in _sums(found) if so_far >= least), None)


def _share(found: dict[int, int], bound: int, number: int) -> str:
    """Rounded down: not all of them are never 100 %."""
    so_far = dict(_sums(found))[bound]
    return f"{so_far * 1000 // number / 10:g} %"


def _picture(title: str, letter: str, value: int, *found: dict[int, int]) -> Markup:
    """The buckets from the first to the last that has any, and the setting; empty without any."""
    there = [index for index, at in enumerate(BOUNDS_MS) if any(each[at] for each in found)]
    if not there:
        return Markup("")
    mine = max((index for index, at in enumerate(BOUNDS_MS) if at <= value), default=0)
    shown = range(min(*there, mine), min(max(*there, mine) + 2, len(BOUNDS_MS)))
    bounds = [BOUNDS_MS[index] for index in shown]
    series = [Series(style, [each[at] for at in bounds]) for style, each in zip(("first", "second"), found, strict=False)]
    said = f"{title}; {letter} is {rough(value)}"
    ends = (f"up to {rough(bounds[0])}", rough(bounds[-1]))
    return bars(said, series, mine - shown[0], f"{letter} = {rough(value)}", ends)


def _table(*found: dict[int, int]) -> list[tuple[str, list[int]]]:
    numbers = [(f"up to {rough(at)}", [each[at] for each in found]) for at in BOUNDS_MS]
    return [(name, each) for name, each in numbers if any(each)]
