"""The interval of a replay: whether it can be replayed, and the plan for it."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column

from include.config.time_text import moment
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.topic_ids import known_ids
from spark_jobs.tables.ledger import PLANNED, REMOVED_RAW, REMOVED_UNTIL, REPLAY, Ledger, LedgerRow
from spark_jobs.tables.outbox import carried
from spark_jobs.tables.warehouse import Warehouse

_MILLISECOND = timedelta(milliseconds=1)
# Carried by the ledger rows of a replay: the interval, and how far from it the events of its compounds can lie.
WINDOW_START, WINDOW_END, REACH = "window_start", "window_end", "reach_ms"


class Window(NamedTuple):
    """An interval of event time in epoch ms, `start` inclusive, `end` exclusive."""

    start: int
    end: int

    def has(self, ts: Column) -> Column:
        """Whether the timestamp lies in the interval."""
        return (ts >= self.start) & (ts < self.end)

    def __str__(self) -> str:
        return f"{moment(self.start)} to {moment(self.end)}"


def point_in_time(text: str) -> int:
    """Epoch ms of a time as people and Airflow write it: ISO 8601, UTC if it names no zone, or epoch ms; raises ValueError.

    >>> point_in_time("2026-01-01T01:00:00+01:00"), point_in_time("2026-01-01"), point_in_time("1767225600000")
    (1767225600000, 1767225600000, 1767225600000)
    """
    if text.isascii() and text.isdecimal() and len(text) > 8:
        return int(text)
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    # Not by timestamp(), whose fractions of a second are inexact.
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def time_argument(text: str) -> int:
    """`type=` of an argument that is a point in time: epoch ms."""
    try:
        return point_in_time(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 2026-01-31T13:00:00Z, or epoch ms") from None


def window_of(planned: LedgerRow) -> Window:
    """The interval of a replay that was planned."""
    return Window(planned.counts[WINDOW_START], planned.counts[WINDOW_END])


def check_window(window: Window, last: LedgerRow, warehouse: Warehouse) -> None:
    """Raises NeedsOperator if events of the interval may still be waiting for others. `last`: the `paired` row of the last batch."""
    pipeline = warehouse.pipeline
    if window.start >= window.end:
        raise NeedsOperator(f"the interval {window} is empty: its start is inclusive and must lie before its end")
    after = pipeline.gap_ms + pipeline.grace_ms
    if last.clock is None:
        raise NeedsOperator(
            f"the interval {window} is not closed yet: batch {last.batch_id} has no clock, so no time is closed"
        )
    # An event at end - 1 is over if end - 1 + gap + grace < clock.
    if window.end + after > last.clock:
        raise NeedsOperator(
            f"the interval {window} is not closed yet: after batch {last.batch_id} everything before {moment(last.clock - after)} is; "
            f"replay it when a batch has a clock of at least {moment(window.end + after)}"
        )


def plan_of(warehouse: Warehouse, ledger: Ledger, last: LedgerRow, window: Window) -> LedgerRow:
    """The plan of a replay, a batch of its own after `last` (as `finish_batch` gives it). It reads nothing from the topics.

    Raises NeedsOperator if raw rows of the interval were removed for their age.
    """
    pipeline, now = warehouse.pipeline, datetime.now(UTC)
    counts = {
        WINDOW_START: window.start,
        WINDOW_END: window.end,
        REACH: _reach(ledger, warehouse),
        **_removed(ledger, window),
    }
    return LedgerRow(
        batch_id=last.batch_id + 1,
        kind=REPLAY,
        step=PLANNED,
        offsets=tuple(at.behind() for at in last.offsets),
        wall_time=int(now.timestamp() * 1000),
        clock=last.clock,
        counts={"open_before": last.counts["open_after"], **counts, **carried(last.counts), **known_ids(last.counts)},
        versions=last.versions,
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=now,
    )


def _removed(ledger: Ledger, window: Window) -> dict[str, int]:
    """Up to which event time, inclusive, raw rows may be gone; empty if none are."""
    removal = ledger.removals().get(REMOVED_RAW)
    if removal is None or REMOVED_UNTIL not in removal.counts:
        return {}
    until = removal.counts[REMOVED_UNTIL]
    if window.start <= until:
        raise NeedsOperator(
            f"the interval {window} cannot be replayed: raw rows with events up to {moment(until)} were removed for their age; begin at "
            f"{moment(until + 1)} or later"
        )
    return {REMOVED_UNTIL: until}


def _reach(ledger: Ledger, warehouse: Warehouse) -> int:
    """How long before its own event a compound can have begun, with any settings that this pipeline ever had."""
    settings = [warehouse.pipeline, *ledger.settings()]
    return max(max(each.max_session_ms, each.tolerance_ms) for each in settings)
