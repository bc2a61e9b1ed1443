"""What a batch's numbers say of a silent side, in one sentence each: for page, trend page, Great Expectations, run note and alert."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.quality.numbers import ORPHANS, SIDES, Metrics
from spark_jobs.quality.silence import SideState, state_of

WARNING, IDLE, PASSED = "warning", "idle", "passed"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Notice(NamedTuple):
    """A sentence without a full stop. `style`: WARNING while it lasts, PASSED when it has ended, IDLE where neither side sends. `metrics`: the
    judged numbers behind it. `is_news`: people are told, because it began or ended with this batch.
    """

    text: str
    style: str
    metrics: tuple[str, ...] = ()
    is_news: bool = False


def notices(pipeline: Pipeline, metrics: Metrics) -> list[Notice]:
    """What is to be said of a live batch; usually nothing."""
    if not metrics.get("live") or "silent_left" not in metrics:
        return []
    states = [state_of(metrics, side) for side in SIDES]
    found = [*_silent(pipeline, metrics, states), *_unpaired(pipeline, metrics, states), *_ended(pipeline, metrics)]
    return found or list(_idle(pipeline, metrics, states))


def checked_sentences(found: Sequence[Notice]) -> dict[str, str]:
    """What the checks that failed say in the place of their rule, by metric."""
    return {metric: notice.text for notice in found if notice.style == WARNING for metric in notice.metrics}


def notices_html(found: Sequence[Notice]) -> str:
    """The sentences at the top of a batch's page."""
    return "".join(f'<p class="notice {notice.style}">{html.escape(notice.text)}.</p>\n' for notice in found)


def _topics(pipeline: Pipeline, here: int) -> tuple[str, str]:
    """The topic of a side, and the other one."""
    return pipeline.sides[here].topic, pipeline.sides[1 - here].topic


def _silent(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    for here, (side, state) in enumerate(zip(SIDES, states, strict=True)):
        if not state.is_silent:
            continue
        (topic, other), metric = _topics(pipeline, here), (f"silent_{side}",)
        news = bool(_change(metrics, "silent", side, "began"))
        refused = f", all {state.refused:,.0f} records that came were refused" if state.refused else ""
        since = f"{state.orphans:,.0f} {ORPHANS[1 - here]} since{refused}; {other} goes on, up to {_at(states[1 - here].last_record)}"
        if state.last_record is None:
            yield Notice(
                f"{topic} has not had one accepted record, while {other} sends since {_at(state.quiet_from)}: {since}",
                WARNING,
                metric,
                news,
            )
        else:
            yield Notice(f"{topic} has been silent since {_at(state.last_record)}: {since}", WARNING, metric, news)


def _unpaired(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    mine = [here for here, state in enumerate(states) if state.is_unpaired]
    began = [bool(_change(metrics, "unpaired", side, "began")) for side in SIDES]
    if len(mine) == len(SIDES):
        left, right = (side.topic for side in pipeline.sides)
        since = _at(min(state.unpaired_from or 0.0 for state in states))
        counts = ", ".join(f"{state.unpaired:,.0f} {kind}" for kind, state in zip(ORPHANS, states, strict=True))
        yield Notice(
            f"{left} and {right} both send, but nearly nothing has paired since {since}: {counts} since",
            WARNING,
            ("unpaired_left", "unpaired_right"),
            any(began),
        )
        return
    for here in mine:
        (topic, other), state = _topics(pipeline, here), states[here]
        yield Notice(
            f"{topic} sends, but nearly none of its events has found a partner of {other} since {_at(state.unpaired_from)}: "
            f"{state.unpaired:,.0f} {ORPHANS[here]} since",
            WARNING,
            (f"unpaired_{SIDES[here]}",),
            began[here],
        )


def _ended(pipeline: Pipeline, metrics: Metrics) -> Iterator[Notice]:
    for here, side in enumerate(SIDES):
        topic, other = _topics(pipeline, here)
        if (since := _change(metrics, "silent", side, "ended_since")) is not None:
            orphans = f"{_change(metrics, 'silent', side, 'ended_orphans'):,.0f} {ORPHANS[1 - here]}"
            yield Notice(f"{topic} sends again: it was silent since {_at(since)}, with {orphans}", PASSED, is_news=True)
        if (since := _change(metrics, "unpaired", side, "ended_since")) is not None:
            orphans = f"{_change(metrics, 'unpaired', side, 'ended_orphans'):,.0f} {ORPHANS[here]}"
            yield Notice(
                f"{topic} finds partners of {other} again: it found nearly none since {_at(since)}, with {orphans}",
                PASSED,
                is_news=True,
            )


def _idle(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    """Nothing came from either: no alarm, but worth a line."""
    allowed = pipeline.quality.silence_ms
    newest = max((state.last_record for state in states if state.last_record is not None), default=None)
    if allowed is None or (newest is not None and metrics["wall_time"] - newest <= allowed):
        return
    left, right = (side.topic for side in pipeline.sides)
    since = "yet" if newest is None else f"since {_at(newest)}"
    yield Notice(f"neither {left} nor {right} has had an accepted record {since}", IDLE)


def _change(metrics: Metrics, what: str, side: str, name: str) -> float | None:
    return metrics.get(f"{what}_change:{name}_{side}")


def _at(ms: float | None) -> str:
    """Never beyond what a date can be: times of records are kept between 1970 and the batch's wall time.

    >>> _at(1767225900000), _at(None)
    ('2026-01-01 00:05 UTC', 'ever')
    """
    return "ever" if ms is None else f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M} UTC"
