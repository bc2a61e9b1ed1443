"""One pair's story in words: each of its messages, and what became of it and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from include.pipeline_config import Pipeline
from spark_jobs.rehearsal.batches import Played, land
from spark_jobs.rehearsal.fates import Batches, play_key
from spark_jobs.rehearsal.story import Story
from spark_jobs.rehearsal.words import count, duration, moment

Key = tuple[str | None, ...]


class UnknownKey(LookupError):
    """No message has this key; the text is one line."""


def explain(pipeline: Pipeline, key: tuple[str, ...], batches: Batches) -> Iterator[str]:
    """The lines of the story. Raises UnknownKey before the first one."""
    own, known = _select(pipeline, key, batches)
    messages = sum(len(records) for records, _ in own)
    if not messages:
        raise UnknownKey(_unknown(key, known, len(batches)))
    played = play_key(pipeline, own)
    story = Story(pipeline, own, played)
    yield f"{_written(key)}: {count(messages, 'message')} in {count(len(batches), 'batch')}, pipeline {pipeline.name} ({_settings(pipeline)})"
    for batch in played:
        yield f"batch {batch.batch_id}: {count(batch.messages.num_rows, 'message')} read, clock {_clock(batch)}"
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
    for number, (records, clock) in enumerate(batches, 1):
        # Landed messages come side by side, the left ones first, each side in the order of the file.
        ordered = [record for side in pipeline.sides for record in records if record["topic"] == side.topic]
        messages = land(pipeline, ordered, clock, number)
        keys = list(zip(*(messages.column(name).to_pylist() for name in pipeline.key), strict=True))
        known.update(keys)
        own.append(([record for record, found in zip(ordered, keys, strict=True) if found == key], clock))
    return own, known


def _written(key: Key) -> str:
    return ", ".join(text if text and text.isprintable() else json.dumps(text) for text in key)


def _unknown(key: tuple[str, ...], known: Counter[Key], batches: int) -> str:
    line = (
        f"error: --explain: no message of {_written(key)} in {count(batches, 'batch')} of {count(known.total(), 'message')}"
    )
    swapped = next((other for other in known if None not in other and sorted(map(str, other)) == sorted(key)), None)
    if swapped:
        line += f"; {_written(swapped)} has {count(known[swapped], 'message')}: the order of the key's fields matters"
    return line


def _settings(pipeline: Pipeline) -> str:
    names = ("tolerance", "gap", "grace", "max_future", "max_session")
    return ", ".join([*(f"{name} {duration(getattr(pipeline, f'{name}_ms'))}" for name in names), pipeline.matching])


def _clock(batch: Played) -> str:
    return "none yet" if batch.rules.clock is None else moment(batch.rules.clock)
