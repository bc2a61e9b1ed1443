"""One pair's story from the tables: its events are played again with the clocks and settings that the ledger has of their batches, which
gives the words of a rehearsal; what the tables say is held against it, and what came later is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from include.config.pipeline import Pipeline
from include.config.time_text import away, count, moment
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import Reason
from spark_jobs.story.batches import History, read_history
from spark_jobs.story.fates import Batches, Fate, play
from spark_jobs.story.key_rows import Messages, compounds_of, count_of, messages_of, records_of, rejected_of
from spark_jobs.story.played_batches import Played
from spark_jobs.story.published import Compounds
from spark_jobs.story.rehearsed import UnknownKey, batch_line, settings_of, written
from spark_jobs.story.sentences import Story
from spark_jobs.tables.records import REPLAY, Window
from spark_jobs.tables.warehouse import Warehouse

Row = dict[str, Any]


def explain(warehouse: Warehouse, key: tuple[str, ...], around: int | None = None) -> Iterator[str]:
    """The lines of the story; with `around` (epoch ms) of what lies about as far from that as a session can reach.

    Raises UnknownKey before the first line, JobProblem if tables cannot be read.
    """
    pipeline, history = warehouse.pipeline, read_history(warehouse)
    near = None if around is None else Window(around - _reach(pipeline), around + _reach(pipeline) + 1)
    messages = messages_of(warehouse, key, near, [] if near is None else _batches_at(history, near))
    rows = compounds_of(warehouse, key, near and Window(near.start - _reach(pipeline), near.end + _reach(pipeline)))
    if not any(messages) and not rows:
        raise UnknownKey(_unknown(warehouse, key, near, history))
    return _lines(warehouse, key, near, history, messages, rows)


def _lines(
    warehouse: Warehouse, key: tuple[str, ...], near: Window | None, history: History, messages: Messages, rows: list[Row]
) -> Iterator[str]:
    pipeline = warehouse.pipeline
    live = {row["batch_id"] for row in history.paired}
    paired = [row for row in messages.own if row["batch_id"] in live]
    own, played = _played(history, paired)
    told = Story(pipeline, own, played) if played else None
    fates = [fate for fate in told.told if near is None or _is_near(fate, near)] if told else []
    landed_in = {row["batch_id"] for row in messages.own}
    yield (
        f"{written(key)}: {count(len(messages.own), 'message')} in {count(len(landed_in), 'batch')}, pipeline {pipeline.name} "
        f"({settings_of(pipeline)})"
    )
    if aged := history.aged():
        yield aged
    if near:
        yield f"told is what lies in the interval {near}"
    of = {batch.batch_id: batch.pipeline for batch in own}
    touched = {number for fate in fates for number in (fate.landed, fate.batch)}
    for batch in played:
        if batch.batch_id in touched:
            ran_with = settings_of(of[batch.batch_id])
            yield batch_line(batch) + (f", with other settings: {ran_with}" if ran_with != settings_of(pipeline) else "")
    said = _said(rows, rejected_of(warehouse, paired), live)
    for fate in fates:
        assert told is not None
        yield ""
        yield from told.event(fate)
        yield from (
            f"  {sentence}"
            for sentence in _otherwise(fate, said.get(fate.source), history.may_lack(fate.ts, _reach(pipeline)))
        )
        yield from (f"  {sentence}" for sentence in _corrected(fate, rows, history))
    yield from _others(pipeline, messages, live)
    sources = {fate.source for fate in fates}
    mine = [row for row in rows if near is None or near.start <= row["ts"] < near.end or sources & set(_sources(row))]
    yield from Compounds(warehouse, key, history).told(mine)


def _played(history: History, messages: list[Row]) -> tuple[Batches, list[Played]]:
    """The batches that matter to the messages, and how they went."""
    if not messages:
        return [], []
    batches = history.batches(records_of(messages))
    played = play(batches)
    # Proposals are played on these alone: the one before a batch that read something says what was over by then.
    numbers = {batch.batch_id for batch in played}
    before = {batches[place - 1].batch_id for place, batch in enumerate(batches) if place and batch.records}
    return [batch for batch in batches if batch.batch_id in numbers | before], played


def _said(rows: list[Row], rejected: list[Row], live: set[int]) -> dict[str, tuple[str, int]]:
    """Source -> what the tables say became of it in a live batch, and in which."""
    found = {source: (row["kind"], row["batch_id"]) for row in rows if row["batch_id"] in live for source in _sources(row)}
    return found | {_place(row): (row["reason"], row["batch_id"]) for row in rejected if row["batch_id"] in live}


def _otherwise(fate: Fate, said: tuple[str, int] | None, may_lack: bool) -> Iterator[str]:
    # An event that is open or collapsed is in neither of the two tables.
    expected = None if fate.verdict in (Outcome.OPEN, Outcome.COLLAPSED) else (str(fate.verdict), fate.batch)
    if said != expected:
        what = "nothing of it" if said is None else f"{said[0]} in batch {said[1]}"
        if may_lack:
            yield f"the tables say: {what}; played without messages that were removed for their age, so this may come of them"
            return
        yield f"the tables say otherwise: {what}; reconcile holds all of them against each other"


def _corrected(fate: Fate, rows: list[Row], history: History) -> Iterator[str]:
    """What replays made of an event."""
    for row in rows:
        plan = history.corrections.get(row["batch_id"])
        sources = _sources(row)
        if plan is None or plan.kind != REPLAY or row["op"] == "retract" or fate.source not in sources:
            continue
        other = next((source for source in sources if source != fate.source), None)
        if other is None:
            became = f"alone ({row['kind']})"
        else:
            distances = (row["right_ts"] - row["left_ts"]) * (1 if sources[0] == fate.source else -1)
            became = f"paired with {other}, {away(distances)}"
        yield f"{history.kind(row['batch_id'])}: {became}"


def _others(pipeline: Pipeline, messages: Messages, live: set[int]) -> Iterator[str]:
    """Messages that no paired batch has decided on, and those that have no key of their own."""
    payload = {side.topic: side.payload for side in pipeline.sides}
    for row in messages.own:
        if row["batch_id"] not in live:
            at = "no readable time" if row["ts"] is None else moment(row["ts"])
            yield from ("", f"{_place(row)} ({payload[row['topic']]}), {at}, read in batch {row['batch_id']}")
            yield "  the batch is not paired yet"
    for row in messages.unreadable:
        yield from ("", f"{_place(row)} ({payload[row['topic']]}), no readable key, read in batch {row['batch_id']}")
        yield f"  rejected in batch {row['batch_id']} as {row['problem']}: {Reason(row['problem']).sentence}"
        yield "  of this pair by its Kafka key only"


def _sources(row: Row) -> list[str]:
    """Of the left and the right event of a compound, as far as there are such."""
    return [
        f"{row[f'{side}_topic']}-{row[f'{side}_partition']}-{row[f'{side}_offset']}"
        for side in ("left", "right")
        if row[f"{side}_offset"] is not None
    ]


def _place(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}-{row['offset']}"


def _is_near(fate: Fate, near: Window) -> bool:
    return fate.ts is not None and near.start <= fate.ts < near.end


def _reach(pipeline: Pipeline) -> int:
    """As far as events that have to do with each other can lie apart."""
    return max(pipeline.max_session_ms, pipeline.tolerance_ms) + pipeline.gap_ms


def _batches_at(history: History, near: Window) -> list[int]:
    return [row["batch_id"] for row in history.paired if near.start <= row["wall_time"] < near.end]


def _unknown(warehouse: Warehouse, key: tuple[str, ...], near: Window | None, history: History) -> str:
    line = (
        f"error: no message of {written(key)} in {count(len(history.paired), 'batch')} of pipeline {warehouse.pipeline.name}"
    )
    if near:
        line += f" in the interval {near}"
        return f"{line}; {aged}" if (aged := history.aged()) else line
    line += f"; {aged}" if (aged := history.aged()) else ""
    swapped = key[::-1]
    if swapped != key and (messages := count_of(warehouse, swapped)):
        line += f"; {written(swapped)} has {count(messages, 'message')}: the order of the key's fields matters"
    return line
