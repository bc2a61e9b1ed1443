"""Two pipelines one behind the other: when the second one's clock lets its events go before the first one has published what belongs to them.

`a`, `m`: the sides of the first one, `s`: the other side of the second one, whose left events are compounds of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import pytest

from spark_jobs.rules.outcomes import COMPOUNDS
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.story.play import rows_of
from tests.helpers.stream import Event, Read, Stream
from tests.helpers.timeline import CALLS

MINUTE = 60_000
FIRST = replace(CALLS, late="replay")
# As in docs/three-sides.md.
SECOND = replace(FIRST, tolerance_ms=2 * MINUTE, gap_ms=2 * MINUTE, grace_ms=15 * MINUTE)
ZERO = 1_000 * MINUTE


class Run(NamedTuple):
    """A run of the first pipeline: when it asks for the ends of its topics, and when its compounds can be read."""

    at: int
    published: int


def compounds(stream: Stream, runs: Iterable[Run]) -> list[Event]:
    """What the first pipeline publishes, as left events of the second one. Of a batch in the order of their times, as the publisher sends."""
    runs = list(runs)
    reads = [Read(run.at, stream.arrived(run.at), stream.arrived(run.at)) for run in runs]
    found = []
    for run, batch in zip(runs, stream.play(reads), strict=True):
        for row in rows_of(batch.outcomes, *COMPOUNDS):
            ts = min(row[name] for name in ("left_ts", "right_ts") if row[name] is not None)
            found.append(Event(run.published, ts, LEFT, int(row["user1"] == "w"), row["user1"]))
    return sorted(found, key=lambda event: (event.arrival, event.ts))


class Result(NamedTuple):
    """What the second pipeline makes of its events, without those of the pair `w`."""

    outcomes: dict[str, int]
    clock: int | None  # of its last batch, minutes


def moment(minute: float) -> int:
    """In ms."""
    return ZERO + int(minute * MINUTE)


def of_chain(words: str, runs: Iterable[tuple[float, float]], looks: Iterable[float], first=FIRST, second=SECOND) -> Result:
    """`words`: `a0 m0 s1`, at these minutes, each arriving at its time; `a0:w` of another pair. `runs`: minutes of `Run`s. `looks`: minutes
    of the second pipeline's batches, which read all that is there.
    """
    said = [(word[0], *word[1:].partition(":")) for word in words.split()]
    events = [
        Event(at, at, LEFT if side == "a" else RIGHT, user=user or "u", payload=side)
        for side, minute, _, user in said
        for at in [moment(float(minute))]
    ]
    legs = [event for event in events if event.payload in "am"]
    found = compounds(Stream(first, legs), [Run(*map(moment, run)) for run in runs])
    stream = Stream(
        second, [*(each._replace(partition=0) for each in found), *(each for each in events if each.payload == "s")]
    )
    batches = stream.play([Read(at, stream.arrived(at), stream.arrived(at)) for at in map(moment, looks)])
    outcomes: Counter[str] = Counter()
    for batch in batches:
        mine = [row["outcome"] for row in batch.outcomes.to_pylist() if row["user1"] == "u"]
        outcomes.update(each for each in mine if each != "open" or batch is batches[-1])
    clock = batches[-1].rules.clock
    return Result(dict(outcomes), None if clock is None else (clock - ZERO) // MINUTE)


CALL = "a0 m0 s0"
EARLY, MORNING = "a-30:w m-30:w s-30:w", "a600:w m600:w s600:w a630:w m630:w s630:w"
STREAM_TIME = replace(SECOND, clock="stream_time")


def test_in_a_silent_night_both_clocks_go_on_and_the_call_is_whole():
    assert of_chain(CALL, [(5, 5), (10, 10), (15, 15)], [6, 11, 18, 600]) == Result({"pair": 1}, 600)


@pytest.mark.parametrize(
    ("grace", "outcome"), [(13.5, {"left_only": 1, "right_only": 1}), (15, {"pair": 1})], ids=["with the gap", "alone"]
)
def test_the_grace_alone_is_as_long_as_the_first_one_takes(grace, outcome):
    """A compound comes 15 minutes after its time, and the side that belongs to it lies two minutes before it."""
    second = replace(SECOND, grace_ms=int(grace * MINUTE))
    assert of_chain("a0 m0 s-2", [(15, 15)], [15, 16, 60], second=second).outcomes == outcome


@pytest.mark.parametrize(("look", "outcome"), [(17, {"pair": 1}), (18, {"right_only": 1, "late": 1})])
def test_a_first_step_that_stands_still_for_longer_makes_the_other_side_an_orphan(look, outcome):
    """It publishes at 20 what it would have published at 10."""
    assert of_chain(CALL, [(20, 20)], [look, 25, 60]) == Result(outcome, 60)


def test_not_everything_that_is_torn_apart_is_late():
    """The switch's event is over at 54.5, the compound at 55.5; so no event asks for a replay."""
    assert of_chain("a38.5 m38.5 s37.5", [(57, 57)], [55, 60, 80]) == Result({"left_only": 1, "right_only": 1}, 80)


def test_with_stream_time_a_first_step_that_stands_still_makes_it_wait():
    looks = [1, 55, 65, 300, 605, 610]
    standstill = [(-20, -20), (60, 60), (300, 300), (606, 606)]
    assert of_chain(f"{EARLY} {CALL}", standstill, looks[:3], second=STREAM_TIME) == Result({"open": 2}, 0)
    assert of_chain(f"{EARLY} {CALL} {MORNING}", standstill, looks, second=STREAM_TIME) == Result({"pair": 1}, 600)


def test_a_first_step_of_stream_time_publishes_the_evening_in_the_morning_which_is_too_late_for_the_second():
    words, first = f"{EARLY} {CALL} {MORNING}", replace(FIRST, clock="stream_time")
    runs, looks = [(at, at) for at in (-20, 5, 10, 300, 610, 640)], [-19, 6, 16, 301, 620, 650]
    assert of_chain(words, runs, looks, first) == Result({"right_only": 1, "late": 1}, 650)
    assert of_chain(words, runs, looks, first, STREAM_TIME) == Result({"pair": 1}, 600)


def test_with_stream_time_a_topic_that_never_had_a_compound_does_not_hold_the_clock():
    """So the second pipeline has to begin when the first one has published."""
    words = f"{CALL} s18:w"
    assert of_chain(words, [(20, 20)], [19, 25, 60], second=STREAM_TIME).outcomes == {"right_only": 1, "late": 1}
    assert of_chain(f"{EARLY} {words}", [(-20, -20), (20, 20)], [19, 25], second=STREAM_TIME) == Result({"open": 2}, 0)


@pytest.mark.parametrize(("last", "outcome"), [(15, {"pair": 1, "left_only": 15}), (17, {"left_only": 18, "right_only": 1})])
def test_with_stream_time_the_grace_is_as_long_as_a_session_of_the_first_one(last, outcome):
    """A caller every minute: what the first one makes of them comes at the end, when the other pair's compounds have moved the clock."""
    chain = " ".join(f"a{at}" for at in range(last + 1))
    others = " ".join(f"{side}{at}:w" for side in "ams" for at in (-30, *range(10, 40, 2)))
    minutes = [-20, *range(10, 45)]
    runs, looks = [(at, at) for at in minutes], [at + 0.5 for at in minutes]
    assert of_chain(f"{chain} s-2 {others}", runs, looks, second=STREAM_TIME).outcomes == outcome
