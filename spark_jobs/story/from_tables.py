"""Loads the history of one pair from the tables: small Delta reads, no Spark. Whole tables are read by key columns only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial, reduce
from operator import and_, or_
from typing import Any

from include.config.pipeline import Pipeline
from include.config.time_text import count
from spark_jobs.kafka.messages import output_key
from spark_jobs.rules.key_order import order_key
from spark_jobs.rules.parsing import ParsedMessage
from spark_jobs.rules.reasons import WITHOUT_KEY, Reason
from spark_jobs.rules.rules import LEFT, RIGHT, SOURCE_PAIR_ID, source_names
from spark_jobs.story.history import NOT_PAIRED, Batch, Compound, Fate, Message, PairHistory, UnknownKey
from spark_jobs.story.output_topic import locate
from spark_jobs.story.sentences import tell
from spark_jobs.tables.data_files import newest_batch
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    PAIRED,
    PLANNED,
    REMOVED_COMPOUNDS,
    REMOVED_RAW,
    REMOVED_REJECTED,
    LedgerRow,
    find_rewinds,
)
from spark_jobs.tables.records import ERASURE, LIVE, REPLAY, REWIND, Window
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, REJECTED, raw_table
from spark_jobs.tables.tables import Condition, Tables

Row = dict[str, Any]
_PLACE = ["topic", "partition", "offset", "batch_id"]
_REMOVABLE = {REMOVED_RAW: "messages", REMOVED_REJECTED: "rejected events", REMOVED_COMPOUNDS: "compounds"}


def explain(warehouse: Tables, key: tuple[str, ...], around: int | None = None) -> Iterator[str]:
    """The lines of the story. Raises UnknownKey before the first line, JobProblem if tables cannot be read."""
    history = load(warehouse, key, around)
    return tell(history, partial(locate, warehouse, history.key))


def load(warehouse: Tables, key: tuple[str, ...], around: int | None = None) -> PairHistory:
    """The history of the key; with `around` (epoch ms) only of the events about as far from it as a session can reach.

    Raises UnknownKey if the tables have nothing of the key, JobProblem if they cannot be read.
    """
    pipeline, (paired, corrections, removals) = warehouse.pipeline, _read_ledger(warehouse)
    key = order_key(key, pipeline)
    rows = KeyRows(warehouse, key)
    reach = max(pipeline.max_session_ms, pipeline.tolerance_ms) + pipeline.gap_ms
    near = None if around is None else Window(around - reach, around + reach + 1)
    own = rows.messages(near)
    batches = None
    if near:
        # Messages without a readable key have no time to compare.
        batches = {batch.batch_id for batch in paired if near.start <= batch.wall_time < near.end}
        batches |= {row["batch_id"] for row in own}
    retractions = rows.retractions(own)
    own += retractions
    unreadable = [row for row in rows.without_key(batches) if row not in retractions]
    around_them = near and Window(near.start - reach, near.end + reach)
    compounds = [_compound(row, corrections.get(row["batch_id"])) for row in rows.compounds(around_them)]
    removed = [f"{what} up to batch {removals[step].batch_id}" for step, what in _REMOVABLE.items() if step in removals]
    gone = f"removed for their age, so not in this story: {', '.join(removed)}" if removed else None
    until = removals[REMOVED_RAW].removed.removed_until if REMOVED_RAW in removals else None
    if not (own or unreadable or compounds):
        searched = f"{count(len(paired), 'batch')} of pipeline {pipeline.name}"
        searched += f" in the interval {near}" if near else ""
        searched += f"; {gone}" if gone else ""
        raise UnknownKey(key, searched, 0 if near else len(KeyRows(warehouse, key[::-1]).named(None)))
    messages: dict[int, list[Message]] = {batch.batch_id: [] for batch in paired}
    decided = [row for row in own if row["batch_id"] in messages]
    for row in decided:
        messages[row["batch_id"]].append(_message(pipeline, row))
    recorded = {source: (each.kind, each.batch) for each in compounds if each.batch in messages for source in each.sources}
    rejections = [row for row in rows.rejections(decided) if row["batch_id"] in messages]
    return PairHistory(
        key,
        pipeline,
        [batch._replace(messages=messages[batch.batch_id]) for batch in paired],
        others=[
            *(_fate(pipeline, row, NOT_PAIRED) for row in own if row["batch_id"] not in messages),
            *(_fate(pipeline, row, row["problem"]) for row in unreadable),
        ],
        compounds=compounds,
        recorded=recorded | {_source(row): (row["reason"], row["batch_id"]) for row in rejections},
        removals=gone,
        incomplete_until=None if until is None else until + reach,
        interval=near,
    )


def _read_ledger(warehouse: Tables) -> tuple[list[Batch], dict[int, LedgerRow], dict[str, LedgerRow]]:
    """The paired live batches that no rewind voided, ascending, without messages; the `planned` rows of replays and rewinds by batch_id; and
    the removals of rows for their age by step.

    Raises MissingTable if there is no ledger, NeedsOperator if the file's topics or key are not those of the tables.
    """
    ledger = Ledger(warehouse)
    newest = newest_batch(warehouse.newest(LEDGER))
    if newest is None:
        return [], {}, {}
    # Checks that topics and key are those of the tables.
    ledger.rows(newest, newest)
    columns = ["batch_id", "kind", "wall_time", "clock", "config_hash"]
    corrections = ledger.where(lambda row: (row("step") == PLANNED) & row("kind").isin([REPLAY, REWIND, ERASURE]))
    rewinds = find_rewinds(corrections)
    live = warehouse.select_rows(LEDGER, columns, lambda row: (row("step") == PAIRED) & (row("kind") == LIVE))
    live = [row for row in live if not any(rewind.voids(row["batch_id"]) for rewind in rewinds)]
    live.sort(key=lambda row: int(row["batch_id"]))
    one_of_each = list({row["config_hash"]: row["batch_id"] for row in live}.values())
    planned = ledger.where(lambda row: (row("step") == PLANNED) & row("batch_id").isin(one_of_each))
    settings = {row.config_hash: row.pipeline for row in planned}
    batches = [Batch(row["batch_id"], [], row["clock"], row["wall_time"], settings[row["config_hash"]]) for row in live]
    return batches, {row.batch_id: row for row in corrections}, ledger.removals()


def _message(pipeline: Pipeline, row: Row) -> Message:
    landed = ParsedMessage(tuple(row[name] for name in pipeline.key), row["ts"], row["payload"], row["problem"])
    source = zip(("pair-id", "revision"), (row[name] for name in source_names(pipeline)), strict=False)
    named = [(name, str(value).encode()) for name, value in source if value is not None]
    headers = (*named, ("op", b"retract" if row["problem"] == Reason.RETRACTION else b"upsert")) if named else ()
    return Message(
        row["topic"], row["partition"], row["offset"], row["record_timestamp"], None, headers=headers, landed=landed
    )


def _source(row: Row, side: str = "") -> str:
    return f"{row[f'{side}topic']}-{row[f'{side}partition']}-{row[f'{side}offset']}"


def _fate(pipeline: Pipeline, row: Row, verdict: str) -> Fate:
    side = LEFT if pipeline.left.has(row["topic"]) else RIGHT
    named = tuple(row[name] for name in pipeline.key)
    is_reversed = None not in named and named != order_key(named, pipeline)
    return Fate(_source(row), side, row["ts"], row["batch_id"], verdict, row["batch_id"], is_reversed=is_reversed)


def _compound(row: Row, correction: LedgerRow | None) -> Compound:
    """`correction`: the `planned` row of its batch, if that is a replay, rewind or erasure."""
    left, right = (None if row[f"{side}offset"] is None else _source(row, side) for side in ("left_", "right_"))
    is_of_replay, by = correction is not None and correction.kind == REPLAY, f"batch {row['batch_id']}"
    if correction:
        by += {
            REPLAY: lambda: f", a replay of {correction.replay.window}",
            REWIND: lambda: f", a rewind to batch {correction.rewind.to_batch}",
            ERASURE: lambda: ", an erasure",
        }[correction.kind]()
    return Compound(
        row["pair_id"],
        row["revision"],
        row["op"] == "retract",
        row["kind"],
        row["ts"],
        left,
        right,
        row["right_ts"] - row["left_ts"] if left and right else 0,
        row["batch_id"],
        by,
        is_of_replay,
    )


class KeyRows:
    """Reads the rows of one key from a pipeline's tables; with `key_order: any` in either order of its fields."""

    def __init__(self, warehouse: Tables, key: tuple[str, ...]) -> None:
        self.warehouse = warehouse
        self.keys = {key, key[::-1]} if warehouse.pipeline.is_unordered else {key}

    def messages(self, near: Window | None) -> list[Row]:
        """Raw rows whose body has the key; with `near` those of its chains that reach into the interval."""
        found = self.named(near)
        while near and (wider := _widened(self.warehouse.pipeline, found, near)):
            # A chain begins and ends with a silence, wherever that is.
            near = wider
            found = self.named(near)
        return self._whole(found)

    def named(self, near: Window | None) -> list[Row]:
        """Place and ts of the raw rows whose body has the key."""
        return self._raw([*_PLACE, "ts"], self._is_own(near))

    def without_key(self, batches: Collection[int] | None) -> list[Row]:
        """Raw rows whose body has no readable key, but whose Kafka key is that of the pair; `batches` None: of all batches.

        Such a key may be ambiguous: the fields `a-b`, `c` and `a`, `b-c`, joined as they are, make the same.
        """
        # As the original's producers write it, and as the output topic has it, if that is a text.
        spelled = ({"-".join(key).encode(), output_key(self.warehouse.pipeline, key)} for key in self.keys)
        kafka_keys = sorted(filter(None, set().union(*spelled)))

        def condition(column: Any) -> Any:
            fits = column("key").isin(kafka_keys) & column("problem").isin([reason.value for reason in WITHOUT_KEY])
            return fits if batches is None else fits & column("batch_id").isin(sorted(batches))

        return [] if batches is not None and not batches else self._whole(self._raw([*_PLACE, "ts"], condition))

    def retractions(self, messages: list[Row]) -> list[Row]:
        """Raw rows that take back one of these messages, which are compounds of another pipeline: they have no key."""
        pair_ids = sorted({row[SOURCE_PAIR_ID] for row in messages if row.get(SOURCE_PAIR_ID)})
        if not pair_ids:
            return []

        def condition(column: Any) -> Any:
            return (column("problem") == Reason.RETRACTION.value) & column(SOURCE_PAIR_ID).isin(pair_ids)

        return self._whole(self._raw([*_PLACE, "ts"], condition))

    def compounds(self, near: Window | None) -> list[Row]:
        """All revisions of the key's compounds, by batch; with `near` of those whose ts lies in it."""
        sides = [f"{side}_{name}" for side in ("left", "right") for name in ("ts", "topic", "partition", "offset")]
        columns = ["pair_id", "revision", "op", "kind", "ts", *sides, "batch_id"]
        rows = self.warehouse.select_rows(COMPOUNDS, columns, self._is_own(near))
        return sorted(rows, key=lambda row: (row["batch_id"], row["ts"], row["pair_id"]))

    def rejections(self, messages: list[Row]) -> list[Row]:
        """Place and reason of the rows of `rejected_events` of these messages."""
        if not messages:
            return []
        sources, offsets = set(map(_source, messages)), sorted({row["offset"] for row in messages})
        rows = self.warehouse.select_rows(REJECTED, ["reason", *_PLACE], lambda column: column("offset").isin(offsets))
        return [row for row in rows if _source(row) in sources]

    def _is_own(self, near: Window | None) -> Condition:
        def condition(column: Any) -> Any:
            names = self.warehouse.pipeline.key
            of_keys = ([column(name) == value for name, value in zip(names, key, strict=True)] for key in sorted(self.keys))
            own = reduce(or_, (reduce(and_, each) for each in of_keys))
            interval = [column("ts") >= near.start, column("ts") < near.end] if near else []
            return reduce(and_, [own, *interval])

        return condition

    def _raw(self, columns: list[str], condition: Condition) -> list[Row]:
        tables = [raw_table(side) for side in self.warehouse.pipeline.sides]
        return [row for table in tables for row in self.warehouse.select_rows(table, columns, condition)]

    def _whole(self, found: list[Row]) -> list[Row]:
        """The rows with their content, which is read of these alone."""
        if not found:
            return []
        batches, offsets = sorted({row["batch_id"] for row in found}), sorted({row["offset"] for row in found})
        rows = self._raw(
            [
                *(*_PLACE, *self.warehouse.pipeline.key, "record_timestamp", "ts", "payload", "problem"),
                *source_names(self.warehouse.pipeline),
            ],
            lambda column: column("batch_id").isin(batches) & column("offset").isin(offsets),
        )
        sources = set(map(_source, found))
        return [row for row in rows if _source(row) in sources]


def _widened(pipeline: Pipeline, rows: list[Row], near: Window) -> Window | None:
    """A wider interval if events at an edge may have neighbours beyond it, None if not."""
    if not rows:
        return None
    first, last = min(row["ts"] for row in rows), max(row["ts"] for row in rows)
    span = near.end - near.start
    start = near.start - span if first - near.start <= pipeline.gap_ms else near.start
    end = near.end + span if near.end - last <= pipeline.gap_ms else near.end
    return None if (start, end) == (near.start, near.end) else Window(start, end)
