"""Silence: one side stops while the other goes on, or both send and nothing pairs. What is known of it after each batch, and in words.

Each batch carries what the next one needs in its own metrics (`silence:…`), so a report reads no more history than one row.
A record's time is its record timestamp, kept between the wall time up to which its topic had been read before and that of its batch:
no producer's clock can make a topic look silent, or awake. Times are epoch ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from include.config.pipeline import FEWEST_ORPHANS, Pipeline, Quality
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.facts import Facts
from spark_jobs.quality.numbers import ORPHANS, SIDES, Metrics

WARNING, IDLE, PASSED = "warning", "idle", "passed"
_FAMILY = "silence"


class LandedSide(NamedTuple):
    """What a batch landed of one side. `first`, `last`: record timestamps of accepted records; `drained`: nothing was left unread."""

    accepted: int
    refused: int
    first: float
    last: float
    drained: bool


class SideState(NamedTuple):
    """What is known of one side after a batch; `None`: there was none yet.

    `last_record`: time of the last accepted record. `read_to`: wall time up to which its topic was read. `quiet_from`: since when the other
    side sends alone, `quiet_ms`: for how long it did. `orphans`, `refused`: the other side's orphans, and own records refused, in the batches
    since the last record. `unpaired_from`, `unpaired_to`: wall times between which nearly all its events stayed alone; `unpaired`: these
    orphans.
    """

    last_record: float | None = None
    read_to: float | None = None
    quiet_from: float | None = None
    quiet_ms: float = 0.0
    is_silent: float = 0.0
    orphans: float = 0.0
    refused: float = 0.0
    unpaired_from: float | None = None
    unpaired_to: float | None = None
    unpaired: float = 0.0
    is_unpaired: float = 0.0

    @property
    def unpaired_ms(self) -> float:
        """How long nearly all events have stayed alone; 0 while they are too few to say so."""
        if self.unpaired_from is None or self.unpaired_to is None or self.unpaired < FEWEST_ORPHANS:
            return 0.0
        return self.unpaired_to - self.unpaired_from


class Notice(NamedTuple):
    """A sentence without a full stop. `style`: WARNING while it lasts, PASSED when it has ended, IDLE where neither side sends. `metrics`:
    the judged numbers behind it. `is_news`: it began or ended with this batch, so an alert tells it.
    """

    text: str
    style: str
    metrics: tuple[str, ...] = ()
    is_news: bool = False


def state_of(metrics: Metrics, side: str) -> SideState:
    names = {name: metrics.get(f"{_FAMILY}:{name}_{side}") for name in SideState._fields}
    return SideState(**{name: value for name, value in names.items() if value is not None})


def silence_metrics(batch: Batch, counted: Facts, metrics: Metrics, before: Metrics, quality: Quality) -> Metrics:
    """The state of both sides after a batch that follows one with the metrics `before`; nothing if the check is switched off.

    A replay or rewind hands on the state before it. A live batch also has the numbers that are judged and drawn.
    """
    if quality.silence_ms is None:
        return {}
    old = [state_of(before, side) for side in SIDES]
    if not batch.is_live:
        return _carried(old)
    landed = [_landed(batch, counted, name) for name in SIDES]
    new = next_states(quality, batch.at, old, landed, [metrics[kind] for kind in ORPHANS], metrics["pair"])
    return _carried(new) | _judged(old, new)


def _carried(states: Sequence[SideState]) -> Metrics:
    return {
        f"{_FAMILY}:{name}_{side}": value
        for side, state in zip(SIDES, states, strict=True)
        for name, value in state._asdict().items()
        if value is not None
    }


def _judged(old: Sequence[SideState], new: Sequence[SideState]) -> Metrics:
    """The numbers that are judged and drawn, and what began or ended with this batch."""
    metrics: Metrics = {}
    for side, before, now, other in zip(SIDES, old, new, reversed(new), strict=True):
        metrics |= {f"silent_{side}": now.quiet_ms, f"is_silent_{side}": now.is_silent, f"orphans_since_{side}": now.orphans}
        metrics |= {f"unpaired_{side}": now.unpaired_ms, f"is_unpaired_{side}": now.is_unpaired}
        if now.last_record is not None:
            metrics[f"last_record_{side}"] = now.last_record
        if now.is_silent != before.is_silent:
            since = before.last_record or before.quiet_from or 0.0
            metrics |= _changed("silent", side, bool(now.is_silent), since, before.orphans)
        # If the other side has fallen silent, that is reported instead.
        if now.is_unpaired != before.is_unpaired and not (other.is_silent and before.is_unpaired):
            metrics |= _changed("unpaired", side, bool(now.is_unpaired), before.unpaired_from or 0.0, before.unpaired)
    return metrics


def _changed(what: str, side: str, began: bool, since: float, orphans: float) -> Metrics:
    numbers = {"began": 1.0} if began else {"ended_since": since, "ended_orphans": orphans}
    return {f"{what}_change:{name}_{side}": value for name, value in numbers.items()}


def _change(metrics: Metrics, what: str, name: str, side: str) -> float | None:
    return metrics.get(f"{what}_change:{name}_{side}")


def _landed(batch: Batch, counted: Facts, name: str) -> LandedSide:
    ids, side = (batch.batch_id,), batch.paired.pipeline.sides[SIDES.index(name)]
    accepted = [found for _, _, found in counted.of(f"raw_{name}", ids, "accepted")]
    number = sum(found.number for found in accepted)
    first, last = min((found.first for found in accepted), default=0), max((found.last for found in accepted), default=0)
    drained = all(at.until_offset == at.end_offset for at in batch.landed.offsets if side.has(at.topic))
    return LandedSide(number, counted.number(f"raw_{name}", ids) - number, first, last, drained)


def next_states(
    quality: Quality,
    wall_time: float,
    old: Sequence[SideState],
    landed: Sequence[LandedSide],
    alone: Sequence[float],
    pairs: float,
) -> list[SideState]:
    """Left and right after a live batch. `alone`: its left_only and right_only compounds, `pairs`: those with both sides."""
    times = [_in_time(each, state, wall_time) for each, state in zip(landed, old, strict=True)]
    new = [_heard(state, times[here], wall_time, alone[1 - here]) for here, state in enumerate(old)]
    found = [_quiet(quality, mine, times[here], old[1 - here], times[1 - here]) for here, mine in enumerate(new)]
    begun = min((each.first for each in times if each.accepted), default=wall_time)
    return [
        _unpaired(quality, mine, bool(found[1 - here].is_silent), alone[here], pairs, (begun, wall_time))
        for here, mine in enumerate(found)
    ]


def _in_time(landed: LandedSide, state: SideState, wall_time: float) -> LandedSide:
    """With possible record timestamps: what is landed now was not there when the topic was read before."""
    first, last = (max(min(at, wall_time), state.read_to or 0.0) for at in (landed.first, landed.last))
    return landed._replace(first=first, last=last)


def _heard(state: SideState, landed: LandedSide, wall_time: float, orphans: float) -> SideState:
    """`orphans`: the other side's."""
    state = state._replace(read_to=wall_time if landed.drained else state.read_to)
    if not landed.accepted:
        return state._replace(orphans=state.orphans + orphans, refused=state.refused + landed.refused)
    last = max(landed.last, state.last_record or 0.0)
    return state._replace(last_record=last, quiet_from=None, quiet_ms=0.0, orphans=0.0, refused=0.0)


def _quiet(quality: Quality, mine: SideState, landed: LandedSide, other: SideState, other_landed: LandedSide) -> SideState:
    """`other`: its state before this batch. An unread offset may be a record, and an older record of the other side proves nothing."""
    assert quality.silence_ms is not None
    heard = mine.last_record or 0.0
    if not landed.accepted and landed.drained and other_landed.accepted and other_landed.last > heard:
        begun, pause = mine.quiet_from, other_landed.first - (other.last_record or 0.0)
        # After a night without either side the count begins anew; a silent side stays silent until its next record.
        if begun is None or (pause > quality.silence_ms and not mine.is_silent):
            begun = max(other_landed.first, heard)
        mine = mine._replace(quiet_from=begun, quiet_ms=max(other_landed.last - begun, 0.0))
    return mine._replace(is_silent=float(mine.quiet_ms > quality.silence_ms))


def _unpaired(
    quality: Quality, mine: SideState, other_silent: bool, alone: float, pairs: float, between: tuple[float, float]
) -> SideState:
    """`between`: the batch's first record and its wall time. A silent other side alone explains the orphans."""
    assert quality.silence_ms is not None
    begun, now = between
    if other_silent or (alone + pairs and alone / (alone + pairs) < quality.silent_share):
        return mine._replace(unpaired_from=None, unpaired_to=None, unpaired=0.0, is_unpaired=0.0)
    if alone:
        paused = mine.unpaired_to is not None and now - mine.unpaired_to > quality.silence_ms and not mine.is_unpaired
        if mine.unpaired_from is None or paused:
            mine = mine._replace(unpaired_from=min(begun, now), unpaired=0.0)
        mine = mine._replace(unpaired_to=now, unpaired=mine.unpaired + alone)
    return mine._replace(is_unpaired=float(mine.unpaired_ms > quality.silence_ms))


def notices(pipeline: Pipeline, metrics: Metrics) -> list[Notice]:
    """What there is to say of a live batch, for page, trend page, Great Expectations, run note and alert; usually nothing."""
    if not metrics.get("live") or "silent_left" not in metrics:
        return []
    states = [state_of(metrics, side) for side in SIDES]
    found = [*_silent_notices(pipeline, metrics, states), *_unpaired_notices(pipeline, metrics, states)]
    found += _ended_notices(pipeline, metrics)
    return found or [*_idle_notices(pipeline, metrics, states)]


def checked_sentences(found: Sequence[Notice]) -> dict[str, str]:
    """By metric, the sentence that a failed check shows instead of its rule."""
    return {metric: notice.text for notice in found if notice.style == WARNING for metric in notice.metrics}


def _topics(pipeline: Pipeline, here: int) -> tuple[str, str]:
    """What the topics of a side are called, and those of the other one."""
    return pipeline.sides[here].input, pipeline.sides[1 - here].input


def _silent_notices(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    for here, (side, state) in enumerate(zip(SIDES, states, strict=True)):
        if not state.is_silent:
            continue
        (topic, other), last = _topics(pipeline, here), state.last_record
        refused = f", all {state.refused:,.0f} records that came were refused" if state.refused else ""
        since = f"{state.orphans:,.0f} {ORPHANS[1 - here]} since{refused}; {other} goes on, up to {_at(states[1 - here].last_record)}"
        notice = Notice(f"{topic} has been silent since {_at(last)}: {since}", WARNING, (f"silent_{side}",))
        if last is None:
            begin = _at(state.quiet_from)
            notice = Notice(
                f"{topic} has not had one accepted record, while {other} sends since {begin}: {since}", *notice[1:]
            )
        yield notice._replace(is_news=bool(_change(metrics, "silent", "began", side)))


def _unpaired_notices(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    mine = [here for here, state in enumerate(states) if state.is_unpaired]
    began = [bool(_change(metrics, "unpaired", "began", side)) for side in SIDES]
    counts = [f"{state.unpaired:,.0f} {kind}" for kind, state in zip(ORPHANS, states, strict=True)]
    if len(mine) == len(SIDES):
        topic, other = _topics(pipeline, 0)
        since = _at(min(state.unpaired_from or 0.0 for state in states))
        yield Notice(
            f"{topic} and {other} both send, but nearly nothing has paired since {since}: {', '.join(counts)} since",
            WARNING,
            ("unpaired_left", "unpaired_right"),
            any(began),
        )
        return
    for here in mine:
        (topic, other), since = _topics(pipeline, here), _at(states[here].unpaired_from)
        yield Notice(
            f"{topic} sends, but nearly none of its events has found a partner of {other} since {since}: {counts[here]} since",
            WARNING,
            (f"unpaired_{SIDES[here]}",),
            began[here],
        )


def _ended_notices(pipeline: Pipeline, metrics: Metrics) -> Iterator[Notice]:
    for here, side in enumerate(SIDES):
        topic, other = _topics(pipeline, here)
        if (since := _change(metrics, "silent", "ended_since", side)) is not None:
            orphans = f"{_change(metrics, 'silent', 'ended_orphans', side):,.0f} {ORPHANS[1 - here]}"
            yield Notice(f"{topic} sends again: it was silent since {_at(since)}, with {orphans}", PASSED, is_news=True)
        if (since := _change(metrics, "unpaired", "ended_since", side)) is not None:
            orphans = f"{_change(metrics, 'unpaired', 'ended_orphans', side):,.0f} {ORPHANS[here]}"
            text = f"it found nearly none since {_at(since)}, with {orphans}"
            yield Notice(f"{topic} finds partners of {other} again: {text}", PASSED, is_news=True)


def _idle_notices(pipeline: Pipeline, metrics: Metrics, states: Sequence[SideState]) -> Iterator[Notice]:
    """Neither side sends: no alarm, but worth a line."""
    allowed = pipeline.quality.silence_ms
    newest = max((state.last_record for state in states if state.last_record is not None), default=None)
    if allowed is not None and (newest is None or metrics["wall_time"] - newest > allowed):
        left, right = _topics(pipeline, 0)
        since = "yet" if newest is None else f"since {_at(newest)}"
        yield Notice(f"neither {left} nor {right} has had an accepted record {since}", IDLE)


def _at(ms: float | None) -> str:
    """UTC. Times of records lie between 1970 and the batch's wall time, so each is a date.

    >>> _at(1767225900000), _at(None)
    ('2026-01-01 00:05 UTC', 'ever')
    """
    return "ever" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
