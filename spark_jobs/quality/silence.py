"""Whether one side is silent while the other goes on, or both send and nothing pairs: what is known of it after each batch.

Each batch carries all that the next one needs in its own metrics (`silence:…`), so a report reads no more history than one row.
A record's time is its record timestamp, kept between the wall time up to which its topic had been read before and that of its batch:
no producer's clock can make a topic look silent, or awake. Times are epoch ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from include.config.pipeline import FEWEST_ORPHANS, Quality
from spark_jobs.quality.batch import Steps
from spark_jobs.quality.facts import Facts
from spark_jobs.quality.numbers import ORPHANS, SIDES, Metrics
from spark_jobs.tables.ledger import LANDED, LIVE, PAIRED, PLANNED

_FAMILY = "silence"


class Landed(NamedTuple):
    """What a batch landed of one side. `first`, `last`: record timestamps of accepted records; `drained`: nothing was left unread."""

    accepted: int
    refused: int
    first: float
    last: float
    drained: bool


class SideState(NamedTuple):
    """What is known of one side after a batch; `None`: there was none yet.

    `last_record`: time of the last accepted record. `read_to`: wall time up to which its topic was read. `quiet_from`: since when the other
    side sends alone, `quiet_ms`: for how long it did. `orphans`, `refused`: the other side's orphans, and own records refused, in the batches since
    the last record. `unpaired_from`, `unpaired_to`: wall times between which nearly all its events stayed alone; `unpaired`: these orphans.
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
        """For how long nearly all events stayed alone; 0 as long as they are too few to say so."""
        if self.unpaired_from is None or self.unpaired_to is None or self.unpaired < FEWEST_ORPHANS:
            return 0.0
        return self.unpaired_to - self.unpaired_from


def state_of(metrics: Metrics, side: str) -> SideState:
    """The state of a side that a batch's metrics carry."""
    names = {name: metrics.get(f"{_FAMILY}:{name}_{side}") for name in SideState._fields}
    return SideState(**{name: value for name, value in names.items() if value is not None})


def silence_metrics(rows: Steps, counted: Facts, batch: Metrics, before: Metrics, quality: Quality) -> Metrics:
    """The state of both sides after a batch that goes on from one with the metrics `before`; nothing where it is switched off.

    A replay or rewind hands on what it goes on from. A live batch also has the numbers that are judged and drawn.
    """
    if quality.silence_ms is None:
        return {}
    old = [state_of(before, side) for side in SIDES]
    if rows[PAIRED].kind != LIVE:
        return _carried(old)
    landed = [_landed(rows, counted, name) for name in SIDES]
    new = next_states(quality, rows[PLANNED].wall_time, old, landed, [batch[kind] for kind in ORPHANS], batch["pair"])
    return _carried(new) | _judged(old, new)


def _carried(states: Sequence[SideState]) -> Metrics:
    return {
        f"{_FAMILY}:{name}_{side}": value
        for side, state in zip(SIDES, states, strict=True)
        for name, value in state._asdict().items()
        if value is not None
    }


def _judged(old: Sequence[SideState], new: Sequence[SideState]) -> Metrics:
    """What is judged and drawn, and what has begun or ended with this batch."""
    metrics: Metrics = {}
    for side, before, now, other in zip(SIDES, old, new, reversed(new), strict=True):
        metrics |= {f"silent_{side}": now.quiet_ms, f"is_silent_{side}": now.is_silent, f"orphans_since_{side}": now.orphans}
        metrics |= {f"unpaired_{side}": now.unpaired_ms, f"is_unpaired_{side}": now.is_unpaired}
        if now.last_record is not None:
            metrics[f"last_record_{side}"] = now.last_record
        if now.is_silent != before.is_silent:
            ended = {"since": before.last_record or before.quiet_from or 0.0, "orphans": before.orphans}
            metrics |= _change("silent", side, bool(now.is_silent), ended)
        # Where the other side has fallen silent, that is told instead.
        if now.is_unpaired != before.is_unpaired and not (other.is_silent and before.is_unpaired):
            ended = {"since": before.unpaired_from or 0.0, "orphans": before.unpaired}
            metrics |= _change("unpaired", side, bool(now.is_unpaired), ended)
    return metrics


def _change(what: str, side: str, began: bool, ended: Metrics) -> Metrics:
    told = {"began": 1.0} if began else {f"ended_{name}": value for name, value in ended.items()}
    return {f"{what}_change:{name}_{side}": value for name, value in told.items()}


def _landed(rows: Steps, counted: Facts, name: str) -> Landed:
    paired, ids = rows[PAIRED], (rows[PAIRED].batch_id,)
    side = paired.pipeline.left if name == "left" else paired.pipeline.right
    mine = [at for at in rows.get(LANDED, paired).offsets if at.topic == side.topic]
    accepted = [found for _, _, found in counted.of(f"raw_{name}", ids, "accepted")]
    number = sum(found.number for found in accepted)
    return Landed(
        accepted=number,
        refused=counted.number(f"raw_{name}", ids) - number,
        first=min((found.first for found in accepted), default=0),
        last=max((found.last for found in accepted), default=0),
        drained=all(at.until_offset == at.end_offset for at in mine),
    )


def next_states(
    quality: Quality,
    wall_time: float,
    old: Sequence[SideState],
    landed: Sequence[Landed],
    alone: Sequence[float],
    pairs: float,
) -> list[SideState]:
    """Left and right after a live batch. `alone`: its left_only and right_only compounds, `pairs`: those with both sides."""
    times = [_in_time(each, state, wall_time) for each, state in zip(landed, old, strict=True)]
    new = [_heard(state, each, wall_time) for state, each in zip(old, times, strict=True)]
    found = [_quiet(quality, mine, times[here], old[1 - here], times[1 - here]) for here, mine in enumerate(new)]
    found = [_counted(mine, times[here], alone[1 - here]) for here, mine in enumerate(found)]
    begun = min((each.first for each in times if each.accepted), default=wall_time)
    return [
        _unpaired(quality, mine, bool(found[1 - here].is_silent), alone[here], pairs, (begun, wall_time))
        for here, mine in enumerate(found)
    ]


def _in_time(landed: Landed, state: SideState, wall_time: float) -> Landed:
    """With record timestamps kept within what they can be: what is landed now was not there when the topic was read before."""
    since = state.read_to or 0.0
    first, last = (max(min(at, wall_time), since) for at in (landed.first, landed.last))
    return landed._replace(first=first, last=last)


def _heard(state: SideState, landed: Landed, wall_time: float) -> SideState:
    last = max(landed.last, state.last_record or 0.0) if landed.accepted else state.last_record
    return state._replace(last_record=last, read_to=wall_time if landed.drained else state.read_to)


def _quiet(quality: Quality, mine: SideState, landed: Landed, other: SideState, other_landed: Landed) -> SideState:
    """`other`: as it was before this batch. What is unread may be a record, and an older record of the other side proves nothing."""
    assert quality.silence_ms is not None
    if landed.accepted:
        return mine._replace(quiet_from=None, quiet_ms=0.0, is_silent=0.0)
    heard = mine.last_record or 0.0
    if landed.drained and other_landed.accepted and other_landed.last > heard:
        begun, pause = mine.quiet_from, other_landed.first - (other.last_record or 0.0)
        # After a night without either it begins anew; what was called silent stays so until a record comes.
        if begun is None or (pause > quality.silence_ms and not mine.is_silent):
            begun = max(other_landed.first, heard)
        mine = mine._replace(quiet_from=begun, quiet_ms=max(other_landed.last - begun, 0.0))
    return mine._replace(is_silent=float(mine.quiet_ms > quality.silence_ms))


def _counted(mine: SideState, landed: Landed, orphans: float) -> SideState:
    if landed.accepted:
        return mine._replace(orphans=0.0, refused=0.0)
    return mine._replace(orphans=mine.orphans + orphans, refused=mine.refused + landed.refused)


def _unpaired(
    quality: Quality, mine: SideState, other_silent: bool, alone: float, pairs: float, between: tuple[float, float]
) -> SideState:
    """`between`: the batch's first record and its wall time. A silent other side explains the orphans by itself."""
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
