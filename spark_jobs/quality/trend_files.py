"""What a report leaves beside the pages of its batches: the trend page, its data, the newest numbers as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from include.config.store import Store, pages_store, read_text, write_text
from spark_jobs.quality import openmetrics, trend_page
from spark_jobs.quality.batch import Batch, Steps, stored_batches
from spark_jobs.quality.trend import FILE, KEPT, Trend
from spark_jobs.tables.ledger import PAIRED, REMOVED_LEDGER, REPORTED, Ledger, LedgerRow, removed_through
from spark_jobs.tables.warehouse import Warehouse


def add_to_trend(warehouse: Warehouse, ledger: Ledger, started: datetime, batches: Sequence[Batch]) -> None:
    """Called by the report that began at `started`, with successive batches that are judged."""
    reported = [replace(batch, steps=_with_report(batch.steps, started)) for batch in batches]
    pages, first = pages_store(warehouse.pipeline.name, warehouse.root), batches[0].batch_id
    write_trend(
        pages,
        warehouse.pipeline.name,
        reported,
        lambda: reported_before(warehouse, ledger, first),
        lambda: removed_through(ledger.removals(), REMOVED_LEDGER),
    )


def _with_report(rows: Steps, started: datetime) -> dict[str, LedgerRow]:
    """With the report's own row as it is by now; what is left to do takes a moment."""
    return {**rows, REPORTED: rows[PAIRED].next_step(REPORTED, started, finished_at=datetime.now(UTC))}


def write_trend(
    pages: Store,
    pipeline: str,
    batches: list[Batch],
    history: Callable[[], list[Batch]],
    removed: Callable[[], int] = lambda: 0,
) -> Trend:
    """Adds the batches to the trend and writes its files. `history` gives all reported batches before them, `removed` the last one that was
    removed for its age; they are called only if there is no trend to add to.
    """
    trend = Trend.load(pages, pipeline)
    if trend is None:
        trend = Trend(pipeline)
        trend.add(history())
        trend.removed = removed()
    trend.add(batches)
    write_text(pages, FILE, trend.text())
    write_text(pages, openmetrics.FILE, openmetrics.exposition(trend))
    text = trend_page.page(pipeline)
    if read_text(pages, trend_page.FILE) != text:
        write_text(pages, trend_page.FILE, text)
    return trend


def reported_before(warehouse: Warehouse, ledger: Ledger, batch_id: int) -> list[Batch]:
    """The reported batches before `batch_id`, as many as the trend keeps, from ledger and metrics. Whether one was warned of is not
    in the tables.
    """
    first, last = max(1, batch_id - KEPT), batch_id - 1
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in ledger.rows(first, last):
        steps.setdefault(row.batch_id, {})[row.step] = row
    return [
        replace(batch, steps=steps[batch.batch_id])
        for batch in stored_batches(warehouse, first, last)
        if PAIRED in steps.get(batch.batch_id, {})
    ]
