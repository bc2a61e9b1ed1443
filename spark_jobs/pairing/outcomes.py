"""All rules together: accepted events in, exactly one outcome for each of them out.

An outcome row has room for a left and a right event. Every event stands in exactly one row, on its own side, which is what
makes the conservation law countable: nothing can be dropped without a side being missing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.pairing.duplicates import find_duplicates
from spark_jobs.pairing.matching import match_collapse, match_one_to_one
from spark_jobs.pairing.rules import LEFT, Ints, Rules
from spark_jobs.pairing.sessions import cut_sessions


class Outcome(StrEnum):
    """What became of an event; the first three are compounds."""

    PAIR = "pair"
    LEFT_ONLY = "left_only"
    RIGHT_ONLY = "right_only"
    OPEN = "open"
    DUPLICATE = "duplicate"
    LATE = "late"
    COLLAPSED = "collapsed"


COMPOUNDS = (Outcome.PAIR, Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY)
_CODES = list(Outcome)
_SIDE_COLUMNS = ("ts", "partition", "offset", "payload", "batch_id")


def outcome_schema(key: tuple[str, ...]) -> pa.Schema:
    """`outcome`, the key fields, then per side: ts (epoch ms), partition, offset, payload (JSON text or null), landing batch."""
    fields: list[tuple[str, pa.DataType]] = [("outcome", pa.string()), *((name, pa.string()) for name in key)]
    for side in ("left", "right"):
        fields += [
            (f"{side}_ts", pa.int64()),
            (f"{side}_partition", pa.int32()),
            (f"{side}_offset", pa.int64()),
            (f"{side}_payload", pa.string()),
            (f"{side}_batch_id", pa.int64()),
        ]
    return pa.schema(fields)


class _Decided(NamedTuple):
    """Rows of the answer: outcome code and the positions of the left and right events, -1 where there is none."""

    outcome: Ints
    left: Ints
    right: Ints


def decide_outcomes(events: pa.Table, rules: Rules) -> pa.Table:
    """Events of complete keys (`event_schema`, any order) -> outcomes (`outcome_schema`).

    The rows depend only on the set of events and the rules, not on their order or on the other keys present.
    """
    if not events.num_rows:
        return outcome_schema(rules.key).empty_table()
    ordered = events.take(pa.array(_rule_order(events, rules)))
    return _assemble(ordered, _decide(ordered, rules), rules.key)


def _column(events: pa.Table, name: str) -> Ints:
    return events.column(name).to_numpy().astype(np.int64, copy=False)


def _key_codes(events: pa.Table, key: tuple[str, ...]) -> Ints:
    codes = np.zeros(events.num_rows, dtype=np.int64)
    for name in key:
        encoded = events.column(name).combine_chunks().dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _topic_rank(events: pa.Table, rules: Rules) -> Ints:
    side = _column(events, "side")
    return side if rules.left_topic_first else 1 - side


def _rule_order(events: pa.Table, rules: Rules) -> Ints:
    """Positions in the order of rule 3: (ts, topic, partition, offset) within each key."""
    return np.lexsort(
        (
            _column(events, "offset"),
            _column(events, "partition"),
            _topic_rank(events, rules),
            _column(events, "ts"),
            _key_codes(events, rules.key),
        )
    )


def _decide(events: pa.Table, rules: Rules) -> _Decided:
    key, ts, side = _key_codes(events, rules.key), _column(events, "ts"), _column(events, "side")
    is_open = events.column("is_open").to_numpy()
    outcome = np.full(len(ts), -1, dtype=np.int64)
    if rules.drop_duplicates:
        outcome[find_duplicates(key, ts, side, events.column("payload"))] = _CODES.index(Outcome.DUPLICATE)
    unique = np.flatnonzero(outcome < 0)
    sessions = cut_sessions(key[unique], ts[unique], is_open[unique], rules)
    late, closed = sessions.late[sessions.number], sessions.closed[sessions.number]
    outcome[unique[late]] = _CODES.index(Outcome.LATE)
    outcome[unique[~late & ~closed]] = _CODES.index(Outcome.OPEN)
    ripe = unique[closed]
    if rules.matching == "collapse":
        partners, collapsed = match_collapse(sessions.number[closed], side[ripe])
        outcome[ripe[collapsed]] = _CODES.index(Outcome.COLLAPSED)
    else:
        partners = match_one_to_one(sessions.number[closed], ts[ripe], side[ripe], rules.tolerance_ms)
    left, right = ripe[partners.left], ripe[partners.right]
    alone = np.ones(len(ts), dtype=bool)
    alone[left] = alone[right] = False
    single = np.flatnonzero(alone)
    is_left = side[single] == LEFT
    orphan = np.where(is_left, _CODES.index(Outcome.LEFT_ONLY), _CODES.index(Outcome.RIGHT_ONLY))
    return _Decided(
        np.concatenate(
            (np.full(len(left), _CODES.index(Outcome.PAIR)), np.where(outcome[single] < 0, orphan, outcome[single]))
        ),
        np.concatenate((left, np.where(is_left, single, -1))),
        np.concatenate((right, np.where(is_left, -1, single))),
    )


def _assemble(events: pa.Table, decided: _Decided, key: tuple[str, ...]) -> pa.Table:
    names = pa.array([str(code) for code in _CODES])
    either = pa.array(np.maximum(decided.left, decided.right))
    columns = [names.take(pa.array(decided.outcome)), *(events.column(name).take(either) for name in key)]
    for position in (decided.left, decided.right):
        index = pc.if_else(pa.array(position < 0), pa.scalar(None, pa.int64()), pa.array(position))
        columns += [events.column(name).take(index) for name in _SIDE_COLUMNS]
    return pa.table(columns, schema=outcome_schema(key))
