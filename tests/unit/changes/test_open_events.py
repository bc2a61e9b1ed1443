"""What new settings make of open events: counted by the rules, held against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_jobs.changes.open_events import effect
from spark_jobs.rules.rules import LEFT, RIGHT, event_schema
from spark_jobs.rules.side_topics import topics_of
from tests.helpers.timeline import CALLS

# T = 100, G = 200, R = 500: a session that ends at 0 is open up to the clock 700.
OLD = replace(CALLS, tolerance_ms=100, gap_ms=200, grace_ms=500, max_session_ms=10_000)


def events(words: str) -> pa.Table:
    """`a0:x m50:x=2`: left at 0 and right at 50 ms of user x, the second with payload 2."""
    rows = []
    for number, word in enumerate(words.split()):
        at, _, user = word[1:].partition(":")
        user, _, payload = user.partition("=")
        side = LEFT if word[0] == "a" else RIGHT
        rows.append(
            {"user1": user, "user2": "v", "side": side, "partition": 0, "offset": number, "ts": int(at), "payload": payload or word,
             "batch_id": 1, "is_open": True}
        )  # fmt: skip
    return pa.Table.from_pylist(rows, event_schema(CALLS))


def told(words: str, clock: int | None = 700, now: int = 10_000, old=OLD, new=None, **settings):
    return effect(events(words), topics_of(old), old, new or replace(old, **settings), clock, now)


def test_nothing_changes_with_the_same_settings():
    same = told("a0:x m50:x m300:x a0:y")
    assert same.old == same.new
    assert (same.events, same.old.sessions, same.earlier, same.later, same.same) == (4, 3, 0, 0, 3)


@pytest.mark.parametrize(("grace_ms", "closed"), [(500, 0), (499, 1), (0, 2)])
def test_a_shorter_grace_closes_with_the_next_batch_what_is_over_before_the_clock(grace_ms, closed):
    # The clock 700 is exactly end + G + R of the first session, and 200 short of that of the second.
    found = told("a0:x a200:y", grace_ms=grace_ms)
    assert (found.old.closed_next, found.new.closed_next) == (0, closed)
    assert (found.earlier, found.same) == ((2, 0) if grace_ms < 500 else (0, 2))


def test_what_closes_by_now_has_the_wall_time():
    found = told("a0:x a200:y", clock=None, now=800, grace_ms=400)
    assert (found.old.closed_next, found.new.closed_next) == (0, 0)
    assert (found.old.closed_by_now, found.new.closed_by_now) == (1, 1)
    # The wall time of this machine may be behind the clock, which never goes back.
    assert told("a0:x", clock=701, now=0).old.closed_by_now == 1
    # Silence closes nothing with the clock of the stream.
    found = told("a0:x", clock=700, now=10_000, new=replace(OLD, clock="stream_time"))
    assert (found.old.closed_by_now, found.new.closed_by_now) == (1, 0)


def test_a_longer_gap_joins_sessions_and_a_shorter_one_cuts_them():
    joined = told("a0:x m201:x", gap_ms=201)
    assert (joined.old.sessions, joined.new.sessions) == (2, 1)
    # It closes 1 ms later than the second of them would have, by the gap alone.
    assert (joined.earlier, joined.later) == (0, 1)
    cut = told("a0:x m200:x", gap_ms=199)
    assert (cut.old.sessions, cut.new.sessions, cut.earlier) == (1, 2, 2)


def test_a_shorter_max_session_cuts_what_waits():
    found = told("a0:x a150:x a300:x", max_session_ms=200)
    assert (found.old.sessions, found.new.sessions) == (1, 2)
    assert (found.earlier, found.same) == (1, 1)


@pytest.mark.parametrize(("tolerance_ms", "pairs"), [(99, 0), (100, 1)])
def test_the_tolerance_decides_what_pairs_as_it_is(tolerance_ms, pairs):
    found = told("a0:x m100:x", tolerance_ms=tolerance_ms)
    assert (found.old.pair, found.new.pair, found.new.left_only, found.new.right_only) == (1, pairs, 1 - pairs, 1 - pairs)


def test_collapse_counts_what_it_leaves_out():
    found = told("a0:x a10:x m20:x m30:x", matching="collapse")
    assert (found.old.pair, found.new.pair, found.new.collapsed) == (2, 1, 2)


def test_duplicates_are_rejected_only_with_the_setting():
    kept = replace(OLD, drop_duplicates=False)
    found = told("a0:x=1 a0:x=1 a0:x=2 m0:x", old=kept, drop_duplicates=True)
    assert (found.old.duplicate, found.new.duplicate) == (0, 1)
    assert (found.old.sessions, found.new.sessions) == (1, 1)


def test_an_open_event_is_never_late():
    found = told("a0:x", clock=10_000, gap_ms=1, grace_ms=0)
    assert (found.old.late, found.new.late, found.new.closed_next) == (0, 0, 1)


def test_no_open_events():
    found = told("", grace_ms=0)
    assert (found.events, found.old.sessions, found.new.sessions, found.earlier) == (0, 0, 0, 0)
