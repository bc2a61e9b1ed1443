"""What a report leaves beside the pages of its batches: the trend page, its data, and what all pages load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

from include.config.store import Store, pages_store, write_text
from spark_jobs.quality.assets import write_assets
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.numbers import PASSED, WARNED
from spark_jobs.quality.rendering import render
from spark_jobs.quality.suite import INFO, judge_bounds
from spark_jobs.quality.trend import FILE, KEPT, Trend
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, REMOVED_LEDGER, REPORTED, removed_through
from spark_jobs.tables.records import StepCounts
from spark_jobs.tables.warehouse import Warehouse

PAGE_FILE = "trend.html"


def add_to_trend(warehouse: Warehouse, ledger: Ledger, started: datetime, batches: Sequence[Batch]) -> Trend:
    """Called by the report that began at `started`, with successive batches that are judged; returns the trend with them."""
    # The report's own row as it is by now; the little that is left to do takes a moment.
    rows = [batch.paired.next_step(REPORTED, started, StepCounts(), finished_at=datetime.now(UTC)) for batch in batches]
    reported = [replace(batch, steps={**batch.steps, REPORTED: row}) for batch, row in zip(batches, rows, strict=True)]
    return write_trend(
        pages_store(warehouse.pipeline.name, warehouse.root),
        warehouse.pipeline.name,
        reported,
        lambda: reported_before(warehouse, ledger, batches[0].batch_id),
        lambda: removed_through(ledger.removals(), REMOVED_LEDGER),
    )


def write_trend(
    pages: Store,
    pipeline: str,
    batches: list[Batch],
    history: Callable[[], list[Batch]],
    removed: Callable[[], int] = lambda: 0,
) -> Trend:
    """Adds the batches to the trend and writes its files. `history` returns all reported batches before them, `removed` the last one that
    was removed for its age; they are called only if there is no trend to add to.
    """
    trend = Trend.load(pages, pipeline)
    if trend is None:
        trend = Trend(pipeline, removed=removed())
        trend.add(history())
    trend.add(batches)
    write_text(pages, FILE, trend.text())
    write_assets(pages, {PAGE_FILE: trend_page(pipeline)})
    return trend


def trend_page(pipeline: str) -> str:
    """The page of all batches, the same after every batch: its numbers are in FILE."""
    return render("trend.html", pipeline=pipeline, data_file=FILE)


def reported_before(warehouse: Warehouse, ledger: Ledger, batch_id: int, oldest: int = 1) -> list[Batch]:
    """The reported batches from `oldest` (inclusive) to `batch_id` (exclusive), at most KEPT, from ledger and metrics. The tables keep no
    warnings: today's bounds say which had some.
    """
    first, last = max(oldest, batch_id - KEPT), batch_id - 1
    rows = groupby(ledger.rows(first, last), attrgetter("batch_id"))
    steps = {number: {row.step: row for row in of_batch} for number, of_batch in rows}
    return [
        replace(batch, steps=steps[batch.batch_id], state=_state(warehouse, batch))
        for batch in stored_batches(warehouse, first, last)
        if PAIRED in steps.get(batch.batch_id, {})
    ]


def _state(warehouse: Warehouse, batch: Batch) -> int | None:
    judged = judge_bounds(batch.metrics, warehouse.pipeline.quality)
    is_warned = batch.state == PASSED and any(not each.passed and each.check.severity != INFO for each in judged)
    return WARNED if is_warned else batch.state
