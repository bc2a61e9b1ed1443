"""Clocks and rules together: what batches read of each partition, the clock that follows, and what it closes.

Minutes, with the shipped settings: tolerance 1, gap 1, grace 3, so a session that ends at 0 is over when the clock is past 4.
"""

from dataclasses import replace
from typing import NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.rules.rules import LEFT, RIGHT
from tests.helpers.stream import Event, Partition, Read, Stream
from tests.helpers.timeline import CALLS

MINUTE = 60_000
TEN_YEARS = 3_652 * 24 * 60


class ClockTimeline(NamedTuple):
    """`events`: (minute, side, partition, user), each arriving at its time. `reads`: per batch the minute of its wall time and
    how many events it has read by then of each partition; all that arrived by then are there. `told`: clock and outcomes."""

    events: list[tuple[int, int, int, str]]
    reads: list[tuple[int, dict[Partition, int]]]
    told: list[tuple[int | None, dict[str, int]]]
    pipeline: Pipeline = CALLS

    @property
    def stream(self) -> Stream:
        """The events, in as many partitions a side as the reads name."""
        partitions = 1 + max(number for _, number in self.reads[0][1])
        # One that is stamped years ahead arrives with the first, at 0.
        arrivals = [minute if minute < TEN_YEARS else 0 for minute, *_ in self.events]
        events = [
            Event(at * MINUTE, minute * MINUTE, side, partition, user)
            for at, (minute, side, partition, user) in zip(arrivals, self.events, strict=True)
        ]
        return Stream(self.pipeline, events, partitions)

    def plans(self, stream: Stream) -> list[Read]:
        """The reads with what had arrived at their wall times."""
        return [Read(at * MINUTE, stream.arrived(at * MINUTE + 1), untils) for at, untils in self.reads]


A, B, A1, B1 = (LEFT, 0), (RIGHT, 0), (LEFT, 1), (RIGHT, 1)
CALL = [(0, LEFT, 0, "u"), (0, RIGHT, 0, "u")]
HOURS = [(minute, side, 0 if minute % 60 else 1, f"u{minute}") for minute in range(0, 300, 30) for side in (LEFT, RIGHT)]

CLOCKS = {
    "one topic is silent, and the other's events are closed all the same": ClockTimeline(
        [(0, LEFT, 0, "u")], [(4, {A: 1, B: 0}), (5, {A: 1, B: 0})], [(4, {"open": 1}), (5, {"left_only": 1})]
    ),
    "both topics are silent, and an open session is closed all the same": ClockTimeline(
        CALL,
        [(1, {A: 1, B: 1}), (4, {A: 1, B: 1}), (5, {A: 1, B: 1})],
        [(1, {"open": 2}), (4, {"open": 2}), (5, {"pair": 1})],
    ),
    "a backlog of hours in one partition closes nothing early while the others are drained": ClockTimeline(
        HOURS,
        [(300, {A: 5, A1: 5, B: 5, B1: read}) for read in (0, 1, 3, 5)],
        [
            (None, {"open": 15}),
            (0, {"open": 16}),
            # The calls at 0, 30, 60 and 90 are over, those of the drained partitions among them.
            (120, {"pair": 4, "open": 10}),
            (300, {"pair": 6}),
        ],
    ),
    "a partition with a backlog and no event yet holds the clock where it was": ClockTimeline(
        [*CALL, (10, RIGHT, 1, "w")],
        [(1, {A: 1, A1: 0, B: 1, B1: 0}), (10, {A: 1, A1: 0, B: 1, B1: 0}), (15, {A: 1, A1: 0, B: 1, B1: 1})],
        [(1, {"open": 2}), (1, {"open": 2}), (15, {"pair": 1, "right_only": 1})],
    ),
    "an event stamped ten years ahead moves no clock": ClockTimeline(
        [(TEN_YEARS, LEFT, 0, "u"), *CALL, (8, LEFT, 0, "u"), (8, RIGHT, 0, "u")],
        [(8, {A: 2, B: 2}), (8, {A: 3, B: 2}), (13, {A: 3, B: 2})],
        [(0, {"open": 3}), (8, {"pair": 1, "open": 2}), (13, {"pair": 1})],
    ),
    "stream_time: silence closes nothing": ClockTimeline(
        CALL, [(60, {A: 1, B: 1})], [(0, {"open": 2})], replace(CALLS, clock="stream_time")
    ),
    "stream_time: a silent topic holds nothing back": ClockTimeline(
        [(0, LEFT, 0, "u"), (5, LEFT, 0, "w")],
        [(60, {A: 2, B: 0})],
        [(5, {"left_only": 1, "open": 1})],
        replace(CALLS, clock="stream_time"),
    ),
}
