"""Batches played one after the other in memory, with the functions that the Spark jobs call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.rules.batch_rules import batch_rules, body_fields, latest_ts
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.outcomes import decide_outcomes
from spark_jobs.rules.parsing_in_bulk import parse_columns, problems_with_headers
from spark_jobs.rules.rules import LEFT, RIGHT, Rules, event_schema
from spark_jobs.story.record_files import Record, has_bad_header, value_bytes

Row = dict[str, Any]


class Played(NamedTuple):
    """One batch: `messages` it landed (see `land`), the open and accepted `events` it began with, their `outcomes`."""

    batch_id: int
    wall_time: int
    rules: Rules
    messages: pa.Table
    events: pa.Table
    outcomes: pa.Table

    @property
    def accepted(self) -> int:
        """How many of the messages are events."""
        return int(self.messages.column("problem").null_count)


@dataclass
class Rehearsal:
    """What one batch hands to the next: open events and clock (epoch ms, None before the first batch)."""

    pipeline: Pipeline
    clock: int | None = None
    batch_id: int = 0
    open_events: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        self.open_events = event_schema(self.pipeline.key).empty_table()

    def play(self, messages: pa.Table, wall_time: int, clock: int | None) -> Played:
        """One batch of landed messages. The clock (None: minus infinity) never falls behind the previous batch's."""
        self.batch_id += 1
        known = [at for at in (clock, self.clock) if at is not None]
        rules = batch_rules(self.pipeline, max(known, default=None), previous_clock=self.clock)
        schema = event_schema(self.pipeline.key)
        accepted = messages.filter(pc.is_null(messages.column("problem"))).select(schema.names)
        events = pa.concat_tables([self.open_events, accepted])
        outcomes = decide_outcomes(events, rules)
        check_conservation(self.open_events.num_rows, accepted.num_rows, Counter(outcomes.column("outcome").to_pylist()))
        self.open_events = _still_open(outcomes, self.pipeline.key)
        self.clock = rules.clock
        return Played(self.batch_id, wall_time, rules, messages, events, outcomes)

    def is_quiet(self, clock: int | None) -> bool:
        """Whether a batch of this clock without messages would leave the open events as they are."""
        first = pc.min(self.open_events.column("ts")).as_py()
        if first is None or clock is None:
            return True
        return bool(first + self.pipeline.gap_ms + self.pipeline.grace_ms >= clock)


def land(pipeline: Pipeline, records: list[Record], wall_time: int, batch_id: int) -> pa.Table:
    """Records -> what they say: the columns of `event_schema` and `problem`, a reason or null. Left records come first."""
    schema = event_schema(pipeline.key)
    tables = [schema.append(pa.field("problem", pa.string())).empty_table()]
    for number, side in ((LEFT, pipeline.left), (RIGHT, pipeline.right)):
        mine = [record for record in records if record["topic"] == side.topic]
        parsed = parse_columns(
            [value_bytes(record) for record in mine],
            [record["ts"] for record in mine],
            body_fields(pipeline, side),
            latest_ts(pipeline, wall_time),
        )
        columns = [
            *parsed.key,
            pa.array([number] * len(mine), pa.int32()),
            pa.array([record["partition"] for record in mine], pa.int32()),
            pa.array([record["offset"] for record in mine], pa.int64()),
            parsed.ts,
            parsed.payload,
            pa.array([batch_id] * len(mine), pa.int64()),
            pa.array([False] * len(mine), pa.bool_()),
            problems_with_headers(parsed.problem, pa.array(map(has_bad_header, mine), pa.bool_())),
        ]
        tables.append(pa.table(columns, schema=tables[0].schema))
    return pa.concat_tables(tables)


def rows_of(outcomes: pa.Table, outcome: str) -> list[Row]:
    """The rows with this outcome."""
    return list(outcomes.filter(pc.equal(outcomes.column("outcome"), str(outcome))).to_pylist())


def source(pipeline: Pipeline, side: int, partition: int, offset: int) -> str:
    """`topic-partition-offset` of an event."""
    return f"{pipeline.sides[side].topic}-{partition}-{offset}"


def source_order(text: str) -> tuple[str, int, int]:
    """Sources in the order topic, partition, offset."""
    topic, partition, offset = text.rsplit("-", 2)
    return topic, int(partition), int(offset)


def _still_open(outcomes: pa.Table, key: tuple[str, ...]) -> pa.Table:
    rows = [
        {name: row[name] for name in key}
        | {"side": number, "is_open": True}
        | {column: row[f"{side}_{column}"] for column in ("partition", "offset", "ts", "payload", "batch_id")}
        for row in rows_of(outcomes, "open")
        for number, side in ((LEFT, "left"), (RIGHT, "right"))
        if row[f"{side}_offset"] is not None
    ]
    return pa.Table.from_pylist(rows, schema=event_schema(key))
