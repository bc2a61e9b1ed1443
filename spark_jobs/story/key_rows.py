"""The rows of one key in a pipeline's tables. Only the columns that tell whose a row is are read of whole tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.kafka.messages import output_key
from spark_jobs.rules.reasons import Reason
from spark_jobs.story.record_files import SOME_BAD_HEADER, Record
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import COMPOUNDS, REJECTED, Condition, Warehouse, raw_table

Row = dict[str, Any]
_PLACE = ["topic", "partition", "offset", "batch_id"]


class Messages(NamedTuple):
    """Rows of the raw tables. `own`: the body has the key; `unreadable`: it has none, but the record's Kafka key is that of the
    pair, as far as such keys say: joined by `-` as they come, those of `a-b`, `c` and of `a`, `b-c` are the same.
    """

    own: list[Row]
    unreadable: list[Row]


def messages_of(warehouse: Warehouse, key: tuple[str, ...], near: Window | None, batches: Collection[int]) -> Messages:
    """The messages of a key; with `near` those of its chains that reach into the interval.

    `batches`: with `near`, in which of them messages without a readable key are looked for besides.
    """
    pipeline = warehouse.pipeline
    found = _named(warehouse, key, near)
    while near and (wider := _reaching_out(pipeline, found, near)):
        # A chain begins and ends with a silence, wherever that is.
        near = wider
        found = _named(warehouse, key, near)
    nobody = _nobodys(warehouse, key, None if near is None else {*batches, *(row["batch_id"] for row in found)})
    return Messages(_whole(warehouse, found), _whole(warehouse, nobody))


def count_of(warehouse: Warehouse, key: tuple[str, ...]) -> int:
    """How many messages a key has."""
    return len(_named(warehouse, key, None))


def records_of(rows: list[Row]) -> dict[int, list[Record]]:
    """By batch_id, in the form in which a rehearsal has them."""
    found: dict[int, list[Record]] = {}
    for row in rows:
        value = row["value"]
        text = None if value is None else bytes(value).decode("utf-8", "surrogateescape")
        place = {name: row[name] for name in ("topic", "partition", "offset")}
        headers = SOME_BAD_HEADER if row["problem"] == Reason.BAD_HEADER else None
        record = place | {"ts": row["record_timestamp"], "payload": text, "headers": headers}
        found.setdefault(row["batch_id"], []).append(record)
    return found


def compounds_of(warehouse: Warehouse, key: tuple[str, ...], near: Window | None) -> list[Row]:
    """All rows of `compound_events` with the key, in the order of batches; with `near` those around it."""
    sides = [f"{side}_{name}" for side in ("left", "right") for name in ("ts", "topic", "partition", "offset")]
    rows = warehouse.found(
        COMPOUNDS, ["pair_id", "revision", "op", "kind", "ts", *sides, "batch_id"], _is_key(warehouse.pipeline, key, near)
    )
    return sorted(rows, key=lambda row: (row["batch_id"], row["ts"], row["pair_id"]))


def rejected_of(warehouse: Warehouse, messages: list[Row]) -> list[Row]:
    """The rows of `rejected_events` of these messages."""
    offsets = sorted({row["offset"] for row in messages})
    places = {(row["topic"], row["partition"], row["offset"]) for row in messages}
    if not offsets:
        return []
    rows = warehouse.found(REJECTED, ["reason", *_PLACE], lambda column: column("offset").isin(offsets))
    return [row for row in rows if (row["topic"], row["partition"], row["offset"]) in places]


def _named(warehouse: Warehouse, key: tuple[str, ...], near: Window | None) -> list[Row]:
    mine = _is_key(warehouse.pipeline, key, near)
    return [row for side in warehouse.pipeline.sides for row in warehouse.found(raw_table(side), [*_PLACE, "ts"], mine)]


def _is_key(pipeline: Pipeline, key: tuple[str, ...], near: Window | None) -> Condition:
    def condition(column: Any) -> Any:
        (first, value), *others = zip(pipeline.key, key, strict=True)
        mine = column(first) == value
        for name, each in others:
            mine = mine & (column(name) == each)
        return mine if near is None else mine & (column("ts") >= near.start) & (column("ts") < near.end)

    return condition


def _nobodys(warehouse: Warehouse, key: tuple[str, ...], batches: Collection[int] | None) -> list[Row]:
    pipeline = warehouse.pipeline
    # As producers spell it who follow the original, and as the output topic has it.
    kafka_keys = sorted({"-".join(key).encode(), output_key(pipeline, key)})

    def condition(column: Any) -> Any:
        mine = column("key").isin(kafka_keys) & column("problem").isin(["malformed_json", "missing_key"])
        return mine if batches is None else mine & column("batch_id").isin(sorted(batches))

    if batches is not None and not batches:
        return []
    return [row for side in pipeline.sides for row in warehouse.found(raw_table(side), [*_PLACE, "ts"], condition)]


def _reaching_out(pipeline: Pipeline, rows: list[Row], near: Window) -> Window | None:
    """A wider interval if events at an edge may have neighbours beyond it."""
    times = sorted(row["ts"] for row in rows)
    if not times:
        return None
    span = near.end - near.start
    start = near.start - span if times[0] - near.start <= pipeline.gap_ms else near.start
    end = near.end + span if near.end - times[-1] <= pipeline.gap_ms else near.end
    return None if (start, end) == (near.start, near.end) else Window(start, end)


def _at(batches: list[int], offsets: list[int]) -> Condition:
    return lambda column: column("batch_id").isin(batches) & column("offset").isin(offsets)


def _whole(warehouse: Warehouse, found: list[Row]) -> list[Row]:
    """The rows with what they hold, which is read of these alone."""
    columns = [*_PLACE, "record_timestamp", "value", "ts", "problem"]
    whole = []
    for side in warehouse.pipeline.sides:
        mine = {(row["partition"], row["offset"]): row for row in found if row["topic"] == side.topic}
        if mine:
            batches, offsets = sorted({row["batch_id"] for row in mine.values()}), sorted({offset for _, offset in mine})
            rows = warehouse.found(raw_table(side), columns, _at(batches, offsets))
            whole += [row for row in rows if (row["partition"], row["offset"]) in mine]
    return whole
