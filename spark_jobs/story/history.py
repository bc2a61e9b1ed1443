"""The history of one pair: its messages by batch, what the tables record of them, and its compounds.

`from_files` and `from_tables` load it; `sentences` plays it by the rules and puts it into words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from include.config.pipeline import Pipeline
from include.config.time_text import count
from spark_jobs.rules.parsing import ParsedMessage
from spark_jobs.tables.records import Window

Key = tuple[str | None, ...]
Revision = tuple[str, int]
"""pair_id and revision: names one message on the output topic."""
NOT_PAIRED = "not_paired"
"""The verdict on a message whose batch is not paired yet."""


class Message(NamedTuple):
    """One record of an input topic. `timestamp`: the record's, epoch ms. `has_bad_header`: the name of a header is not UTF-8.

    `landed`: what the tables say of it; None of a record that a file has.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    value: bytes | None
    has_bad_header: bool = False
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    landed: ParsedMessage | None = None


class Batch(NamedTuple):
    """A batch and the messages it read. `clock` (None: minus infinity) and `wall_time` in epoch ms; `pipeline`: its settings."""

    batch_id: int
    messages: list[Message]
    clock: int | None
    wall_time: int
    pipeline: Pipeline


class Session(NamedTuple):
    """First and last timestamp (epoch ms, both inclusive) and the number of events, duplicates left out."""

    start: int
    end: int
    events: int


class Fate(NamedTuple):
    """What became of one message. `source`: its `topic-partition-offset`; `ts`: epoch ms, None if it cannot be read. `landed`: the
    batch that read it; `batch`: the batch that decided, or the last one if it is open.

    `verdict`: an `Outcome`, a `Reason` of a rejection at landing, or NOT_PAIRED. `session` is None for the latter two, and of duplicates and
    superseded events.
    `partner`: source of the other half, of the event that a duplicate repeats, or of the first event of a collapsed one's side.
    `is_reversed`: its key fields are in the other order than the pair's.
    """

    source: str
    side: int
    ts: int | None
    landed: int
    verdict: str
    batch: int
    session: Session | None = None
    partner: str | None = None
    is_reversed: bool = False


class Compound(NamedTuple):
    """One row of `compound_events`. `ts`: the compound's, epoch ms. `left`, `right`: sources of its events. `apart_ms`: right timestamp
    minus left timestamp, 0 if one is missing. `batch`: the one that wrote it; `by`: the same in words, with the interval of a replay.
    """

    pair_id: str
    revision: int
    is_retraction: bool
    kind: str
    ts: int
    left: str | None
    right: str | None
    apart_ms: int
    batch: int
    by: str
    is_of_replay: bool

    @property
    def sources(self) -> list[str]:
        """Its one or two events, the left one first."""
        return [source for source in (self.left, self.right) if source]


@dataclass(frozen=True)
class PairHistory:
    """What is known of one key. `batches`: the paired ones that count, ascending, with or without messages of the key.

    `without_key`: messages of files that have no readable key, and so may belong to any pair. Only tables have the rest.
    `others`: messages on which no paired batch has decided as of this key. `recorded`: by source, what live batches wrote of it
    (kind or reason, batch_id); None: there are no tables. `removals`: in words, which rows were removed for their age.
    `incomplete_until`: events up to this time (epoch ms, inclusive) may have met events that were removed. `interval`: only events in
    it are shown; None: all.
    """

    key: tuple[str, ...]
    pipeline: Pipeline
    batches: list[Batch]
    without_key: int = 0
    others: list[Fate] = field(default_factory=list)
    compounds: list[Compound] = field(default_factory=list)
    recorded: dict[str, tuple[str, int]] | None = None
    removals: str | None = None
    incomplete_until: int | None = None
    interval: Window | None = None

    def shows(self, ts: int | None) -> bool:
        """Whether an event or compound of this time (epoch ms) is shown."""
        return self.interval is None or (ts is not None and self.interval.start <= ts < self.interval.end)


Locate = Callable[[list[Compound]], tuple[dict[Revision, str], str | None]]
"""Returns where compounds are on the output topic, in words, and why offsets are unknown (None if they are known)."""


class UnknownKey(LookupError):
    """No message has this key; the text is one line. `swapped`: how many messages have the key with its fields in reverse order."""

    def __init__(self, key: tuple[str, ...], searched: str, swapped: int) -> None:
        other = f"; {key_text(key[::-1])} has {count(swapped, 'message')}: the order of the key's fields matters"
        super().__init__(f"error: no message of {key_text(key)} in {searched}{other if swapped else ''}")


def key_text(key: Key) -> str:
    """A key for people: its fields in order."""
    return ", ".join(text if text and text.isprintable() and ", " not in text else json.dumps(text) for text in key)
