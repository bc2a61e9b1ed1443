"""The interval of a replay: whether it can be replayed, and the plan for it."""

from __future__ import annotations

from datetime import UTC, datetime

from include.config.time_text import moment
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.ledger import PLANNED, REMOVED_RAW, Ledger, LedgerRow
from spark_jobs.tables.records import ReplayPlan, Window
from spark_jobs.tables.warehouse import Warehouse


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
    return LedgerRow(
        batch_id=last.batch_id + 1,
        step=PLANNED,
        plan=ReplayPlan(
            open_before=last.paired.open_after,
            topic_ids=last.plan.topic_ids,
            corrected=last.plan.corrected,
            window=window,
            reach_ms=_reach(ledger, warehouse),
            removed_until=_removed_until(ledger, window),
        ),
        offsets=tuple(at.behind() for at in last.offsets),
        wall_time=int(now.timestamp() * 1000),
        clock=last.clock,
        versions=last.versions,
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=now,
    )


def _removed_until(ledger: Ledger, window: Window) -> int | None:
    """Up to which event time, inclusive, raw rows may be gone; None if none are."""
    removal = ledger.removals().get(REMOVED_RAW)
    until = removal.removed.removed_until if removal else None
    if until is not None and window.start <= until:
        raise NeedsOperator(
            f"the interval {window} cannot be replayed: raw rows with events up to {moment(until)} were removed for their age; begin at "
            f"{moment(until + 1)} or later"
        )
    return until


def _reach(ledger: Ledger, warehouse: Warehouse) -> int:
    """How long before its own event a compound can have begun, with any settings that this pipeline ever had."""
    settings = [warehouse.pipeline, *ledger.settings()]
    return max(max(each.max_session_ms, each.tolerance_ms) for each in settings)
