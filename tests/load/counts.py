"""Holds what came out against the truth of the sample traffic, message by message, in eight bytes a message.

`include.sample.truth` keeps every message in memory, which tens of millions do not fit into. Here both sides become hashes of their bytes,
and only what differs by its bytes is parsed and compared by its meaning. For traffic of which nothing is open any more, nothing was late and
nothing had to be corrected: a correction on the topic is a difference.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from confluent_kafka import Message

from include.config.pipeline import Pipeline
from include.sample.outcome import canonical, parse, read_table, read_topic
from tests.helpers.stores import table_of

SHOWN = 10


class Compound(msgspec.Struct):
    """A compound in a line of the truth, its value as it is written there."""

    kind: str
    value: msgspec.Raw


class Line(msgspec.Struct):
    """A line of the truth: a session with its compounds, or a rejected record."""

    closes_after: int = 0
    events: int = 0
    compounds: list[Compound] = []
    rejected: str = ""
    topic: str = ""
    value: str | None = None


class Hashes:
    """A bag of texts, each as a hash of 64 bits."""

    def __init__(self) -> None:
        self.numbers = array("q")

    def add(self, *parts: bytes) -> int:
        """Adds the text made of these parts; returns its hash."""
        self.numbers.append(number := hash(parts))
        return number

    def differences(self, other: Hashes) -> set[int]:
        """The hashes that are more often in one of the two bags than in the other."""
        ours, theirs = (np.sort(np.frombuffer(each.numbers, np.int64)) for each in (self, other))
        if np.array_equal(ours, theirs):
            return set()
        every = np.union1d(ours, theirs)
        found = (np.searchsorted(bag, every, "right") - np.searchsorted(bag, every, "left") for bag in (ours, theirs))
        return set(every[np.not_equal(*found)].tolist())

    def repeated(self) -> int:
        """How many of the texts are there again."""
        return len(self.numbers) - len(np.unique(np.frombuffer(self.numbers, np.int64)))


class Comparison(NamedTuple):
    """What was wanted and found. `events`: of the sessions, by the truth. No `differences`: all is equal."""

    events: int
    compounds: int
    published: int
    rejected: int
    differences: list[str]


def compare(
    truths: Sequence[Path], pipeline: Pipeline, kafka: Mapping[str, Any], warehouse: str, clock: int | None
) -> Comparison:
    """Compares all of the truths with the output topic, rejected_events and open_events. Raises SampleError."""
    wanted, rejected, events, problems = Hashes(), Hashes(), 0, []
    for line in _lines(truths):
        events += line.events
        if line.rejected:
            rejected.add(*_rejection(line.rejected, line.topic, None if line.value is None else b64decode(line.value)))
        elif clock is None or line.closes_after >= clock:
            problems.append(f"a session of the truth is still open at the clock {clock}")
        for compound in line.compounds:
            wanted.add(compound.kind.encode(), bytes(compound.value))
    found, pair_ids = Hashes(), Hashes()
    for message in read_topic(pipeline.output_topic, kafka):
        headers = dict(message.headers() or [])
        pair_ids.add(headers.get("pair-id", b""))
        found.add(headers.get("kind", b""), message.value() or b"")
        problems += wrong_in_itself(pipeline, message, headers)
    if again := pair_ids.repeated():
        problems.append(f"{again:,} messages have the pair-id of another one")
    if differing := wanted.differences(found):
        problems += _by_meaning(differing, truths, pipeline, kafka)
    refused = Hashes()
    for reason, topic, value in read_table(warehouse, pipeline, "rejected_events", ["reason", "topic", "value"]):
        refused.add(*_rejection(reason, topic, value))
    if count := len(rejected.differences(refused)):
        problems.append(f"{count:,} rejected events differ: {len(refused.numbers):,} instead of {len(rejected.numbers):,}")
    if still_open := sum(1 for _ in read_table(warehouse, pipeline, "open_events", [pipeline.key[0]])):
        problems.append(f"{still_open:,} events are still open")
    return Comparison(events, len(wanted.numbers), len(found.numbers), len(refused.numbers), shortened(problems))


def _lines(truths: Sequence[Path]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for truth in truths:
        with truth.open("rb") as lines:
            yield from map(decoder.decode, lines)


def _rejection(reason: str, topic: str, value: bytes | None) -> tuple[bytes, ...]:
    return (reason.encode(), topic.encode(), *(() if value is None else (value,)))


def wrong_in_itself(pipeline: Pipeline, message: Message, headers: Mapping[str, bytes]) -> list[str]:
    """At most one line: a message that is a correction, or that has another key than its own."""
    where = f"{message.topic()}-{message.partition()}-{message.offset()}"
    if (headers.get("op"), headers.get("revision")) != (b"upsert", b"0"):
        return [f"{where} is a correction: {message.value()!r:.200}"]
    fields = msgspec.json.decode(message.value() or b"{}", type=dict[str, msgspec.Raw])
    names = [msgspec.json.decode(fields.get(name, msgspec.Raw(b'""')), type=str) for name in pipeline.key]
    key = "-".join(re.sub(r"[-\\]", lambda special: "\\" + special[0], name) for name in names).encode()
    return [] if message.key() == key else [f"{where} has the key {message.key()!r}, not {key!r}"]


def _by_meaning(differing: set[int], truths: Sequence[Path], pipeline: Pipeline, kafka: Mapping[str, Any]) -> list[str]:
    """The lines of what differs not only in its spelling."""
    wanted: Counter[str] = Counter()
    for line in _lines(truths):
        wanted.update(_meant(((each.kind.encode(), bytes(each.value)) for each in line.compounds), differing))
    published = ((dict(each.headers() or []), each.value() or b"") for each in read_topic(pipeline.output_topic, kafka))
    found = Counter(_meant(((headers.get("kind", b""), value) for headers, value in published), differing))
    return [
        *(f"{pipeline.output_topic} lacks {count} × {text:.300}" for text, count in (wanted - found).items()),
        *(f"{pipeline.output_topic} has {count} × too many: {text:.300}" for text, count in (found - wanted).items()),
    ]


def _meant(compounds: Iterable[tuple[bytes, bytes]], differing: set[int]) -> Iterator[str]:
    for kind, value in compounds:
        if hash((kind, value)) in differing:
            yield f"{kind.decode()} {canonical(parse(value or b'null'))}"


def shortened(lines: list[str]) -> list[str]:
    """At most SHOWN of them, and how many more there are."""
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"and {more:,} lines more like these"]


def landed_rows(warehouse: str, pipeline: Pipeline) -> int:
    """Rows of both raw tables, by the statistics of their files."""
    return sum(table_of(warehouse, pipeline, f"raw_{side.payload}").count() for side in pipeline.sides)
