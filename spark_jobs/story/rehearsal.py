"""Prints what the tables would hold after batches of record files, as JSON lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.story.from_files import BatchFile, read_batches
from spark_jobs.story.play import SIDES, Played, Rehearsal, Row, rows_of, source, source_in, source_order

_ONE_LINE = str.maketrans("\r\n", "  ")


def rehearse(pipeline: Pipeline, files: Iterable[BatchFile]) -> Iterator[str]:
    """The JSON lines: compounds and rejections of each batch, the events still open after the last one, a ledger line a batch."""
    rehearsal = Rehearsal(pipeline.key)
    ledger = []
    for batch in read_batches(pipeline, files):
        played = rehearsal.play(batch)
        rejected = _rejected(pipeline, played)
        yield from (line for _, line in sorted(_compound_lines(pipeline, played)))
        yield from (
            _line("rejected_events", batch=batch.batch_id, reason=reason, source=event) for event, reason in rejected
        )
        ledger.append(_ledger_line(played, rejected))
    still_open = (_source_of_event(pipeline, row) for row in rehearsal.open_events.to_pylist())
    yield from (_line("open_events", source=event) for event in sorted(still_open, key=source_order))
    yield from ledger


def _line(table: str, **columns: Any) -> str:
    return json.dumps({"table": table} | columns)


def _source_of_event(pipeline: Pipeline, row: Row) -> str:
    return source(pipeline, row["side"], row["partition"], row["offset"])


def _source_of_outcome(pipeline: Pipeline, row: Row) -> str:
    """The left event's; the right event's if there is no left one."""
    return next(filter(None, (source_in(pipeline, row, side, name) for side, name in SIDES)))


def _rejected(pipeline: Pipeline, played: Played) -> list[tuple[str, str]]:
    """(source, reason) of what the batch rejected, in this order."""
    messages = played.messages.filter(pc.is_valid(played.messages.column("problem")))
    rejected = [(_source_of_event(pipeline, row), row["problem"]) for row in messages.to_pylist()]
    rejected += [(_source_of_outcome(pipeline, row), row["outcome"]) for row in rows_of(played.outcomes, *AT_PAIRING)]
    return sorted(rejected, key=lambda each: (source_order(each[0]), each[1]))


def _compound_lines(pipeline: Pipeline, played: Played) -> Iterator[tuple[tuple[Any, ...], str]]:
    """(what to sort by, line) of each compound."""
    for row in rows_of(played.outcomes, *COMPOUNDS):
        pair_id = _source_of_outcome(pipeline, row)
        ts = min(at for at in (row["left_ts"], row["right_ts"]) if at is not None)
        key = {name: row[name] for name in pipeline.key}
        head = _line("compound_events", batch=played.batch.batch_id, pair_id=pair_id, kind=row["outcome"], **key, ts=ts)
        payloads = "".join(
            # Payloads are JSON texts; a line break can only stand between their tokens, where a space says the same.
            f", {json.dumps(side.payload)}: {_printable(row[column] or 'null')}"
            for side, column in zip(pipeline.sides, ("left_payload", "right_payload"), strict=True)
        )
        yield (ts, *source_order(pair_id)), f"{head[:-1]}{payloads}}}"


def _ledger_line(played: Played, rejected: list[tuple[str, str]]) -> str:
    counts = Counter(played.outcomes.column("outcome").to_pylist())
    return _line(
        "batch_ledger",
        batch=played.batch.batch_id,
        clock=played.rules.clock,
        landed=played.messages.num_rows,
        accepted=played.accepted,
        open_before=played.events.num_rows - played.accepted,
        open_after=counts[Outcome.OPEN],
        **{name: counts[name] for name in ("pair", "left_only", "right_only", "collapsed")},
        rejected=dict(sorted(Counter(reason for _, reason in rejected).items())),
    )


def _printable(payload: str) -> str:
    """The same JSON in one line of ASCII: in JSON, other characters stand inside strings only, where they may be escaped."""
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], payload.translate(_ONE_LINE))
