"""Rehearses the pairing on files of records as `kcat -C -J` prints them, one JSON object a line, or tells the story of one pair."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from include.config.time_text import count
from spark_jobs.job.arguments import fail
from spark_jobs.rules.key_order import order_key
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome
from spark_jobs.rules.parsing import ParsedMessage, is_utf8
from spark_jobs.rules.reasons import AT_PAIRING, FILTERED
from spark_jobs.rules.rules import REVERSED
from spark_jobs.rules.side_topics import SideTopics, topics_of
from spark_jobs.story.history import Batch, Key, Message, PairHistory, UnknownKey
from spark_jobs.story.play import (
    SIDES,
    PlayedBatch,
    Rehearsal,
    Row,
    land,
    rows_of,
    source,
    source_in,
    source_order,
    topics_in,
)
from spark_jobs.story.sentences import tell

_SHOWN = 100
_ONE_LINE = str.maketrans("\r\n", "  ")


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
    key: str | None = None
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
    """The lines of the story of a key in batches, which hold messages of any key. Raises UnknownKey before the first one."""
    key = order_key(key, pipeline)
    own: list[Batch] = []
    messages: Counter[Key] = Counter()
    for batch in batches:
        # In the order in which `land` returns them.
        ordered = [message for side in pipeline.sides for message in batch.messages if side.has(message.topic)]
        landed = land(batch, topics_of(pipeline, topics_in(batch)))
        keys = list(zip(*(landed.column(name).to_pylist() for name in pipeline.key), strict=True))
        fields = (landed.column(name).to_pylist() for name in ("ts", "payload", "problem"))
        says = list(map(ParsedMessage, _as_they_came(keys, landed), *fields))
        # Of a filtered message the key is not read: it is none of the pipeline's.
        messages.update(its for its, each in zip(keys, says, strict=True) if each.problem != FILTERED)
        # With what they say, because the story plays them again and again.
        found = zip(ordered, keys, says, strict=True)
        mine = [message._replace(landed=each) for message, its, each in found if its == key]
        own.append(batch._replace(messages=mine))
    if not messages[key]:
        searched = f"{count(len(own), 'batch')} of {count(messages.total(), 'message')}"
        raise UnknownKey(key, searched, messages[key[::-1]])
    without_key = sum(number for each, number in messages.items() if None in each)
    return tell(PairHistory(key, pipeline, own, without_key))


def _as_they_came(keys: list[Key], landed: pa.Table) -> list[Key]:
    """The keys, in the pair's order, as the messages have them."""
    if REVERSED not in landed.schema.names:
        return keys
    return [key[::-1] if turned else key for key, turned in zip(keys, landed.column(REVERSED).to_pylist(), strict=True)]


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
            if not any(side.has(topic := messages[-1].topic) for side in pipeline.sides):
                topic = topic if len(topic) <= _SHOWN else f"{topic[:_SHOWN]}…"
                fail(f"{path}:{number}: topic {topic} is neither {pipeline.left.input} nor {pipeline.right.input}")
    return messages


def message_of(record: Any) -> Message:
    """A record as kcat prints it, decoded with `surrogateescape`: kcat prints bytes that are no UTF-8 as they are. Raises ValueError."""
    read = msgspec.convert(record, _Record)
    value, key, *headers = (
        None if text is None else _bytes(text) for text in (read.payload, read.key, *(read.headers or []))
    )
    names = [name or b"" for name in headers[::2]]
    if not all(map(is_utf8, names)):
        return Message(read.topic, read.partition, read.offset, read.ts, value, True, key)
    # A name without a value ends the list where kcat was cut off.
    pairs = tuple((name.decode(), each) for name, each in zip(names, headers[1::2], strict=False))
    return Message(read.topic, read.partition, read.offset, read.ts, value, False, key, pairs)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # JSON may escape half of a surrogate pair: such a message must come out malformed and not stop the others.
        return text.encode("utf-8", "surrogatepass")


def rehearse(pipeline: Pipeline, batches: Iterable[Batch]) -> Iterator[str]:
    """The JSON lines of what the tables would hold: compounds and rejections of each batch, the events still open after the last one, a ledger line a batch."""
    rehearsal = Rehearsal(pipeline)
    ledger = []
    for batch in batches:
        played = rehearsal.play(batch)
        rejected = _rejected(played)
        yield from (line for _, line in sorted(_compound_lines(pipeline, played)))
        for event, reason in rejected:
            yield _line("rejected_events", batch=batch.batch_id, reason=reason, source=event)
        ledger.append(_ledger_line(played, rejected))
    still_open = (_source_of_event(rehearsal.topics, row) for row in rehearsal.open_events.to_pylist())
    yield from (_line("open_events", source=event) for event in sorted(still_open, key=source_order))
    yield from ledger


def _line(table: str, **columns: Any) -> str:
    return json.dumps({"table": table} | columns)


def _source_of_event(topics: SideTopics, row: Row) -> str:
    return source(topics, row["side"], row["partition"], row["offset"])


def _source_of_outcome(topics: SideTopics, row: Row) -> str:
    """The left event's; the right event's if there is no left one."""
    return next(filter(None, (source_in(topics, row, side, name) for side, name in SIDES)))


def _rejected(played: PlayedBatch) -> list[tuple[str, str]]:
    """(source, reason) of what the batch rejected, in this order."""
    topics = played.rules.topics
    messages = played.messages.filter(pc.not_equal(played.messages.column("problem"), FILTERED))
    rejected = [(_source_of_event(topics, row), row["problem"]) for row in messages.to_pylist()]
    rejected += [(_source_of_outcome(topics, row), row["outcome"]) for row in rows_of(played.outcomes, *AT_PAIRING)]
    return sorted(rejected, key=lambda each: (source_order(each[0]), each[1]))


def _compound_lines(pipeline: Pipeline, played: PlayedBatch) -> Iterator[tuple[tuple[Any, ...], str]]:
    """(what to sort by, line) of each compound."""
    for row in rows_of(played.outcomes, *COMPOUNDS):
        pair_id = _source_of_outcome(played.rules.topics, row)
        ts = min(at for at in (row["left_ts"], row["right_ts"]) if at is not None)
        key = {name: row[name] for name in pipeline.key}
        head = _line("compound_events", batch=played.batch.batch_id, pair_id=pair_id, kind=row["outcome"], **key, ts=ts)
        payloads = "".join(
            # Payloads are JSON texts; a line break can only stand between their tokens, where a space says the same.
            f", {json.dumps(side.payload)}: {_printable(row[column] or 'null')}"
            for side, column in zip(pipeline.sides, ("left_payload", "right_payload"), strict=True)
        )
        directions = zip(pipeline.reversed_fields, (f"left_{REVERSED}", f"right_{REVERSED}"), strict=False)
        payloads += "".join(f", {json.dumps(name)}: {json.dumps(row[column])}" for name, column in directions)
        yield (ts, *source_order(pair_id)), f"{head[:-1]}{payloads}}}"


def _ledger_line(played: PlayedBatch, rejected: list[tuple[str, str]]) -> str:
    counts = Counter(played.outcomes.column("outcome").to_pylist())
    filtered = pc.sum(pc.equal(played.messages.column("problem"), FILTERED)).as_py() or 0
    return _line(
        "batch_ledger",
        batch=played.batch.batch_id,
        clock=played.rules.clock,
        landed=played.messages.num_rows,
        accepted=played.accepted,
        **({"filtered": filtered} if filtered else {}),
        open_before=played.events.num_rows - played.accepted,
        open_after=counts[Outcome.OPEN],
        **{name: counts[name] for name in ("pair", "left_only", "right_only", "collapsed")},
        rejected=dict(sorted(Counter(reason for _, reason in rejected).items())),
    )


def _printable(payload: str) -> str:
    """The same JSON in one line of ASCII: in JSON, other characters stand inside strings only, where they may be escaped."""
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], payload.translate(_ONE_LINE))
