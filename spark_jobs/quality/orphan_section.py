"""The section of a batch's page about its orphans: sentences with both numbers, charts, and the numbers of the charts as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from include.config.pipeline import FEWEST_BATCHES, Pipeline
from include.config.time_text import rough
from spark_jobs.quality.buckets import BOUNDS_MS, MISSES, histogram
from spark_jobs.quality.facts import ELSEWHERE
from spark_jobs.quality.history import ANY, SAME_HOUR, SAME_WEEKDAY_AND_HOUR
from spark_jobs.quality.numbers import ORPHANS, SIDES, Breakdown, Metrics, rows_of
from spark_jobs.quality.rendering import render

_HOURS_SHOWN = 48
_LIKE = {ANY: "", SAME_HOUR: " of this hour", SAME_WEEKDAY_AND_HOUR: " of this weekday and hour"}
# A row of a table: its name and its numbers.
_Row = tuple[str, Sequence[float]]


def orphan_section(pipeline: Pipeline, metrics: Metrics, breakdowns: Sequence[Breakdown] = ()) -> Markup:
    """The section; empty for a replay or rewind, and for a batch without these counts."""
    if not metrics.get("live"):
        return Markup("")
    return render(
        "orphans.html",
        sentences=[*sentences(metrics, breakdowns)],
        misses=_misses(pipeline, breakdowns),
        hours=_hours(breakdowns),
    )


def sentences(metrics: Metrics, breakdowns: Sequence[Breakdown]) -> Iterator[str]:
    """What the numbers say, in words."""
    orphans, compounds = sum(metrics.get(kind, 0.0) for kind in ORPHANS), metrics.get("compounds", 0.0)
    yield f"{orphans:,.0f} of {compounds:,.0f} compounds are one-sided: {metrics.get('orphan_ratio', 0.0):.1%}."
    yield _compared(metrics)
    for side, kind in zip(SIDES, ORPHANS, strict=True):
        yield from _of_side(metrics, breakdowns, side, kind)
    if rows_of(breakdowns, "top_user"):
        yield _whose(breakdowns, orphans)
    if "skew_median" in metrics:
        moved = f", {metrics['skew_drift']:+,.0f} ms against the batches before" if "skew_drift" in metrics else ""
        yield (
            f"Right events are {metrics['skew_median']:+,.0f} ms from their left ones (median; the middle half from "
            f"{metrics['skew_q1']:+,.0f} to {metrics['skew_q3']:+,.0f} ms){moved}."
        )


def _compared(metrics: Metrics) -> str:
    before = metrics.get("comparable_batches", 0.0)
    if "orphan_ratio_deviation" not in metrics:
        return f"Not compared with others: {before:.0f} comparable batches before it, {FEWEST_BATCHES} are needed."
    return (
        f"The {before:.0f} comparable batches before it{_LIKE[int(metrics['comparable_by'])]} had {metrics['orphan_ratio_median']:.1%} ± "
        f"{metrics['orphan_ratio_spread']:.1%} (median and spread): this one is {metrics['orphan_ratio_deviation']:+.1f} spreads off."
    )


def _of_side(metrics: Metrics, breakdowns: Sequence[Breakdown], side: str, kind: str) -> Iterator[str]:
    """How old the orphans of a side are, and which partition has most of them."""
    if f"orphan_age_max_{side}" in metrics:
        middle, oldest = (metrics[f"orphan_age_{what}_{side}"] for what in ("median", "max"))
        yield (
            f"{metrics[kind]:,.0f} {side} events were given up, {metrics[f'orphan_ratio_{side}']:.1%} of that side: "
            f"{rough(middle)} after their timestamp (median), at most {rough(oldest)}."
        )
    partitions = rows_of(breakdowns, f"partition_{kind}")
    if len(partitions) > 1:
        most = max(partitions, key=lambda row: row.number)
        whose = f" of {most.value}" if most.value else ""
        of = f"partition {most.bucket}{whose}, one of {len(partitions)} that have any"
        yield f"{most.number:,} of the {metrics[kind]:,.0f} {side} ones are of {of}."


def _whose(breakdowns: Sequence[Breakdown], orphans: float) -> str:
    most = max(rows_of(breakdowns, "top_user"), key=lambda row: (row.number, row.field, row.value))
    others = sum(row.number for row in rows_of(breakdowns, "users") if row.field == most.field)
    return f"{most.number:,} of the {orphans:,.0f} are of {named(most)} {others:,} values of {most.field} that have orphans."


def named(most: Breakdown) -> str:
    """How a page names the value of a key field: the only place where it names one."""
    return f"{most.field}={most.value}, one of"


def _misses(pipeline: Pipeline, breakdowns: Sequence[Breakdown]) -> dict[str, Any] | None:
    """How far away the closest unpaired event of the other side is: for the template, None without orphans."""
    left, right = (histogram(breakdowns, family) for family in MISSES)
    rest = [sum(row.number for row in rows_of(breakdowns, family) if row.bucket is None) for family in MISSES]
    orphans = sum(left.values()) + sum(right.values()) + sum(rest)
    if not orphans:
        return None
    so_far = list(accumulate(left[at] + right[at] for at in BOUNDS_MS))
    shares, labels = [round(number / orphans, 4) for number in so_far], [rough(at) for at in BOUNDS_MS]
    numbers = zip(labels, left.values(), right.values(), so_far, strict=True)
    rows: list[_Row] = [(f"up to {label}", [*found]) for label, *found in numbers if found[0] or found[1]]
    mark = max((index for index, at in enumerate(BOUNDS_MS) if at <= pipeline.tolerance_ms), default=None)
    tolerance = rough(pipeline.tolerance_ms)
    return {
        "title": f"Share of the orphans with an unpaired event of the other side within T; T is {tolerance} now",
        "bars": _bars("Within", labels, [*left.values()], [*right.values()]) if rows else None,
        "curve": {"x": "Within", "labels": labels, "series": [("share", shares)], "line": True, "mark": mark},
        "rows": [*rows, ("further, or nobody", [*rest, orphans])],
    }


def _hours(breakdowns: Sequence[Breakdown]) -> dict[str, Any] | None:
    """The newest hours of event time with compounds: for the template, None without any."""
    families = (f"hour_{kind}" for kind in (*ORPHANS, "pair"))
    kinds = [{row.bucket or 0: row.number for row in rows_of(breakdowns, family)} for family in families]
    newest = sorted({hour for hours in kinds for hour in hours})[-_HOURS_SHOWN:]
    rows: list[_Row] = [(_hour(at), [hours.get(at, 0) for hours in kinds]) for at in newest]
    if not rows:
        return None
    left, right = ([numbers[side] for _, numbers in rows] for side in range(len(SIDES)))
    bars = _bars("Hour", [label[-5:] for label, _ in rows], left, right)
    return {"bars": bars if len(rows) > 1 and any(left + right) else None, "rows": rows}


def _bars(x: str, labels: list[str], left: Sequence[float], right: Sequence[float]) -> dict[str, Any]:
    return {"x": x, "labels": labels, "series": [("left", left), ("right", right)]}


def _hour(at: int) -> str:
    return "far from now" if at == ELSEWHERE else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M}"
