"""What the rules make of the events that are open now, under the settings that closed the last batch and under new ones. Only reads.

The functions that decide are those of the pairing job. Events that are still to come may join these sessions, so the numbers hold for the
events as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.clock import PartitionProgress, batch_clock
from spark_jobs.rules.event_order import order_events
from spark_jobs.rules.outcomes import Outcome, decide_outcomes
from spark_jobs.rules.rules import LEFT, RIGHT, SUPERSEDED, Ints, Rules, event_schema
from spark_jobs.rules.sessions import cut_sessions
from spark_jobs.rules.side_topics import SideTopics, pack
from spark_jobs.tables.data_files import all_files
from spark_jobs.tables.delta_log import table_at_version
from spark_jobs.tables.read_files import Share, read_share
from spark_jobs.tables.schemas import OPEN
from spark_jobs.tables.tables import Tables

# Later than every event with gap and grace, and far from the end of 64 bits.
_END_OF_TIME = 2**62


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of the open events under one set of settings: the first three in sessions, then in events, the last four in compounds (and
    collapsed events).
    """

    sessions: int
    closed_next: int  # over before the clock of the last batch: the next batch closes them, unless records join them
    closed_by_now: int  # a batch closes them that reads both topics to their ends now and finds nothing new there
    duplicate: int  # rejected by the next batch
    late: int  # rejected by the next batch
    pair: int  # the last four: if all sessions were closed as they are
    left_only: int
    right_only: int
    collapsed: int


@dataclass(frozen=True, kw_only=True)
class Effect:
    """`events`: open now. `earlier`, `later`, `same`: sessions under the new settings, by when they close, against the old settings."""

    events: int
    old: Fate
    new: Fate
    earlier: int
    later: int
    same: int


def open_events(tables: Tables, topics: SideTopics, version: int) -> pa.Table:
    """The rows of open_events at a version (`event_schema`); payloads as digests, which are equal where the texts are.

    `topics`: those by which they are numbered.
    """
    schema = event_schema(tables.pipeline)
    names = [name for name in schema.names if name not in ("is_open", SUPERSEDED)]
    texts = {name: pa.field(name, pa.string()) for name in ("side", "topic")}
    read = pa.schema([texts.get(name) or schema.field(name) for name in [*names, "topic"]])

    def as_events(rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: rows[name] for name in names}
        is_left = pc.equal(rows["side"], "left")
        columns["side"] = pc.if_else(is_left, LEFT, RIGHT)
        left, right = (pack(mine, rows["topic"], rows["partition"]) for mine in topics)
        columns["partition"] = pc.if_else(is_left, left, right)
        # Payloads may be large, and only their equality counts.
        digests = (None if text is None else sha256(text.encode()).hexdigest() for text in rows["payload"].to_pylist())
        columns["payload"] = pa.array(digests, pa.string())
        columns |= {"is_open": pa.repeat(True, rows.num_rows), SUPERSEDED: pa.repeat(False, rows.num_rows)}
        return pa.record_batch([columns[field.name].cast(field.type) for field in schema], schema=schema)

    store = tables.store(OPEN)
    with tables.translate_table_errors(OPEN):
        files = all_files(table_at_version(store, version))
        pieces = [as_events(rows) for rows in read_share(store, Share(tuple(files)), read, None)]
    return pa.Table.from_batches(pieces, schema)


def effect(events: pa.Table, topics: SideTopics, old: Pipeline, new: Pipeline, clock: int | None, now: int) -> Effect:
    """Compares both settings. `topics`: those by which the events are numbered. `clock`: of the last batch; `now`: wall time; epoch ms, `clock`
    None: minus infinity.
    """
    old_rules, new_rules = (Rules(pipeline, clock, clock, topics) for pipeline in (old, new))
    before, after = _cut(events, old_rules), _cut(events, new_rules)
    # A session that is made of several closes when the last of them did.
    was_due: Ints = np.full(len(after.due), np.iinfo(np.int64).min)
    np.maximum.at(was_due, after.number, before.due[before.number])
    return Effect(
        events=events.num_rows,
        old=_fate(events, old_rules, before, now),
        new=_fate(events, new_rules, after, now),
        earlier=int((after.due < was_due).sum()),
        later=int((after.due > was_due).sum()),
        same=int((after.due == was_due).sum()),
    )


class _SessionCut(NamedTuple):
    """`number`: the session of each event, from 0. `end`, `due`: one entry a session, the timestamp of its last event and the last clock at
    which it is still open.
    """

    number: Ints
    end: Ints
    due: Ints


def _cut(events: pa.Table, rules: Rules) -> _SessionCut:
    """Duplicates are in the sessions of the events that they repeat, so they change none."""
    number = end = np.zeros(0, dtype=np.int64)
    if events.num_rows:
        ordered = order_events(events, rules)
        sessions = cut_sessions(ordered.key, ordered.ts, ordered.is_open, rules)
        number, end = np.empty(events.num_rows, dtype=np.int64), sessions.end
        number[ordered.row] = sessions.number
    return _SessionCut(number, end, end + rules.pipeline.gap_ms + rules.pipeline.grace_ms)


def _fate(events: pa.Table, rules: Rules, cut: _SessionCut, now: int) -> Fate:
    """`rules`: with the clock of the last batch."""
    clock = rules.clock
    clock_now = batch_clock([PartitionProgress(True, clock)], now, clock, rules.pipeline.clock)
    at_the_end = replace(rules, clock=_END_OF_TIME, previous_clock=None)
    at_once, in_the_end = _outcomes(events, rules), _outcomes(events, at_the_end)
    return Fate(
        sessions=len(cut.end),
        closed_next=int(rules.over_before(cut.end, clock).sum()),
        closed_by_now=int(rules.over_before(cut.end, clock_now).sum()),
        duplicate=at_once[Outcome.DUPLICATE],
        late=at_once[Outcome.LATE],
        pair=in_the_end[Outcome.PAIR],
        left_only=in_the_end[Outcome.LEFT_ONLY],
        right_only=in_the_end[Outcome.RIGHT_ONLY],
        collapsed=in_the_end[Outcome.COLLAPSED],
    )


def _outcomes(events: pa.Table, rules: Rules) -> Counter[str]:
    counted = pc.value_counts(decide_outcomes(events, rules)["outcome"]).to_pylist()
    return Counter({each["values"]: each["counts"] for each in counted})
