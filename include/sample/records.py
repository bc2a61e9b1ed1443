"""Turns a session of sample calls into the records that report it, and into its truth: what the pipeline must make of them.

Truth lines are JSON and use no pairing code (shapes.py says why they can):

    {"closes_after": ms, "events": n, "compounds": [{"kind": …, "value": {…as published…}}]}
        the n events of one session; while the batch clock is <= closes_after all are open, then its compounds are published
    {"closes_after": ms, "events": n, "published_after": [ms, …], "compounds": [ … ]}
        the same of a pipeline that reads another one's compounds: n events were sent to it, and each of the others is a compound that its
        pipeline has published once that one's batch clock is beyond the ms
    {"rejected": reason, "topic": …, "value": base64 of the record's value, or null}
        a record that the batch which lands it must put into rejected_events
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, NamedTuple

from include.config.pipeline import Pipeline
from include.sample.bodies import Users
from include.sample.shapes import Call, Session, compounds
from include.sample.traits import Traits

KINDS = {(True, True): "pair", (True, False): "left_only", (False, True): "right_only"}
# Kafka keys that do not match the body: the pipeline must not use them.
WRONG_KEYS = (b"somebody-else", b"", b"\xff\x00not text")


class Record(NamedTuple):
    """One record to send; `timestamp` is the Kafka record timestamp, epoch ms."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int


class Event(NamedTuple):
    """An event of a session. `payload`: its JSON text, None: it has none. `record`: None for a compound that another pipeline sends."""

    record: Record | None
    payload: str | None
    is_reversed: bool = False


class ChainedCompound(NamedTuple):
    """A compound of another pipeline: the JSON text of its value, and the clock (ms, exclusive) from which on that pipeline has published it."""

    value: str
    after: int


@dataclass
class Sample:
    """`records` in the order of sending; `truth` lines as above, without line ends."""

    records: list[Record] = field(default_factory=list)
    truth: list[str] = field(default_factory=list)

    def write_truth(self, path: str | Path) -> None:
        """Writes one line an expectation; the file appears complete or not at all."""
        with complete_file(path) as lines:
            lines.writelines(f"{line}\n" for line in self.truth)


@contextmanager
def complete_file(path: str | Path) -> Iterator[IO[str]]:
    """A text file to write; it gets its name, and replaces an older file, when it is complete."""
    partial = Path(f"{path}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("w", encoding="utf-8") as lines:
            yield lines
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class RecordWriter:
    """Collects `records`, each with the moment by which to sort for sending, and the `truth` lines beside them.

    `now_ms`: the record timestamp of events whose body has a timestamp. `spread`: an event is sent up to so many ms after its time.
    """

    def __init__(self, pipeline: Pipeline, rng: Random, now_ms: int, spread: int, traits: Traits) -> None:
        self.pipeline, self.rng, self.now_ms, self.spread, self.traits = pipeline, rng, now_ms, spread, traits
        self.records: list[tuple[float, Record]] = []
        self.truth: list[str] = []
        self.topics = pipeline.left.single_topic, pipeline.right.single_topic

    def send(self, record: Record | None, at: int) -> None:
        """Sends a record about the moment `at`, out of order by up to the spread."""
        assert record is not None
        self.records.append((at + self.rng.random() * self.spread, record))

    def session(self, users: Users, session: Session, duplicate: bool, lefts: Mapping[int, ChainedCompound] = {}) -> None:
        """Sends the events of one session, one of them twice if `duplicate`, and writes their truth.

        `lefts`: the left events that another pipeline sends, by their times.
        """
        events: dict[tuple[int, int], Event] = {}
        for call in session:
            for side, ts in enumerate(call):
                if ts is None:
                    continue
                if side == 0 and ts in lefts:
                    events[side, ts] = Event(None, lefts[ts].value)
                else:
                    events[side, ts] = event = self.event(users, side, ts)
                    self.send(event.record, ts)
        made = [self._compound(users, events, call) for call in compounds(session, self.pipeline.matching)]
        sent = {place: event for place, event in events.items() if event.record is not None}
        kept = len(sent) + (self._duplicate(users, session, sent, made) if duplicate and sent else 0)
        closes_after = max([ts for _, ts in events]) + self.pipeline.gap_ms + self.pipeline.grace_ms
        waits = [lefts[ts].after for side, ts in events if side == 0 and ts in lefts]
        published = f'"published_after":{waits},' if waits else ""
        self.truth.append(f'{{"closes_after":{closes_after},"events":{kept},{published}"compounds":[{",".join(made)}]}}')

    def event(self, users: Users, side: int, ts: int) -> Event:
        """An event that is yet to be sent; one in six has a less usual form that is valid, too."""
        rng = self.rng
        if self.pipeline.is_unordered and rng.random() < self.traits.turned[side]:
            users = users.turned(self.pipeline.key)
        key: bytes | None = users.kafka_key
        text: str | None = str(ts)
        stamp, extra = self.now_ms, False
        if rng.random() < 1 / 6:
            draw = rng.random()
            if draw < 0.25:
                text, stamp = (None if draw < 0.1 else "null"), ts
            elif draw < 0.4:
                text = f'"{ts}"'
            draw = rng.random()
            if draw < 0.4:
                key = None if draw < 0.25 else rng.choice(WRONG_KEYS)
            extra = rng.random() < 0.4
        payload_text = self.traits.payload(rng, side)
        value = self.traits.body(self.pipeline, side, users, text, payload_text, extra)
        return Event(Record(self.topics[side], key, value, stamp), payload_text, users.names != self._ordered(users).names)

    def reject(self, reason: str, record: Record) -> None:
        """Writes the truth of a rejected record; the caller sends it."""
        value = "null" if record.value is None else f'"{base64.b64encode(record.value).decode()}"'
        self.truth.append(f'{{"rejected":"{reason}","topic":"{record.topic}","value":{value}}}')

    def _compound(self, users: Users, events: Mapping[tuple[int, int], Event], call: Call) -> str:
        """The text of one compound in the truth; an absent payload and an absent side are both null."""
        left_ts, right_ts = call
        left = None if left_ts is None else events[0, left_ts].payload or "null"
        right = None if right_ts is None else events[1, right_ts].payload or "null"
        ts = right_ts if left_ts is None else left_ts if right_ts is None else min(left_ts, right_ts)
        return (
            f'{{"kind":"{KINDS[left is not None, right is not None]}","value":{{{self._ordered(users).text[0]},"ts":{ts},'
            f'"{self.pipeline.left.payload}":{left or "null"},"{self.pipeline.right.payload}":{right or "null"}'
            f"{self._directions(events, call)}}}}}"
        )

    def _ordered(self, users: Users) -> Users:
        """The names as the compounds of the pair have them."""
        is_turned = self.pipeline.is_unordered and users.names > users.names[::-1]
        return users.turned(self.pipeline.key) if is_turned else users

    def _directions(self, events: Mapping[tuple[int, int], Event], call: Call) -> str:
        """With `key_order: any`, whether each side named the pair in the other order; null for a side that never came."""
        words = ["null" if ts is None else str(events[side, ts].is_reversed).lower() for side, ts in enumerate(call)]
        return "".join(f',"{name}":{word}' for name, word in zip(self.pipeline.reversed_fields, words, strict=False))

    def _duplicate(self, users: Users, session: Session, events: Mapping[tuple[int, int], Event], made: list[str]) -> int:
        """Sends one event again; returns how many more events the session then has (0 if duplicates are dropped).

        If duplicates are kept, its side has one event too many, so one of the two becomes an orphan. In a session that already lacks events of
        a side it is not certain which one: then no copy is sent.
        """
        side, ts = self.rng.choice(list(events))
        record = events[side, ts].record
        assert record is not None
        if self.pipeline.drop_duplicates:
            self.send(record, ts)
            self.reject("duplicate", record)
            return 0
        if len(session) > 1 and any(None in call for call in session):
            return 0
        self.send(record, ts)
        if self.pipeline.matching != "collapse":
            made.append(self._compound(users, events, (ts, None) if side == 0 else (None, ts)))
        return 1
