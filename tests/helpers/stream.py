"""Streams for tests: events that reach partitions one after the other, and batches that read them, each at a clock of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.rules.clock import PartitionProgress, batch_clock
from spark_jobs.rules.side_topics import topics_of
from spark_jobs.story.history import Batch, Message
from spark_jobs.story.play import PlayedBatch, Rehearsal, land

Partition = tuple[int, int]
"""Side and number."""

LONG_AFTER = 10**12


class Event(NamedTuple):
    """`ts` is what the body says; at `arrival` (both epoch ms) the broker has it. `payload`: equal ones may be duplicates."""

    arrival: int
    ts: int
    side: int
    partition: int = 0
    user: str = "u"
    payload: str = ""


class Read(NamedTuple):
    """A plan: at `wall_time` the partitions ended at `ends`; the batch reads up to `untils` (both exclusive)."""

    wall_time: int
    ends: Mapping[Partition, int]
    untils: Mapping[Partition, int]


class Stream:
    """What a broker holds: a partition's offsets are in the order of arrival."""

    def __init__(self, pipeline: Pipeline, events: Iterable[Event], partitions: int = 1) -> None:
        self.pipeline = pipeline
        self.events: dict[Partition, list[Event]] = {(side, p): [] for side in (0, 1) for p in range(partitions)}
        # Sorting by arrival alone keeps the order given for those that arrive in one millisecond.
        self.by_arrival = sorted(events, key=lambda event: event.arrival)
        for event in self.by_arrival:
            self.events[event.side, event.partition].append(event)

    def arrived(self, until: int) -> dict[Partition, int]:
        """How many events each partition has that arrived before `until`, exclusive."""
        return {at: sum(event.arrival < until for event in mine) for at, mine in self.events.items()}

    def at_once(self, wall_time: int = LONG_AFTER) -> Read:
        """A batch that reads every partition to the end of the stream, by default so late that nothing stays open."""
        ends = {at: len(mine) for at, mine in self.events.items()}
        return Read(wall_time, ends, ends)

    def event_by_event(self) -> list[Read]:
        """Every event a batch of its own, read the moment it arrives; and one that closes everything."""
        reads, until = [], dict.fromkeys(self.events, 0)
        for event in self.by_arrival:
            until = until | {(event.side, event.partition): until[event.side, event.partition] + 1}
            reads.append(Read(event.arrival, until, until))
        return [*reads, self.at_once()]

    def play(self, reads: Iterable[Read]) -> list[PlayedBatch]:
        """The batches, each with the clock that the rules of clocks give it."""
        rehearsal = Rehearsal(self.pipeline)
        begun, largest, batches = dict.fromkeys(self.events, 0), dict[Partition, int](), []
        for number, read in enumerate(reads, 1):
            new = [message for at in self.events for message in self._messages(at, begun[at], read.untils[at])]
            batch = Batch(number, new, None, read.wall_time, self.pipeline)
            for row in land(batch, topics_of(batch.pipeline)).to_pylist():
                if row["problem"] is None:
                    at = row["side"], row["partition"]
                    largest[at] = max(row["ts"], largest.get(at, row["ts"]))
            progress = [PartitionProgress(read.untils[at] == read.ends[at], largest.get(at)) for at in self.events]
            clock = batch_clock(progress, read.wall_time, rehearsal.clock, self.pipeline.clock)
            batches.append(rehearsal.play(batch._replace(clock=clock)))
            begun = dict(read.untils)
        return batches

    def _messages(self, at: Partition, begin: int, until: int) -> list[Message]:
        side = self.pipeline.sides[at[0]]
        messages = []
        for offset, event in enumerate(self.events[at][begin:until], begin):
            payload = event.payload or f"{at[1]}-{offset}"
            body = {"user1": event.user, "user2": "v", "timestamp": event.ts, side.payload: payload}
            messages.append(Message(side.topic, at[1], offset, event.arrival, json.dumps(body).encode()))
        return messages


def outcome_counts(batches: Iterable[PlayedBatch]) -> Counter[str]:
    """How many rows of each outcome all batches together have; what stays open is counted once, after the last batch."""
    batches = list(batches)
    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(
            name for name in batch.outcomes.column("outcome").to_pylist() if name != "open" or batch is batches[-1]
        )
    return counts
