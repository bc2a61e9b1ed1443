"""Plays batches in memory with the functions that the Spark jobs call, and says what became of each message of one key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.compounds import mark_superseded, source_columns
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.key_order import order_keys
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome, decide_outcomes, names_of_side
from spark_jobs.rules.reasons import FILTERED
from spark_jobs.rules.rules import LEFT, REVERSED, RIGHT, SOURCE_PAIR_ID, SUPERSEDED, Rules, event_schema
from spark_jobs.rules.sessions import cut_sessions
from spark_jobs.rules.side_topics import SideTopics, located, pack, renumbered, topics_of
from spark_jobs.story.history import Batch, Fate, Session
from spark_jobs.story.parsing import headers_of, parse_messages

Row = dict[str, Any]
SIDES = ((LEFT, "left"), (RIGHT, "right"))
_PLACE = {"topic": pa.string(), "partition": pa.int32()}


class PlayedBatch(NamedTuple):
    """One batch: `messages` it landed (see `land`), the open and accepted `events` it began with, their `outcomes`."""

    batch: Batch
    rules: Rules
    messages: pa.Table
    events: pa.Table
    outcomes: pa.Table

    @property
    def accepted(self) -> int:
        """How many of the messages are events."""
        return int(self.messages.column("problem").null_count)


class Rehearsal:
    """What one batch hands to the next: open events, the topics by which they are numbered, and clock (epoch ms, None before the first batch)."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.open_events = event_schema(pipeline).empty_table()
        self.topics = topics_of(pipeline)
        self.clock: int | None = None

    def play(self, batch: Batch) -> PlayedBatch:
        """One batch, landed and paired. Its clock never falls behind the previous batch's."""
        topics = topics_of(batch.pipeline, {*self.topics.left, *self.topics.right, *topics_in(batch)})
        rules = Rules(batch.pipeline, self._clock_of(batch), self.clock, topics)
        messages, schema = land(batch, topics), event_schema(batch.pipeline)
        accepted = messages.filter(pc.is_null(messages.column("problem"))).select(schema.names)
        events = pa.concat_tables([waiting := renumbered(self.open_events, self.topics, topics), accepted])
        if batch.pipeline.has_compounds:
            events = mark_superseded(events, [waiting, messages])
        outcomes = decide_outcomes(events, rules)
        check_conservation(self.open_events.num_rows, accepted.num_rows, Counter(outcomes.column("outcome").to_pylist()))
        self.open_events, self.topics, self.clock = _still_open(outcomes, batch.pipeline), topics, rules.clock
        return PlayedBatch(batch, rules, messages, events, outcomes)

    def skip(self, batch: Batch) -> bool:
        """Skips a batch that reads nothing and closes nothing; False, and nothing changed, if it is not such a batch."""
        clock = self._clock_of(batch)
        first = pc.min(self.open_events.column("ts")).as_py() if self.open_events.num_rows else None
        is_quiet = first is None or clock is None or first + batch.pipeline.gap_ms + batch.pipeline.grace_ms >= clock
        if batch.messages or not is_quiet:
            return False
        self.clock = clock
        return True

    def _clock_of(self, batch: Batch) -> int | None:
        return max((clock for clock in (batch.clock, self.clock) if clock is not None), default=None)


def play(batches: list[Batch]) -> list[PlayedBatch]:
    """Plays the batches of one key, ascending, in order; the other keys would not change their outcomes.

    There may be many, so those in which nothing happens to the key are left out of the result, except for the last one.
    """
    if not batches:
        return []
    *before, last = batches
    rehearsal = Rehearsal(last.pipeline)
    return [*(rehearsal.play(batch) for batch in before if not rehearsal.skip(batch)), rehearsal.play(last)]


def topics_in(batch: Batch) -> set[str]:
    """The topics of its messages."""
    return {message.topic for message in batch.messages}


def land(batch: Batch, topics: SideTopics) -> pa.Table:
    """What the messages say: the columns of `event_schema` and `problem`, a reason or null. Left messages come first.

    `topics`: those by which they are numbered.
    """
    pipeline = batch.pipeline
    schema = event_schema(pipeline).append(pa.field("problem", pa.string()))
    as_they_came = pa.schema([field for field in schema if field.name != REVERSED])
    tables = []
    for number, side in enumerate(pipeline.sides):
        mine = [message for message in batch.messages if message.topic in topics[number]]
        says = parse_messages(mine, pipeline, side, batch.wall_time + pipeline.max_future_ms)
        columns: dict[str, Any] = {name: [each.key[rank] for each in says] for rank, name in enumerate(pipeline.key)}
        columns |= {name: [getattr(each, name) for each in says] for name in ("ts", "payload", "problem")}
        columns |= {"side": [number] * len(mine), "batch_id": [batch.batch_id] * len(mine), "is_open": [False] * len(mine)}
        place = (pa.array([getattr(message, name) for message in mine], kind) for name, kind in _PLACE.items())
        columns |= {"partition": pack(topics[number], *place), "offset": [message.offset for message in mine]}
        if pipeline.has_compounds:
            columns |= {**source_columns(side, headers_of(mine)), SUPERSEDED: [False] * len(mine)}
        tables.append(order_keys(pa.table(columns, schema=as_they_came), pipeline).select(schema.names))
    return pa.concat_tables(tables)


def rows_of(outcomes: pa.Table, *kinds: str) -> list[Row]:
    """The rows with one of these outcomes."""
    wanted = pa.array([str(kind) for kind in kinds])
    return list(outcomes.filter(pc.is_in(outcomes.column("outcome"), wanted)).to_pylist())


def source(topics: SideTopics, side: int, partition: int, offset: int) -> str:
    """`topic-partition-offset` of an event. `topics`: those by which `partition` is numbered."""
    topic, number = located(topics[side], partition)
    return f"{topic}-{number}-{offset}"


def source_in(topics: SideTopics, row: Row, side: int, name: str) -> str | None:
    """The source of an outcome row's event of one side, None if there is none."""
    offset = row[f"{name}_offset"]
    return None if offset is None else source(topics, side, row[f"{name}_partition"], offset)


def source_order(text: str) -> tuple[str, int, int]:
    """Sorts sources by topic, partition, offset."""
    topic, partition, offset = text.rsplit("-", 2)
    return topic, int(partition), int(offset)


def _still_open(outcomes: pa.Table, pipeline: Pipeline) -> pa.Table:
    rows = [
        {name: row[name] for name in pipeline.key}
        | {"side": number, "is_open": True, SUPERSEDED: False}
        | {column: row[f"{side}_{column}"] for column in names_of_side(pipeline)}
        for row in rows_of(outcomes, Outcome.OPEN)
        for number, side in SIDES
        if row[f"{side}_offset"] is not None
    ]
    return pa.Table.from_pylist(rows, schema=event_schema(pipeline))


def fates(played: Iterable[PlayedBatch]) -> list[Fate]:
    """The fate of every message of one key, in the order (ts, topic, partition, offset), unreadable times last."""
    found: dict[str, Fate] = {}
    for batch in played:
        # Each batch lists an event that stays open; the last one counts.
        found |= {fate.source: fate for fate in (*_rejected_at_landing(batch), *_decided(batch))}
    return sorted(found.values(), key=lambda fate: (fate.ts is None, fate.ts, source_order(fate.source)))


def _rejected_at_landing(played: PlayedBatch) -> Iterator[Fate]:
    number = played.batch.batch_id
    for row in played.messages.filter(pc.not_equal(played.messages.column("problem"), FILTERED)).to_pylist():
        at = source(played.rules.topics, row["side"], row["partition"], row["offset"])
        yield Fate(at, row["side"], row["ts"], number, row["problem"], number, is_reversed=bool(row.get(REVERSED)))


def _decided(played: PlayedBatch) -> Iterator[Fate]:
    # What two events have in common of which one repeats the other.
    events, says = [], {}
    for row in played.outcomes.to_pylist():
        sources = [source_in(played.rules.topics, row, side, name) for side, name in SIDES]
        for (side, name), at, other in zip(SIDES, sources, reversed(sources), strict=True):
            if at is not None:
                landed, ts, payload = (row[f"{name}_{column}"] for column in ("batch_id", "ts", "payload"))
                says[at] = row.get(f"{name}_{SOURCE_PAIR_ID}") or payload
                is_reversed = bool(row.get(f"{name}_{REVERSED}"))
                events.append(Fate(at, side, ts, landed, row["outcome"], played.batch.batch_id, None, other, is_reversed))
    unique = [event for event in events if event.verdict not in (Outcome.DUPLICATE, Outcome.SUPERSEDED)]
    sessions = _sessions(unique, played.rules)
    kept = {(event.side, event.ts, event.is_reversed, says[event.source]): event.source for event in unique}
    firsts = {(sessions[event.source], event.side): event.source for event in unique if event.verdict in COMPOUNDS}
    for event in events:
        if event.verdict == Outcome.SUPERSEDED:
            yield event
            continue
        if event.verdict == Outcome.DUPLICATE:
            yield event._replace(partner=kept[event.side, event.ts, event.is_reversed, says[event.source]])
            continue
        session = sessions[event.source]
        partner = firsts[session, event.side] if event.verdict == Outcome.COLLAPSED else event.partner
        yield event._replace(session=session, partner=partner)


def _sessions(events: list[Fate], rules: Rules) -> dict[str, Session]:
    """Source -> session, of one batch's events of one key without duplicates."""
    ordered = sorted(events, key=lambda event: event.ts or 0)
    ts = np.array([event.ts for event in ordered], dtype=np.int64)
    cut = cut_sessions(np.zeros_like(ts), ts, np.zeros(len(ts), dtype=bool), rules)
    sizes = np.bincount(cut.number).tolist()
    sessions = [Session(*each) for each in zip(cut.start.tolist(), cut.end.tolist(), sizes, strict=True)]
    return {event.source: sessions[number] for event, number in zip(ordered, cut.number.tolist(), strict=True)}
