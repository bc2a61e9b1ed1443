"""Rehearse the pairing rules on files: no Kafka, no Delta, no Airflow.

    python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --batch FILE@CLOCK [--batch FILE@CLOCK …]

FILE holds what `kcat -C -J` prints, one object a line (topic, partition, offset, ts, key, payload); topics tell the side.
CLOCK is the batch's clock in epoch ms and its wall time, too; each batch continues from the one before, whose clock it
never falls behind. Prints JSON lines: `compound_events` and `rejected_events` of each batch, then `open_events` after the
last batch, then one `batch_ledger` line of counts a batch. The functions that decide are those of the Spark jobs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from include.pipeline_config import Pipeline
from spark_jobs.batch_rules import batch_rules, body_fields, latest_ts
from spark_jobs.cli import OneLineParser, fail, pipeline_argument
from spark_jobs.pairing.conservation import check_conservation
from spark_jobs.pairing.outcomes import COMPOUNDS, decide_outcomes
from spark_jobs.pairing.parsing_in_bulk import parse_columns
from spark_jobs.pairing.reasons import AT_PAIRING
from spark_jobs.pairing.rules import LEFT, RIGHT, event_schema

Row = dict[str, Any]


class BatchFile(NamedTuple):
    """One --batch argument: records and clock (epoch ms)."""

    path: Path
    clock: int


@dataclass
class Rehearsal:
    """What one batch hands to the next."""

    pipeline: Pipeline
    open_events: pa.Table
    clock: int | None = None
    batch_id: int = 0

    def run(self, batch: BatchFile) -> tuple[list[str], str]:
        """The lines of one batch and its ledger line."""
        self.batch_id += 1
        accepted, rejected = self._land(_read_records(batch.path, self.pipeline), batch.clock)
        landed = accepted.num_rows + len(rejected)
        clock = batch.clock if self.clock is None else max(batch.clock, self.clock)
        rules = batch_rules(self.pipeline, clock, previous_clock=self.clock)
        open_before = self.open_events.num_rows
        outcomes = decide_outcomes(pa.concat_tables([self.open_events, accepted]), rules)
        counts = Counter(outcomes.column("outcome").to_pylist())
        check_conservation(open_before, accepted.num_rows, counts)
        compounds = outcomes.filter(pc.is_in(outcomes.column("outcome"), pa.array([str(kind) for kind in COMPOUNDS])))
        rejected += [(str(reason), self._source(row)) for reason in AT_PAIRING for row in _rows(outcomes, reason)]
        self.open_events = self._still_open(outcomes)
        self.clock = clock
        ledger = {
            "table": "batch_ledger",
            "batch": self.batch_id,
            "clock": clock,
            "landed": landed,
            "accepted": accepted.num_rows,
        }
        ledger |= {"open_before": open_before, "open_after": self.open_events.num_rows}
        ledger |= {name: counts.get(name, 0) for name in ("pair", "left_only", "right_only", "collapsed")}
        ledger["rejected"] = dict(sorted(Counter(reason for reason, _ in rejected).items()))
        lines = sorted(self._compound_lines(compounds)) + sorted(
            (_source_order(source), self._rejected_line(reason, source)) for reason, source in rejected
        )
        return [line for _, line in lines], json.dumps(ledger)

    def _land(self, records: list[Row], wall_time: int) -> tuple[pa.Table, list[tuple[str, str]]]:
        tables, rejected = [event_schema(self.pipeline.key).empty_table()], []
        for number, side in ((LEFT, self.pipeline.left), (RIGHT, self.pipeline.right)):
            mine = [record for record in records if record["topic"] == side.topic]
            values = [_bytes(record["payload"]) for record in mine]
            parsed = parse_columns(
                values,
                [record["ts"] for record in mine],
                body_fields(self.pipeline, side),
                latest_ts(self.pipeline, wall_time),
            )
            columns = [
                *parsed.key,
                pa.array([number] * len(mine), pa.int32()),
                pa.array([record["partition"] for record in mine], pa.int32()),
                pa.array([record["offset"] for record in mine], pa.int64()),
                parsed.ts,
                parsed.payload,
                pa.array([self.batch_id] * len(mine), pa.int64()),
                pa.array([False] * len(mine), pa.bool_()),
            ]
            table = pa.table(columns, schema=event_schema(self.pipeline.key))
            tables.append(table.filter(pc.is_null(parsed.problem)))
            for record, problem in zip(mine, parsed.problem.to_pylist(), strict=True):
                if problem:
                    rejected.append((problem, f"{record['topic']}-{record['partition']}-{record['offset']}"))
        return pa.concat_tables(tables), rejected

    def _still_open(self, outcomes: pa.Table) -> pa.Table:
        rows = [
            {name: row[name] for name in self.pipeline.key}
            | {"side": number, "is_open": True}
            | {column: row[f"{side}_{column}"] for column in ("partition", "offset", "ts", "payload", "batch_id")}
            for row in _rows(outcomes, "open")
            for number, side in ((LEFT, "left"), (RIGHT, "right"))
            if row[f"{side}_offset"] is not None
        ]
        return pa.Table.from_pylist(rows, schema=event_schema(self.pipeline.key))

    def _source(self, row: Row) -> str:
        side, topic = (
            ("right", self.pipeline.right.topic) if row["left_offset"] is None else ("left", self.pipeline.left.topic)
        )
        return f"{topic}-{row[f'{side}_partition']}-{row[f'{side}_offset']}"

    def _compound_lines(self, compounds: pa.Table) -> Iterator[tuple[tuple[Any, ...], str]]:
        for row in compounds.to_pylist():
            pair_id = self._source(row)
            ts = min(at for at in (row["left_ts"], row["right_ts"]) if at is not None)
            head = {"table": "compound_events", "batch": self.batch_id, "pair_id": pair_id, "kind": row["outcome"]}
            head |= {name: row[name] for name in self.pipeline.key} | {"ts": ts}
            payloads = "".join(
                # Payloads are JSON texts; a line break can only stand between their tokens, where a space says the same.
                f", {json.dumps(side.payload)}: {_printable(row[column] or 'null')}"
                for side, column in zip(self.pipeline.sides, ("left_payload", "right_payload"), strict=True)
            )
            yield (ts, *_source_order(pair_id)), f"{json.dumps(head)[:-1]}{payloads}}}"

    def _rejected_line(self, reason: str, source: str) -> str:
        return json.dumps({"table": "rejected_events", "batch": self.batch_id, "reason": reason, "source": source})

    def open_lines(self) -> Iterator[str]:
        """One line for each event that the last batch left open."""
        topics = {LEFT: self.pipeline.left.topic, RIGHT: self.pipeline.right.topic}
        sources = [f"{topics[row['side']]}-{row['partition']}-{row['offset']}" for row in self.open_events.to_pylist()]
        for source in sorted(sources, key=_source_order):
            yield json.dumps({"table": "open_events", "source": source})


_ONE_LINE = str.maketrans("\r\n", "  ")


def _printable(payload: str) -> str:
    """The same JSON in one line of ASCII: in JSON, other characters stand inside strings only, where they may be escaped."""
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], payload.translate(_ONE_LINE))


def _rows(outcomes: pa.Table, outcome: str) -> list[Row]:
    return list(outcomes.filter(pc.equal(outcomes.column("outcome"), str(outcome))).to_pylist())


def _source_order(source: str) -> tuple[Any, ...]:
    topic, partition, offset = source.rsplit("-", 2)
    return topic, int(partition), int(offset)


def _read_records(path: Path, pipeline: Pipeline) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError as error:
        fail(f"{path}: cannot be read: {error}")
    return [_read_record(f"{path}:{number}", line, pipeline) for number, line in enumerate(lines, 1) if line.strip()]


def _bytes(text: str | None) -> bytes | None:
    """The message's bytes. kcat prints bytes that are no UTF-8 as they are; they must come out malformed, not stop the others."""
    if text is None:
        return None
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _read_record(place: str, line: str, pipeline: Pipeline) -> Row:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        fail(f"{place}: not a JSON object: {error}")
    wanted = {"topic": str, "partition": int, "offset": int, "ts": int | None, "payload": str | None}
    if not isinstance(record, dict):
        fail(f"{place}: not a JSON object as `kcat -C -J` prints it")
    for name, kind in wanted.items():
        if not isinstance(record.setdefault(name, None), kind) or isinstance(record[name], bool):
            fail(f"{place}: {name} is {record[name]!r}; a record as `kcat -C -J` prints it was expected")
    if not (0 <= record["partition"] < 2**31 and 0 <= record["offset"] < 2**63 and abs(record["ts"] or 0) < 2**63):
        fail(f"{place}: partition, offset or ts is out of range")
    if record["topic"] not in (pipeline.left.topic, pipeline.right.topic):
        fail(f"{place}: topic {record['topic']} is neither {pipeline.left.topic} nor {pipeline.right.topic}")
    return record


def _batch_argument(text: str) -> BatchFile:
    path, at, clock = text.rpartition("@")
    if not at or not path or not clock.isascii() or not clock.isdigit() or len(clock) > 18:
        fail(f"--batch {text}: write FILE@CLOCK, the clock in epoch milliseconds")
    if not Path(path).is_file():
        fail(f"--batch {text}: no such file: {path}")
    return BatchFile(Path(path), int(clock))


def main(pipeline: Pipeline, batches: list[BatchFile]) -> Iterator[str]:
    """The lines of all batches in order."""
    rehearsal = Rehearsal(pipeline, event_schema(pipeline.key).empty_table())
    ledger = []
    for batch in batches:
        lines, ledger_line = rehearsal.run(batch)
        yield from lines
        ledger.append(ledger_line)
    yield from rehearsal.open_lines()
    yield from ledger


if __name__ == "__main__":
    parser = OneLineParser(
        prog="rehearse_pairing", description="Rehearse the pairing rules on files, without Kafka, Delta or Airflow."
    )
    parser.add_argument("--pipeline", type=pipeline_argument, required=True, help="the pipeline's YAML file")
    parser.add_argument(
        "--batch",
        type=_batch_argument,
        action="append",
        required=True,
        metavar="FILE@CLOCK",
        help="records as `kcat -C -J` prints them, and the batch's clock in epoch ms; repeat for further batches",
    )
    arguments = parser.parse_args()
    for printed in main(arguments.pipeline, arguments.batch):
        print(printed)
