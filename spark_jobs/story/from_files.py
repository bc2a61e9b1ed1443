"""Loads the history of one pair from files of records as `kcat -C -J` prints them, one JSON object a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from include.config.pipeline import Pipeline
from include.config.time_text import count
from spark_jobs.job.arguments import fail
from spark_jobs.rules.parsing import is_utf8
from spark_jobs.story.history import Batch, Key, Message, PairHistory, UnknownKey
from spark_jobs.story.play import land
from spark_jobs.story.sentences import tell

_SHOWN = 100


class BatchFile(NamedTuple):
    """One --batch argument: a file of records and the batch's clock (epoch ms)."""

    path: Path
    clock: int


class _Record(msgspec.Struct):
    """What kcat prints of a record; `headers` are names and values in turn."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    ts: Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)] | None = None
    payload: str | None = None
    headers: list[str | None] | None = None


def batch_argument(text: str) -> BatchFile:
    """`type=` of --batch: FILE@CLOCK, or one line and exit status 2."""
    path, at, clock = text.rpartition("@")
    if not at or not path or not clock.isascii() or not clock.isdigit() or len(clock) > 18:
        fail(f"--batch {text}: write FILE@CLOCK, the clock in epoch milliseconds")
    if not Path(path).is_file():
        fail(f"--batch {text}: no such file: {path}")
    return BatchFile(Path(path), int(clock))


def read_batches(pipeline: Pipeline, files: Iterable[BatchFile]) -> Iterator[Batch]:
    """The batches, counted from 1, one file at a time; the clock of each is its wall time, too."""
    for number, file in enumerate(files, 1):
        yield Batch(number, read_messages(file.path, pipeline), file.clock, file.clock, pipeline)


def explain(pipeline: Pipeline, key: tuple[str, ...], batches: Iterable[Batch]) -> Iterator[str]:
    """The lines of the story. Raises UnknownKey before the first one."""
    return tell(load(pipeline, key, batches))


def load(pipeline: Pipeline, key: tuple[str, ...], batches: Iterable[Batch]) -> PairHistory:
    """The history of the key in the batches, which hold messages of any key. Raises UnknownKey."""
    own: list[Batch] = []
    messages: Counter[Key] = Counter()
    for batch in batches:
        # In the order in which `land` returns them.
        ordered = [message for side in pipeline.sides for message in batch.messages if message.topic == side.topic]
        landed = land(batch)
        keys = list(zip(*(landed.column(name).to_pylist() for name in pipeline.key), strict=True))
        messages.update(keys)
        own.append(batch._replace(messages=[message for message, each in zip(ordered, keys, strict=True) if each == key]))
    if not messages[key]:
        searched = f"{count(len(own), 'batch')} of {count(messages.total(), 'message')}"
        raise UnknownKey(key, searched, messages[key[::-1]])
    return PairHistory(key, pipeline, own, without_key=sum(number for each, number in messages.items() if None in each))


def read_messages(path: Path, pipeline: Pipeline) -> list[Message]:
    """All records of a file; where one is not as kcat prints it, one line on standard error and exit status 2."""
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError as error:
        fail(f"{path}: cannot be read: {error}")
    messages = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                messages.append(message_of(json.loads(line)))
            except (ValueError, RecursionError) as error:
                fail(f"{path}:{number}: not a record as `kcat -C -J` prints it: {error}")
            if (topic := messages[-1].topic) not in (pipeline.left.topic, pipeline.right.topic):
                topic = topic if len(topic) <= _SHOWN else f"{topic[:_SHOWN]}…"
                fail(f"{path}:{number}: topic {topic} is neither {pipeline.left.topic} nor {pipeline.right.topic}")
    return messages


def message_of(record: Any) -> Message:
    """A record as kcat prints it, decoded with `surrogateescape`: kcat prints bytes that are no UTF-8 as they are. Raises ValueError."""
    read = msgspec.convert(record, _Record)
    names = [_bytes(name or "") for name in (read.headers or [])[::2]]
    value = None if read.payload is None else _bytes(read.payload)
    return Message(read.topic, read.partition, read.offset, read.ts, value, not all(map(is_utf8, names)))


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # JSON may escape half of a surrogate pair: such a message must come out malformed and not stop the others.
        return text.encode("utf-8", "surrogatepass")
