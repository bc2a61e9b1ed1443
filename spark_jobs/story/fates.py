"""What became of each message of one key: its outcome, its session, its partner, as the rules answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome
from spark_jobs.rules.rules import Ints, Rules
from spark_jobs.rules.sessions import cut_sessions
from spark_jobs.story.played_batches import Played, Rehearsal, Row, land, source, source_order
from spark_jobs.story.record_files import Record

Cuts = Iterable[tuple[list[Record], int]]
"""Records and clock (epoch ms, also the wall time) of each batch."""


class KeyBatch(NamedTuple):
    """What a batch had of one key. `clock` at its end (None: minus infinity) and `wall_time` in epoch ms; `pipeline`: its settings."""

    batch_id: int
    records: list[Record]
    clock: int | None
    wall_time: int
    pipeline: Pipeline


Batches = list[KeyBatch]


class Session(NamedTuple):
    """First and last timestamp (epoch ms, both inclusive) and the number of events, duplicates left out."""

    start: int
    end: int
    events: int


class Fate(NamedTuple):
    """One message. `verdict`: an `Outcome`, or the reason it was rejected for at landing; `batch`: which one gave it.

    `partner`: source of the other half, of the event that is repeated (duplicate) or of the first one (collapsed).
    `session` is None for duplicates and for what was rejected at landing.
    """

    source: str
    side: int
    ts: int | None
    landed: int
    verdict: str
    batch: int
    session: Session | None
    partner: str | None


def numbered(pipeline: Pipeline, cuts: Cuts) -> Batches:
    """The batches of a rehearsal: counted from 1, all with the same settings."""
    return [KeyBatch(number, records, clock, clock, pipeline) for number, (records, clock) in enumerate(cuts, 1)]


def play_key(pipeline: Pipeline, cuts: Cuts) -> list[Played]:
    """Plays every batch of a rehearsal, with one key's records."""
    return play(numbered(pipeline, cuts), every=True)


def play(batches: Batches, every: bool = False) -> list[Played]:
    """Plays batches that hold one key's records; other keys would not change their outcomes.

    Unless `every`, those are left out, all but the last, in which nothing happens to the key. There may be many.
    """
    rehearsal = Rehearsal(batches[0].pipeline)
    played = []
    for batch in batches:
        rehearsal.pipeline, rehearsal.batch_id = batch.pipeline, batch.batch_id - 1
        if every or batch.records or batch is batches[-1] or not rehearsal.is_quiet(batch.clock):
            messages = land(batch.pipeline, batch.records, batch.wall_time, batch.batch_id)
            played.append(rehearsal.play(messages, batch.wall_time, batch.clock))
        elif batch.clock is not None:
            rehearsal.clock = max(batch.clock, rehearsal.clock or batch.clock)
    return played


def fates(pipeline: Pipeline, played: Iterable[Played]) -> list[Fate]:
    """The fate of every message of one key, in the order (ts, topic, partition, offset), unreadable times last."""
    found: dict[str, Fate] = {}
    for batch in played:
        for fate in [*_rejected_at_landing(pipeline, batch), *_decided(pipeline, batch)]:
            # An event that stays open is told by each batch; the last one counts.
            found[fate.source] = fate
    return sorted(found.values(), key=lambda fate: (fate.ts is None, fate.ts, source_order(fate.source)))


def _rejected_at_landing(pipeline: Pipeline, batch: Played) -> Iterator[Fate]:
    for row in batch.messages.filter(pc.is_valid(batch.messages.column("problem"))).to_pylist():
        at = source(pipeline, row["side"], row["partition"], row["offset"])
        yield Fate(at, row["side"], row["ts"], batch.batch_id, row["problem"], batch.batch_id, None, None)


def _decided(pipeline: Pipeline, batch: Played) -> Iterator[Fate]:
    rows = batch.outcomes.to_pylist()
    unique = [event for row in rows if row["outcome"] != Outcome.DUPLICATE for event in _events(pipeline, row)]
    sessions = _sessions(unique, batch)
    kept = {(side, row[f"{name}_ts"], row[f"{name}_payload"]): at for at, side, name, row in unique}
    firsts = {(sessions.get(at), side): at for at, side, _, row in unique if row["outcome"] in COMPOUNDS}
    for row in rows:
        events = _events(pipeline, row)
        for at, side, name, _ in events:
            session = sessions.get(at)  # none for a duplicate
            partner = next((other for other, *_ in events if other != at), None)
            if row["outcome"] == Outcome.DUPLICATE:
                partner = kept[side, row[f"{name}_ts"], row[f"{name}_payload"]]
            elif row["outcome"] == Outcome.COLLAPSED:
                partner = firsts[session, side]
            landed = row[f"{name}_batch_id"]
            yield Fate(at, side, row[f"{name}_ts"], landed, row["outcome"], batch.batch_id, session, partner)


_Event = tuple[str, int, str, Row]


def _events(pipeline: Pipeline, row: Row) -> list[_Event]:
    """(source, side, the side's name, row) of the one or two events in an outcome row."""
    return [
        (source(pipeline, side, row[f"{name}_partition"], row[f"{name}_offset"]), side, name, row)
        for side, name in enumerate(("left", "right"))
        if row[f"{name}_offset"] is not None
    ]


def _sessions(events: list[_Event], batch: Played) -> dict[str, Session]:
    """Source -> session, of one batch's events without duplicates."""
    ordered = sorted(events, key=lambda event: event[3][f"{event[2]}_ts"])
    ts = [row[f"{name}_ts"] for _, _, name, row in ordered]
    members: dict[int, list[int]] = {}
    numbers = session_numbers(ts, batch.rules).tolist()
    for number, at in zip(numbers, ts, strict=True):
        members.setdefault(number, []).append(at)
    sessions = {number: Session(times[0], times[-1], len(times)) for number, times in members.items()}
    return {event[0]: sessions[number] for event, number in zip(ordered, numbers, strict=True)}


def session_numbers(ts: list[int], rules: Rules) -> Ints:
    """The session of each of one key's ascending timestamps (epoch ms), counted from 0."""
    if not ts:
        return np.empty(0, dtype=np.int64)
    key, is_open = np.zeros(len(ts), dtype=np.int64), np.zeros(len(ts), dtype=bool)
    return cut_sessions(key, np.array(ts, dtype=np.int64), is_open, rules).number
