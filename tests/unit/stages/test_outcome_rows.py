"""Rows of compound_events: after a rewind a compound that consumers know comes with its next revision, all others with their first."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_jobs.rules.outcomes import outcome_schema
from spark_jobs.rules.rules import Rules
from spark_jobs.stages.outcome_rows import _revisions, make_compounds
from tests.helpers.timeline import CALLS


def table(*known):
    return pa.Table.from_pylist(
        [{"pair_id": pair_id, "revision": revision} for pair_id, revision in known],
        schema=pa.schema([("pair_id", pa.string()), ("revision", pa.int64())]),
    )


@pytest.mark.parametrize(
    ("ids", "known", "revisions"),
    [
        (["a", "b"], None, [0, 0]),
        (["a", "b"], table(), [0, 0]),
        ([], table(("a", 0)), []),
        (["a", "b", "c"], table(("b", 0)), [0, 1, 0]),
        (["a", "b"], table(("b", 4), ("a", 0), ("z", 9)), [1, 5]),
        # The last one counts, wherever it stands, of each for itself.
        (["a", "b"], table(("a", 2), ("b", 1), ("a", 7), ("a", 3), ("b", 0)), [8, 2]),
        # As they come out of several batches.
        (["a", "b", "c"], pa.concat_tables([table(("a", 1)), table(), table(("a", 3), ("c", 0))]), [4, 0, 1]),
    ],
)
def test_a_compound_that_is_known_comes_with_its_next_revision(ids, known, revisions):
    found = _revisions(pa.array(ids, pa.string()), known, pa.int32())
    assert found.to_pylist() == revisions and found.type == pa.int32()


def outcome(kind, left=None, right=None):
    sides = {"left": left, "right": right}
    row = {"outcome": kind, "user1": "u", "user2": "v"}
    for name, offset in sides.items():
        row |= {f"{name}_offset": offset, f"{name}_partition": None if offset is None else 0}
        row |= {
            f"{name}_ts": None if offset is None else 100 * offset,
            f"{name}_payload": None if offset is None else f"p{offset}",
        }
    return row


COLUMNS = pa.schema(
    [(name, pa.string()) for name in ("pair_id", "kind", "op", "left_topic", "right_topic", "analytics", "metrics")]
    + [("revision", pa.int32()), ("ts", pa.int64()), ("batch_id", pa.int64())]
)


def test_rows_have_what_their_outcomes_say():
    rows = [
        outcome("pair", 3, 1),
        outcome("open", 4),
        outcome("left_only", 5),
        outcome("right_only", None, 7),
        outcome("late", 8),
    ]
    outcomes = pa.RecordBatch.from_pylist(rows, schema=outcome_schema(CALLS))
    left, right = CALLS.left.topic, CALLS.right.topic
    found = make_compounds(outcomes, table((f"{left}-0-5", 2)), Rules(CALLS, None, None), 9, COLUMNS).to_pylist()
    assert [(row["pair_id"], row["revision"], row["kind"], row["ts"]) for row in found] == [
        (f"{left}-0-3", 0, "pair", 100),
        (f"{left}-0-5", 3, "left_only", 500),
        (f"{right}-0-7", 0, "right_only", 700),
    ]
    assert [(row["left_topic"], row["right_topic"]) for row in found] == [(left, right), (left, None), (None, right)]
    assert [(row["analytics"], row["metrics"]) for row in found] == [("p3", "p1"), ("p5", None), (None, "p7")]
    assert {(row["op"], row["batch_id"]) for row in found} == {("upsert", 9)}
    unknown = make_compounds(outcomes, None, Rules(CALLS, None, None), 9, COLUMNS).to_pylist()
    assert [row["revision"] for row in unknown] == [0, 0, 0]
