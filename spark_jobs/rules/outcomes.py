"""All rules together: turns accepted events into outcomes, exactly one for each event.

An outcome row has room for a left and a right event. Every event is in exactly one row, on its own side, so the conservation law
can be counted: no event is dropped without a side being missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from include.config.pipeline import Pipeline
from spark_jobs.rules.event_order import OrderedEvents, find_duplicates, order_events
from spark_jobs.rules.large_columns import gather_texts, portions, text_bytes
from spark_jobs.rules.matching import Partners, match_collapse, match_one_to_one
from spark_jobs.rules.rules import LEFT, REVERSED, SOURCE_PAIR_ID, SUPERSEDED, Flags, Ints, Rules, event_schema, source_names
from spark_jobs.rules.sessions import cut_sessions


class Outcome(StrEnum):
    """What the rules decide about an event; the first three are compounds."""

    PAIR = "pair"
    LEFT_ONLY = "left_only"
    RIGHT_ONLY = "right_only"
    OPEN = "open"
    DUPLICATE = "duplicate"
    LATE = "late"
    COLLAPSED = "collapsed"
    SUPERSEDED = "superseded"


COMPOUNDS = (Outcome.PAIR, Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY)
_CODE = {outcome: code for code, outcome in enumerate(Outcome)}
_BYTES_AT_ONCE = 64_000_000


def outcome_schema(pipeline: Pipeline) -> pa.Schema:
    """`outcome`, the key fields, then per side: ts (epoch ms), partition, offset, payload (JSON text or null), landing batch, and the direction
    with `key_order: any`, and the compound that the event is (`SOURCE`) where a side has `compounds`.
    """
    events = event_schema(pipeline)
    sides = {f"{side}_{name}": events.field(name).type for side in ("left", "right") for name in names_of_side(pipeline)}
    return pa.schema(dict.fromkeys(("outcome", *pipeline.key), pa.string()) | sides)


def names_of_side(pipeline: Pipeline) -> list[str]:
    """The columns that an outcome has of its left event, and of its right one."""
    return ["ts", "partition", "offset", "payload", "batch_id"] + [REVERSED] * pipeline.is_unordered + source_names(pipeline)


class _Rows(NamedTuple):
    """Rows of the result: outcome code, and the rows of the left and right events in the input, -1 if there is none."""

    outcome: Ints
    left: Ints
    right: Ints


def decide_outcomes(events: pa.Table, rules: Rules) -> pa.Table:
    """Turns all events of complete keys (`event_schema`, any order) into outcomes (`outcome_schema`).

    The rows depend only on the set of events and the rules, not on their order or on the other keys present.
    """
    return pa.Table.from_batches(outcome_batches(events, rules), outcome_schema(rules.pipeline))


def outcome_batches(events: pa.Table, rules: Rules) -> Iterator[pa.RecordBatch]:
    """As `decide_outcomes`, in batches of at most about 64 MB, made one after the other: payloads may be large."""
    if not events.num_rows:
        return
    events = _joined(events)
    decided = _decide(events, rules)
    for begin, stop in _pieces(events, decided, rules.pipeline.key):
        yield _assemble(events, _Rows(*(column[begin:stop] for column in decided)), rules.pipeline)


def _joined(events: pa.Table) -> pa.Table:
    """The table with each column in one chunk where that is cheap: large texts stay in their chunks."""
    if events.nbytes <= 4 * _BYTES_AT_ONCE:
        return events.combine_chunks()
    columns = [column if pa.types.is_string(column.type) else column.combine_chunks() for column in events.columns]
    return pa.table(columns, schema=events.schema)


def _decide(events: pa.Table, rules: Rules) -> _Rows:
    ordered, pipeline = order_events(events, rules), rules.pipeline
    parts = []
    if pipeline.has_compounds:
        superseded = events.column(SUPERSEDED).to_numpy()[ordered.row]
        parts.append(_single(ordered.where(superseded), Outcome.SUPERSEDED))
        ordered = ordered.where(~superseded)
    if pipeline.drop_duplicates or pipeline.has_compounds:
        repeated = _repeated(events, ordered, pipeline)
        parts.append(_single(ordered.where(repeated), Outcome.DUPLICATE))
        ordered = ordered.where(~repeated)
    sessions = cut_sessions(ordered.key, ordered.ts, ordered.is_open, rules)
    late, closed = sessions.late[sessions.number], sessions.closed[sessions.number]
    parts += [_single(ordered.where(late), Outcome.LATE), _single(ordered.where(~late & ~closed), Outcome.OPEN)]
    due, session = ordered.where(closed), sessions.number[closed]
    if pipeline.matching == "collapse":
        partners, collapsed = match_collapse(session, due.side)
        parts.append(_single(due.where(collapsed), Outcome.COLLAPSED))
    else:
        partners = match_one_to_one(session, due.ts, due.side, pipeline.tolerance_ms)
        collapsed = np.zeros(len(session), dtype=bool)
    parts.append(_compounds(due, partners, collapsed))
    return _Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _repeated(events: pa.Table, ordered: OrderedEvents, pipeline: Pipeline) -> Flags:
    """Rule 7. On a side with compounds an event repeats another one of its key and time if it is the same compound, and never stays."""
    repeated = np.zeros(len(ordered.row), dtype=bool)
    if pipeline.drop_duplicates:
        repeated = find_duplicates(
            ordered, events.column("payload"), events.column(REVERSED) if pipeline.is_unordered else None
        )
    if pipeline.has_compounds:
        is_compound = np.array([side.compounds for side in pipeline.sides])[ordered.side]
        repeated = np.where(is_compound, find_duplicates(ordered, events.column(SOURCE_PAIR_ID)), repeated)
    return repeated


def _single(events: OrderedEvents, outcome: Outcome) -> _Rows:
    is_left = events.side == LEFT
    code = np.full(len(events.row), _CODE[outcome])
    return _Rows(code, np.where(is_left, events.row, -1), np.where(is_left, -1, events.row))


def _compounds(events: OrderedEvents, partners: Partners, collapsed: Flags) -> _Rows:
    """Pairs and orphans in the order of the events; a pair takes the place of its left event."""
    is_left = events.side == LEFT
    partner = np.full(len(events.row), -1)
    partner[partners.left] = events.row[partners.right]
    stands = ~collapsed
    stands[partners.right] = False
    left, right = np.where(is_left, events.row, -1)[stands], np.where(is_left, partner, events.row)[stands]
    kind = np.where(left < 0, _CODE[Outcome.RIGHT_ONLY], _CODE[Outcome.PAIR])
    kind[right < 0] = _CODE[Outcome.LEFT_ONLY]
    return _Rows(kind, left, right)


def _pieces(events: pa.Table, rows: _Rows, key: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Begin (inclusive) and end (exclusive) of the rows of each batch: about `_BYTES_AT_ONCE`, or one larger row."""
    if events.nbytes <= _BYTES_AT_ONCE:
        yield 0, len(rows.outcome)
        return
    payload = text_bytes(events.column("payload"))
    # The other columns take less than 100 bytes a row.
    size = 100 + np.sum([text_bytes(events.column(name)) for name in key], axis=0)[np.maximum(rows.left, rows.right)]
    for row in (rows.left, rows.right):
        size += np.where(row >= 0, payload[row], 0)
    yield from portions(size, _BYTES_AT_ONCE)


def _assemble(events: pa.Table, rows: _Rows, pipeline: Pipeline) -> pa.RecordBatch:
    names = pa.array([str(outcome) for outcome in Outcome])
    either = np.maximum(rows.left, rows.right)
    columns = [names.take(pa.array(rows.outcome)), *(gather_texts(events.column(name), either) for name in pipeline.key)]
    for row in (rows.left, rows.right):
        index = pa.array(row, mask=row < 0)
        for name in names_of_side(pipeline):
            column = events.column(name)
            columns.append(gather_texts(column, row) if pa.types.is_string(column.type) else column.chunk(0).take(index))
    return pa.RecordBatch.from_arrays(columns, schema=outcome_schema(pipeline))
