"""One pair's story in words: each of its messages, and what became of it and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from include.config.pipeline import Pipeline
from include.config.time_text import count, duration, moment
from spark_jobs.story.fates import Batches, Cuts, numbered, play
from spark_jobs.story.played_batches import Played, land
from spark_jobs.story.sentences import Story

Key = tuple[str | None, ...]


class UnknownKey(LookupError):
    """No message has this key; the text is one line."""


def explain(pipeline: Pipeline, key: tuple[str, ...], cuts: Cuts) -> Iterator[str]:
    """The lines of the story of a rehearsal. Raises UnknownKey before the first one."""
    own, known = _select(pipeline, key, numbered(pipeline, cuts))
    messages = sum(len(batch.records) for batch in own)
    if not messages:
        raise UnknownKey(_unknown(key, known, len(own)))
    played = play(own, every=True)
    story = Story(pipeline, own, played)
    yield f"{written(key)}: {count(messages, 'message')} in {count(len(own), 'batch')}, pipeline {pipeline.name} ({settings_of(pipeline)})"
    yield from (batch_line(batch) for batch in played)
    for fate in story.told:
        yield ""
        yield from story.event(fate)
    unreadable = Counter({each: number for each, number in known.items() if None in each})
    if unreadable:
        yield ""
        yield f"{count(unreadable.total(), 'message')} without a readable key: whose, nobody can say"


def _select(pipeline: Pipeline, key: tuple[str, ...], batches: Batches) -> tuple[Batches, Counter[Key]]:
    """The records of one key, and how many messages each key has."""
    known: Counter[Key] = Counter()
    own: Batches = []
    for batch in batches:
        # Landed messages come side by side, the left ones first, each side in the order of the file.
        ordered = [record for side in pipeline.sides for record in batch.records if record["topic"] == side.topic]
        messages = land(pipeline, ordered, batch.wall_time, batch.batch_id)
        keys = list(zip(*(messages.column(name).to_pylist() for name in pipeline.key), strict=True))
        known.update(keys)
        own.append(batch._replace(records=[record for record, found in zip(ordered, keys, strict=True) if found == key]))
    return own, known


def written(key: Key) -> str:
    """A key for people: its fields in order."""
    return ", ".join(text if text and text.isprintable() and ", " not in text else json.dumps(text) for text in key)


def _unknown(key: tuple[str, ...], known: Counter[Key], batches: int) -> str:
    line = (
        f"error: --explain: no message of {written(key)} in {count(batches, 'batch')} of {count(known.total(), 'message')}"
    )
    swapped = next((other for other in known if None not in other and sorted(map(str, other)) == sorted(key)), None)
    if swapped:
        line += f"; {written(swapped)} has {count(known[swapped], 'message')}: the order of the key's fields matters"
    return line


def settings_of(pipeline: Pipeline) -> str:
    """What decides who is paired with whom."""
    names = ("tolerance", "gap", "grace", "max_future", "max_session")
    return ", ".join([*(f"{name} {duration(getattr(pipeline, f'{name}_ms'))}" for name in names), pipeline.matching])


def batch_line(batch: Played) -> str:
    """What a batch read of the key, and up to when it knows all events."""
    clock = "none yet" if batch.rules.clock is None else moment(batch.rules.clock)
    return f"batch {batch.batch_id}: {count(batch.messages.num_rows, 'message')} read, clock {clock}"
