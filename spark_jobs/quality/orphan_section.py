"""The part of a batch's page that is about its orphans: sentences with both numbers, drawings, and their numbers as tables."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from include.config.pipeline import FEWEST_BATCHES, MS_PER_UNIT, Pipeline
from spark_jobs.quality.charts import Bar, bars, curve
from spark_jobs.quality.facts import ELSEWHERE
from spark_jobs.quality.history import ANY, SAME_HOUR, SAME_WEEKDAY_AND_HOUR
from spark_jobs.quality.numbers import ORPHANS, SIDES, Breakdown, Metrics, rows_of
from spark_jobs.quality.orphans import BOUNDS_MS, histogram, unbounded

# What is told, and its numbers.
Row = tuple[str, Sequence[float]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSES = ("miss_left", "miss_right")
_SHOWN = 48
_LIKE = {ANY: "", SAME_HOUR: " of this hour", SAME_WEEKDAY_AND_HOUR: " of this weekday and hour"}


def orphan_section(pipeline: Pipeline, metrics: Metrics, breakdowns: Sequence[Breakdown] = ()) -> str:
    """HTML; empty for what is no live batch, or was reported by a version that did not count them."""
    if not metrics.get("live"):
        return ""
    told = "".join(f"<li>{html.escape(sentence)}</li>\n" for sentence in sentences(pipeline, metrics, breakdowns))
    return f'<section id="orphans"><h2>Orphans</h2>\n<ul>\n{told}</ul>\n{_misses(pipeline, breakdowns)}{_hours(breakdowns)}</section>\n'


def sentences(pipeline: Pipeline, metrics: Metrics, breakdowns: Sequence[Breakdown]) -> Iterator[str]:
    """What the numbers say, for people."""
    orphans, compounds = sum(metrics.get(kind, 0.0) for kind in ORPHANS), metrics.get("compounds", 0.0)
    yield f"{orphans:,.0f} of {compounds:,.0f} compounds are one-sided: {metrics.get('orphan_ratio', 0.0):.1%}."
    yield _compared(metrics)
    for side, kind in zip(SIDES, ORPHANS, strict=True):
        if f"orphan_age_max_{side}" in metrics:
            middle, oldest = (metrics[f"orphan_age_{what}_{side}"] for what in ("median", "max"))
            yield (
                f"{metrics[kind]:,.0f} {side} events were given up, {metrics[f'orphan_ratio_{side}']:.1%} of that side: "
                f"{duration(middle)} after their timestamp (median), at most {duration(oldest)}."
            )
        yield from _where(metrics, breakdowns, side, kind)
    if rows_of(breakdowns, "top_user"):
        yield _whose(breakdowns, orphans)
    yield from _reach(pipeline, breakdowns, orphans)
    yield from _late(pipeline, metrics, breakdowns)
    if "skew_median" in metrics:
        yield _skew(metrics)


def _compared(metrics: Metrics) -> str:
    before = metrics.get("comparable_batches", 0.0)
    if "orphan_ratio_deviation" not in metrics:
        return f"Not compared with others: {before:.0f} comparable batches before it, {FEWEST_BATCHES} are needed."
    return (
        f"The {before:.0f} comparable batches before it{_LIKE[int(metrics['comparable_by'])]} had {metrics['orphan_ratio_median']:.1%} ± "
        f"{metrics['orphan_ratio_spread']:.1%} (median and spread): this one is {metrics['orphan_ratio_deviation']:+.1f} spreads off."
    )


def _where(metrics: Metrics, breakdowns: Sequence[Breakdown], side: str, kind: str) -> Iterator[str]:
    partitions = rows_of(breakdowns, f"partition_{kind}")
    if len(partitions) > 1:
        most = max(partitions, key=lambda row: row.number)
        yield (
            f"{most.number:,} of the {metrics[kind]:,.0f} {side} ones are of partition {most.bucket}, one of {len(partitions)} "
            "that have any."
        )


def _whose(breakdowns: Sequence[Breakdown], orphans: float) -> str:
    most = max(rows_of(breakdowns, "top_user"), key=lambda row: (row.number, row.field, row.value))
    others = sum(row.number for row in rows_of(breakdowns, "users") if row.field == most.field)
    name = f"{most.field}={most.value}"
    return (
        f"{most.number:,} of the {orphans:,.0f} are of {name}, one of {others:,} values of {most.field} that have orphans."
    )


def _reach(pipeline: Pipeline, breakdowns: Sequence[Breakdown], orphans: float) -> Iterator[str]:
    """What a larger tolerance would reach; sessions end at the gap, so that has to grow with it."""
    found = histogram(breakdowns, *_MISSES)
    if orphans and not any(found.values()):
        yield f"None of the {orphans:,.0f} has an unpaired event of the other side with its key near it."
    so_far = said = sum(number for at, number in found.items() if at <= pipeline.tolerance_ms)
    for at, number in found.items():
        if at > pipeline.tolerance_ms:
            so_far += number
        if so_far - said >= 0.1 * orphans and so_far > said:
            settings = f"T = {duration(at)}" + (f" (and gap = {duration(at)})" if at > pipeline.gap_ms else "")
            yield f"{settings} would pair up to {so_far:,.0f} of {orphans:,.0f}."
            said = so_far


def _late(pipeline: Pipeline, metrics: Metrics, breakdowns: Sequence[Breakdown]) -> Iterator[str]:
    late = sum(metrics.get(f"late_{side}", 0.0) for side in SIDES)
    if not late:
        return
    found, so_far = histogram(breakdowns, "grace_needed"), 0.0
    yield f"{metrics.get('late_healable', 0.0):,.0f} of {late:,.0f} late events have an unpaired partner: a replay of their interval pairs them."
    for at, number in found.items():
        so_far += number
        if at > pipeline.grace_ms and number and so_far >= 0.9 * late:
            yield f"R = {duration(at)} would have taken {so_far:,.0f} of {late:,.0f} late events in time."
            return


def _skew(metrics: Metrics) -> str:
    moved = f", {metrics['skew_drift']:+,.0f} ms against the batches before" if "skew_drift" in metrics else ""
    return (
        f"Right events are {metrics['skew_median']:+,.0f} ms from their left ones (median; the middle half from {metrics['skew_q1']:+,.0f} to "
        f"{metrics['skew_q3']:+,.0f} ms){moved}."
    )


def _misses(pipeline: Pipeline, breakdowns: Sequence[Breakdown]) -> str:
    families = [histogram(breakdowns, family) for family in _MISSES]
    rest = [unbounded(breakdowns, family) for family in _MISSES]
    everybody = sum(sum(each.values()) for each in families) + sum(rest)
    if not everybody:
        return ""
    labels, so_far = [duration(at) for at in BOUNDS_MS], 0.0
    shares: list[float] = []
    lines: list[Row] = []
    for at in BOUNDS_MS:
        here = [each[at] for each in families]
        so_far += sum(here)
        shares.append(so_far / everybody)
        if any(here):
            lines.append((f"up to {duration(at)}", [*here, so_far]))
    lines.append(("further, or nobody", [*rest, everybody]))
    mark = max((number for number, at in enumerate(BOUNDS_MS) if at <= pipeline.tolerance_ms), default=None)
    title = (
        f"Share of the orphans with an unpaired event of the other side within T; T is {duration(pipeline.tolerance_ms)} now"
    )
    drawn = bars("Distance to the closest unpaired event of the other side", _bars(labels, families))
    heads = ("Closest unpaired event of the other side", "left", "right", "so far")
    return f"<h3>Nearest misses</h3>\n{drawn}{curve(title, labels, shares, mark)}<p>{title}.</p>\n{table(heads, lines)}"


def _bars(labels: list[str], families: list[dict[int, int]]) -> list[Bar]:
    return [Bar(label, tuple(each[at] for each in families)) for label, at in zip(labels, BOUNDS_MS, strict=True)]


def _hours(breakdowns: Sequence[Breakdown]) -> str:
    found: dict[int, dict[str, int]] = {}
    for kind in (*ORPHANS, "pair"):
        for row in rows_of(breakdowns, f"hour_{kind}"):
            found.setdefault(row.bucket or 0, {})[kind] = row.number
    newest = sorted(found)[-_SHOWN:]
    rows: list[Row] = [(_hour(at), [found[at].get(kind, 0) for kind in (*ORPHANS, "pair")]) for at in newest]
    if not rows:
        return ""
    drawn = bars("Orphans by hour of event time", [Bar(label[-5:], parts[:2]) for label, parts in rows])
    heads = ("Hour of event time (UTC)", "left only", "right only", "pairs")
    return f"<h3>By hour</h3>\n{drawn if len(rows) > 1 else ''}{table(heads, rows)}"


def _hour(at: int) -> str:
    return "far from now" if at == ELSEWHERE else f"{_EPOCH + timedelta(milliseconds=at):%Y-%m-%d %H:%M}"


def table(heads: tuple[str, ...], rows: list[Row]) -> str:
    """HTML; the first column is text, the others are numbers."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    lines = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f'<td class="number">{n:,.0f}</td>' for n in numbers)
        + "</tr>\n"
        for name, numbers in rows
    )
    return f"<table><tr>{head}</tr>\n{lines}</table>\n"


def duration(ms: float) -> str:
    """In the largest unit in which it is short.

    >>> duration(90_000), duration(60_000), duration(250), duration(7_500_000), duration(86_400_000)
    ('90 s', '1 min', '250 ms', '2.1 h', '1 d')
    """
    for unit, name, least in (("d", "d", 1), ("h", "h", 1), ("m", "min", 2), ("s", "s", 1)):
        size = MS_PER_UNIT[unit]
        if ms >= least * size or (unit == "m" and ms == size):
            return f"{ms / size:.1f}".removesuffix(".0") + f" {name}"
    return f"{ms:.0f} ms"
