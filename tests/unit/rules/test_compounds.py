"""Compounds of another pipeline: what a record is by its headers, and what is left when later revisions have landed."""

import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.formats.decoding import event_parser
from spark_jobs.rules.compounds import mark_superseded, problems_of_compounds, source_columns
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.outcomes import decide_outcomes
from spark_jobs.rules.parsed_columns import HEADERS, Columns
from spark_jobs.rules.rules import LEFT, RIGHT, Rules, event_schema
from spark_jobs.story.play import _still_open
from tests.helpers.reference_pairing import slow_outcomes
from tests.helpers.timeline import SMALL

CHAINED = replace(SMALL, left=replace(SMALL.left, compounds=True))
SCHEMA = event_schema(CHAINED)


def headers(pair_id=b"a-0-1", revision=b"0", op=b"upsert"):
    named = {"pair-id": pair_id, "revision": revision, "op": op}
    return [{"key": name, "value": value} for name, value in named.items() if value is not None]


def parsed(value, of, timestamp=77):
    columns = Columns(
        pa.array([value], pa.binary()), pa.array([timestamp], pa.int64()), pa.nulls(1, pa.binary()), pa.array([of], HEADERS)
    )
    found = event_parser(CHAINED, CHAINED.left, 10_000, None)(columns)
    return found.ts[0].as_py(), found.problem[0].as_py()


BODY = {"user1": "u", "user2": "v", "ts": 5, "timestamp": 6, "analytics": 1}


@pytest.mark.parametrize(
    ("body", "of", "says"),
    [
        (BODY, headers(), (5, None)),
        # The time of its record is when it was published.
        ({**BODY, "ts": None}, headers(), (None, "bad_timestamp")),
        (None, headers(op=b"retract", revision=b"1"), (None, "retraction")),
        (BODY, headers(op=b"retract", revision=b"1"), (5, "retraction")),
        (None, headers(), (None, "malformed_json")),
        (BODY, headers(pair_id=None), (5, "not_compound")),
        (BODY, headers(pair_id=b""), (5, "not_compound")),
        (BODY, headers(pair_id=b"\xff"), (5, "not_compound")),
        (BODY, headers(revision=b"-1"), (5, "not_compound")),
        (BODY, headers(revision=b"2147483648"), (5, "not_compound")),
        (BODY, headers(op=b"delete"), (5, "not_compound")),
        (BODY, [], (5, "not_compound")),
        (BODY, None, (5, "not_compound")),
        (None, headers(pair_id=None, op=b"retract"), (None, "malformed_json")),
    ],
)
def test_what_a_record_is(body, of, says):
    assert parsed(None if body is None else json.dumps(body).encode(), of) == says


def test_a_side_without_compounds_names_none_and_refuses_none():
    of = pa.array([headers()], HEADERS)
    assert [column.to_pylist() for column in source_columns(CHAINED.right, of).values()] == [[None], [None]]
    assert problems_of_compounds(CHAINED.left, pa.nulls(1, pa.string()), None).to_pylist() == ["not_compound"]


@pytest.mark.parametrize("op", [b"delete", b"", None])
def test_a_record_that_is_no_compound_supersedes_none(op):
    of = pa.array([headers(revision=b"1", op=op)], HEADERS)
    assert [column.to_pylist() for column in source_columns(CHAINED.left, of).values()] == [[None], [None]]


def event(offset, ts, pair_id=None, revision=None, user="u", payload="1"):
    return {
        "user1": user, "user2": "v", "side": LEFT if pair_id else RIGHT, "partition": 0, "offset": offset, "ts": ts,
        "payload": payload, "batch_id": 1, "is_open": False, "source_pair_id": pair_id, "source_revision": revision,
        "superseded": False,
    }  # fmt: skip


def table(rows):
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_two_compounds_that_say_the_same_are_two_and_one_that_came_twice_is_one():
    rows = [event(0, 5, "a-0-1", 0), event(1, 5, "a-0-2", 0), event(2, 5, "a-0-1", 0), event(0, 5), event(1, 5)]
    for drop in (True, False):
        found = decide_outcomes(table(rows), Rules(replace(CHAINED, drop_duplicates=drop), 10_000, None))
        assert Counter(found["outcome"].to_pylist())["duplicate"] == 1 + drop
        (copy,) = found.filter(
            pc.and_(pc.equal(found["outcome"], "duplicate"), pc.is_valid(found["left_offset"]))
        ).to_pylist()
        assert copy["left_offset"] == 2


def newest_of(rows):
    """pair_id -> the largest revision; None -> None."""
    found = {None: None}
    for row in rows:
        pair_id, revision = row["source_pair_id"], row["source_revision"]
        if pair_id is not None:
            found[pair_id] = max(revision, found.get(pair_id, 0))
    return found


# pair_id, revision, whether it is a retraction, ts.
messages = st.lists(
    st.tuples(st.sampled_from(["a-0-1", "a-0-2", "m-0-1"]), st.integers(0, 3), st.booleans(), st.integers(0, 600)),
    max_size=12,
)
plain = st.lists(st.integers(0, 600), max_size=5)


@settings(max_examples=100, deadline=None)
@given(messages, plain, st.lists(st.integers(0, 17), max_size=4), st.lists(st.integers(0, 2_000), min_size=5, max_size=5))
def test_whatever_the_cuts_nothing_is_lost_and_a_replay_sees_the_newest_revisions(records, others, cuts, clocks):
    landed = [
        (event(offset, ts, pair_id, revision, payload=f"{offset}"), retracts)
        for offset, (pair_id, revision, retracts, ts) in enumerate(records)
    ] + [(event(offset, ts), False) for offset, ts in enumerate(others)]
    edges = [0, *sorted(min(cut, len(landed)) for cut in cuts), len(landed)]
    waiting, clock = table([]), None
    for begin, end, at in zip(edges, edges[1:], sorted(clocks), strict=False):
        batch = landed[begin:end]
        mine = table([row for row, retracts in batch if not retracts])
        events = mark_superseded(pa.concat_tables([waiting, mine]), [waiting, table([row for row, _ in batch])])
        found = decide_outcomes(events, Rules(CHAINED, at, clock))
        check_conservation(waiting.num_rows, mine.num_rows, Counter(found["outcome"].to_pylist()))
        # Of what a batch has landed and what was open, only the newest revision of each compound is left.
        newest = newest_of([*waiting.to_pylist(), *(row for row, _ in batch)])
        for row in found.filter(pc.not_equal(found["outcome"], "superseded")).to_pylist():
            assert row["left_source_revision"] == newest.get(row["left_source_pair_id"])
        waiting, clock = _still_open(found, CHAINED), at

    # All of it once more, as a replay reads it, against the rule on what is left, word for word.
    everything = table([row for row, retracts in landed if not retracts])
    marked = mark_superseded(everything, [table([row for row, _ in landed])])
    last = newest_of(row for row, _ in landed)
    rules = Rules(CHAINED, 100_000, None)
    left = [
        row for row, retracts in landed if not retracts and row["source_revision"] in (None, last.get(row["source_pair_id"]))
    ]
    found = decide_outcomes(marked, rules)
    kept = found.filter(pc.not_equal(found["outcome"], "superseded"))
    assert found.num_rows - kept.num_rows == everything.num_rows - len(left)
    assert _named(kept) == slow_outcomes(_as_identities(left), rules)


def _as_identities(rows):
    """The same compound twice, at one time, is a duplicate, whatever it says."""
    return [row | {"payload": row["source_pair_id"] or row["payload"]} for row in rows]


def _named(found):
    def name(row, side, number):
        place = row["user1"], row["user2"], number, row[f"{side}_partition"], row[f"{side}_offset"]
        return None if row[f"{side}_offset"] is None else place

    return Counter((row["outcome"], name(row, "left", LEFT), name(row, "right", RIGHT)) for row in found.to_pylist())
