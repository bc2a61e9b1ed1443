"""The rules as timelines, each boundary with its neighbour. T = 100, G = 200, R = 500, max_session = 1000, times in ms."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.timeline import SMALL, Batch, play, story

FAR = 1_000_000
OVER = 700  # gap + grace: a session that ends at 0 is over when the clock is beyond this

TIMELINES = {
    "T apart: a pair": ([("a0 m100", FAR)], ["1 pair a0 m100"]),
    "T + 1 apart: two orphans": ([("a0 m101", FAR)], ["1 left_only a0", "1 right_only m101"]),
    "right first": ([("m0 a100", FAR)], ["1 pair a100 m0"]),
    "a side alone": ([("a0", FAR)], ["1 left_only a0"]),
    "clock one before the end of grace: open": ([("a0", OVER - 1)], ["open a0"]),
    "clock at the end of grace: open": ([("a0", OVER)], ["open a0"]),
    "clock one beyond: closed": ([("a0", OVER + 1)], ["1 left_only a0"]),
    "a gap apart is one session: both wait for the later": ([("a0 m200", 200 + OVER)], ["open a0", "open m200"]),
    "a gap + 1 apart is two: the first closes": ([("a0 m201", OVER + 1)], ["1 left_only a0", "open m201"]),
    "a late half joins its open session": ([("a0", 100), ("m50", FAR)], ["2 pair a0 m50"]),
    "late by 1 ms": ([("", OVER + 1), ("a0", FAR)], ["2 late a0"]),
    "not late at the boundary": ([("", OVER), ("a0", FAR)], ["2 left_only a0"]),
    "late, but within a gap of an open event: rescued": ([("a100", OVER + 1), ("m0", FAR)], ["2 pair a100 m0"]),
    "late, beyond the gap of an open event": ([("a201", OVER + 1), ("m0", FAR)], ["2 late m0", "2 left_only a201"]),
    "max_session reached: still one session": (
        [("a0 a200 a400 a600 a800 a1000", 800 + OVER + 1)],
        ["open a0", "open a1000", "open a200", "open a400", "open a600", "open a800"],
    ),
    "max_session exceeded: cut before the event beyond": (
        [("a0 a200 a400 a600 a800 a1001", 800 + OVER + 1)],
        ["1 left_only a0", "1 left_only a200", "1 left_only a400", "1 left_only a600", "1 left_only a800", "open a1001"],
    ),
    "a cut separates what would be a pair": (
        [("a0 a200 a400 a600 a800 a1000 m1001", FAR)],
        sorted([*(f"1 left_only a{at}" for at in range(0, 1001, 200)), "1 right_only m1001"]),
    ),
    "ts = W + max_future": ([("a10000", 0), ("", FAR)], ["2 left_only a10000"]),
    "ts = W + max_future + 1": ([("a10001", 0), ("", FAR)], ["1 future a10001"]),
    "ten years ahead harms nobody": ([("a315360000000 a0 m5", 0), ("", FAR)], ["1 future a315360000000", "2 pair a0 m5"]),
    "two calls in a chain stay two": ([("a0 m5 a150 m155", FAR)], ["1 pair a0 m5", "1 pair a150 m155"]),
    "the middle one goes to the nearer": ([("m0 a60 m100", FAR)], ["1 pair a60 m100", "1 right_only m0"]),
    "as near to both: the earlier": ([("m0 a50 m100", FAR)], ["1 pair a50 m0", "1 right_only m100"]),
    "more pairs win over nearer ones": ([("a0 m90 a100 m190", FAR)], ["1 pair a0 m90", "1 pair a100 m190"]),
    "users swapped are another pair": ([("a0:u m0:x", FAR)], ["1 left_only a0:u", "1 right_only m0:x"]),
    "silence closes": ([("a0 m5", 10), ("", FAR)], ["2 pair a0 m5"]),
}


@pytest.mark.parametrize(("batches", "expected"), TIMELINES.values(), ids=TIMELINES)
def test_timeline(batches, expected, tmp_path):
    assert story(tmp_path, [Batch(*batch) for batch in batches]) == expected


def test_ten_calls_in_a_chain_stay_ten(tmp_path):
    calls = " ".join(f"a{at} m{at + 5}" for at in range(0, 900, 90))
    assert len([line for line in story(tmp_path, [Batch(calls, FAR)]) if " pair " in line]) == 10


def test_collapse_makes_one_compound_of_a_session(tmp_path):
    collapse = replace(SMALL, matching="collapse")
    assert story(tmp_path, [Batch("m0 a150 m160 a170", FAR)], collapse) == ["1 pair a150 m0"]


def test_collapse_of_one_side_keeps_the_first(tmp_path):
    assert story(tmp_path, [Batch("a50 a0 a20", FAR)], replace(SMALL, matching="collapse")) == ["1 left_only a0"]


DUPLICATES = {
    "in one batch: the first offset stays": ([("a0 a0 m5", FAR)], {"pair": 1, "duplicate": 1}),
    "of an open event": ([("a0", 10), ("a0", FAR)], {"left_only": 1, "duplicate": 1}),
    "of a closed one: late": ([("a0", OVER + 1), ("a0", FAR)], {"left_only": 1, "late": 1}),
    "another timestamp is none": ([("a0 a1", FAR)], {"left_only": 2}),
    "another side is none": ([("a0 m0", FAR)], {"pair": 1}),
}


def count(tmp_path, batches, pipeline) -> Counter:
    rows = play(tmp_path, [Batch(*batch) for batch in batches], pipeline, alike=True)
    return Counter(
        row.get("kind") or row["reason"] for row in rows if row["table"] in ("compound_events", "rejected_events")
    )


@pytest.mark.parametrize(("batches", "expected"), DUPLICATES.values(), ids=DUPLICATES)
def test_duplicates(batches, expected, tmp_path):
    assert count(tmp_path, batches, SMALL) == expected


def test_the_first_duplicate_by_offset_stays(tmp_path):
    rejected = [row for row in play(tmp_path, [Batch("a0 a0", FAR)], alike=True) if row["table"] == "rejected_events"]
    assert [row["source"] for row in rejected] == ["analyticsTopic-0-1"]


def test_duplicates_are_kept_if_wished(tmp_path):
    assert count(tmp_path, [("a0 a0 m5", FAR)], replace(SMALL, drop_duplicates=False)) == {"pair": 1, "left_only": 1}


@pytest.mark.parametrize(("batches", "expected"), TIMELINES.values(), ids=TIMELINES)
def test_no_event_lost(batches, expected, tmp_path):
    sent = sum(len(events.split()) for events, _ in batches)
    assert sum(2 if " pair " in line else 1 for line in story(tmp_path, [Batch(*batch) for batch in batches])) == sent
