"""What consumers know of compounds goes the way of their key's events, and is no event itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_jobs.rules.rules import Rules
from spark_jobs.stages import pairing_input
from spark_jobs.stages.pairing_input import KEY_HASH, PACKED, decide_keys
from tests.helpers.timeline import SMALL

RULES = Rules(SMALL, 1_000_000, 0)


def packed(*rows):
    """Events (user, side, offset, ts), and what is known of compounds (user, pair_id, revision), as `by_key` gives them to a task."""
    found = []
    for user, *rest in rows:
        if len(rest) == 3:
            side, offset, ts = rest
            about = {PACKED: (1 << 33) + side, "offset": offset, "ts": ts, "payload": "p"}
        else:
            about = {PACKED: 0, "offset": rest[1], "ts": None, "payload": rest[0]}
        found.append({"user1": user, "user2": "v", KEY_HASH: ord(user), **about})
    fields = {"user1": pa.string(), "user2": pa.string(), KEY_HASH: pa.int64(), PACKED: pa.int64(), "offset": pa.int64()}
    return pa.Table.from_pylist(found, schema=pa.schema([*fields.items(), ("ts", pa.int64()), ("payload", pa.string())]))


def decided(rows, rows_a_batch=100):
    outcomes, known = [], []
    for each, revisions in decide_keys(packed(*rows).to_batches(max_chunksize=rows_a_batch), RULES):
        outcomes += [(row["user1"], row["outcome"], row["left_offset"], row["right_offset"]) for row in each.to_pylist()]
        known.append(None if revisions is None else sorted(tuple(row.values()) for row in revisions.to_pylist()))
    return sorted(outcomes, key=str), known


EVENTS = [("a", 0, 1, 1_000), ("a", 1, 1, 1_050), ("b", 0, 2, 1_000)]
OUTCOMES = [("a", "pair", 1, 1), ("b", "left_only", 2, None)]


def test_where_nothing_is_known_there_is_none():
    assert decided(EVENTS) == (OUTCOMES, [None])


@pytest.mark.parametrize("rows_a_batch", [1, 2, 100])
def test_what_is_known_changes_no_outcome_and_comes_beside_them(rows_a_batch):
    rows = [("a", "analyticsTopic-0-1", 3), *EVENTS[:2], ("a", "analyticsTopic-0-1", 4), EVENTS[2]]
    outcomes, known = decided(rows, rows_a_batch)
    assert outcomes == OUTCOMES
    assert known == [[("analyticsTopic-0-1", 3), ("analyticsTopic-0-1", 4)]]


def test_what_is_known_of_a_key_is_with_every_table_of_its_outcomes(monkeypatch):
    monkeypatch.setattr(pairing_input, "_ROWS_AT_ONCE", 1)
    rows = [*EVENTS[:2], ("a", "analyticsTopic-0-1", 3), ("b", "analyticsTopic-0-2", 0), EVENTS[2]]
    outcomes, known = decided(rows, 1)
    assert outcomes == OUTCOMES
    assert known == [[("analyticsTopic-0-1", 3)], [("analyticsTopic-0-2", 0)]]


def test_what_is_known_of_keys_without_events_is_passed_over():
    outcomes, _ = decided([*EVENTS, ("c", "analyticsTopic-0-9", 1)])
    assert outcomes == OUTCOMES
    assert decided([("c", "analyticsTopic-0-9", 1)])[0] == []
