"""Batches of record files played by the rules, as JSON lines of what the tables would hold."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.job.arguments import fail
from spark_jobs.rules.outcomes import COMPOUNDS
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.story.played_batches import Played, Rehearsal, Row, land, rows_of, source, source_order
from spark_jobs.story.record_files import read_records


class BatchFile(NamedTuple):
    """One --batch argument: records and clock (epoch ms)."""

    path: Path
    clock: int


def rehearse(pipeline: Pipeline, batches: list[BatchFile]) -> Iterator[str]:
    """The JSON lines of all batches in order."""
    rehearsal = Rehearsal(pipeline)
    ledger = []
    for number, batch in enumerate(batches, 1):
        open_before = rehearsal.open_events.num_rows
        messages = land(pipeline, read_records(batch.path, pipeline), batch.clock, number)
        played = rehearsal.play(messages, batch.clock, batch.clock)
        rejected = _rejected(pipeline, played)
        yield from (line for _, line in sorted(_compound_lines(pipeline, played)))
        yield from (_line("rejected_events", batch=number, reason=reason, source=at) for at, reason in rejected)
        ledger.append(_ledger_line(played, open_before, rehearsal.open_events.num_rows, rejected))
    still_open = (_source_of_event(pipeline, row) for row in rehearsal.open_events.to_pylist())
    yield from (_line("open_events", source=at) for at in sorted(still_open, key=source_order))
    yield from ledger


def _line(table: str, **columns: Any) -> str:
    return json.dumps({"table": table} | columns)


def _source_of_event(pipeline: Pipeline, row: Row) -> str:
    return source(pipeline, row["side"], row["partition"], row["offset"])


def _source_of_outcome(pipeline: Pipeline, row: Row) -> str:
    """The left event's, the right one's where there is no left."""
    number, side = (RIGHT, "right") if row["left_offset"] is None else (LEFT, "left")
    return source(pipeline, number, row[f"{side}_partition"], row[f"{side}_offset"])


def _rejected(pipeline: Pipeline, played: Played) -> list[tuple[str, str]]:
    """(source, reason) of what the batch rejected, in this order."""
    messages = played.messages.filter(pc.is_valid(played.messages.column("problem")))
    found = [(_source_of_event(pipeline, row), row["problem"]) for row in messages.to_pylist()]
    found += [
        (_source_of_outcome(pipeline, row), str(reason)) for reason in AT_PAIRING for row in rows_of(played.outcomes, reason)
    ]
    return sorted(found, key=lambda each: (source_order(each[0]), each[1]))


def _compound_lines(pipeline: Pipeline, played: Played) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Each line after what it is sorted by."""
    kinds = pa.array([str(kind) for kind in COMPOUNDS])
    for row in played.outcomes.filter(pc.is_in(played.outcomes.column("outcome"), kinds)).to_pylist():
        pair_id = _source_of_outcome(pipeline, row)
        ts = min(at for at in (row["left_ts"], row["right_ts"]) if at is not None)
        key = {name: row[name] for name in pipeline.key}
        head = _line("compound_events", batch=played.batch_id, pair_id=pair_id, kind=row["outcome"], **key, ts=ts)
        payloads = "".join(
            # Payloads are JSON texts; a line break can only stand between their tokens, where a space says the same.
            f", {json.dumps(side.payload)}: {_printable(row[column] or 'null')}"
            for side, column in zip(pipeline.sides, ("left_payload", "right_payload"), strict=True)
        )
        yield (ts, *source_order(pair_id)), f"{head[:-1]}{payloads}}}"


def _ledger_line(played: Played, open_before: int, open_after: int, rejected: list[tuple[str, str]]) -> str:
    counts = Counter(played.outcomes.column("outcome").to_pylist())
    return _line(
        "batch_ledger",
        batch=played.batch_id,
        clock=played.rules.clock,
        landed=played.messages.num_rows,
        accepted=played.accepted,
        open_before=open_before,
        open_after=open_after,
        **{name: counts.get(name, 0) for name in ("pair", "left_only", "right_only", "collapsed")},
        rejected=dict(sorted(Counter(reason for _, reason in rejected).items())),
    )


_ONE_LINE = str.maketrans("\r\n", "  ")


def _printable(payload: str) -> str:
    """The same JSON in one line of ASCII: in JSON, other characters stand inside strings only, where they may be escaped."""
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], payload.translate(_ONE_LINE))


def batch_argument(text: str) -> BatchFile:
    path, at, clock = text.rpartition("@")
    if not at or not path or not clock.isascii() or not clock.isdigit() or len(clock) > 18:
        fail(f"--batch {text}: write FILE@CLOCK, the clock in epoch milliseconds")
    if not Path(path).is_file():
        fail(f"--batch {text}: no such file: {path}")
    return BatchFile(Path(path), int(clock))
