"""What a report leaves beside the pages of its batches: the trend page, its data, the library that draws, the newest numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from include.config.store import Store, pages_store, read_text, write_text
from spark_jobs.quality import openmetrics
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.catalogue import MEANINGS
from spark_jobs.quality.rendering import CHARTS_FILE, charts_script, render
from spark_jobs.quality.trend import FILE, KEPT, Trend
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import PAIRED, REMOVED_LEDGER, REPORTED, Ledger, LedgerRow, removed_through
from spark_jobs.tables.records import StepCounts
from spark_jobs.tables.warehouse import Warehouse

PAGE_FILE = "trend.html"


def add_to_trend(warehouse: Warehouse, ledger: Ledger, started: datetime, batches: Sequence[Batch]) -> None:
    """Called by the report that began at `started`, with successive batches that are judged."""
    # The report's own row as it is by now; the little that is left to do takes a moment.
    reported = []
    for batch in batches:
        row = batch.paired.next_step(REPORTED, started, StepCounts(), finished_at=datetime.now(UTC))
        reported.append(replace(batch, steps={**batch.steps, REPORTED: row}))
    write_trend(
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
        trend = Trend(pipeline)
        trend.add(history())
        trend.removed = removed()
    trend.add(batches)
    write_text(pages, FILE, trend.text())
    write_text(pages, openmetrics.FILE, openmetrics.exposition(trend))
    for name, text in ((CHARTS_FILE, charts_script()), (PAGE_FILE, trend_page(pipeline))):
        if read_text(pages, name) != text:
            write_text(pages, name, text)
    return trend


def trend_page(pipeline: str) -> str:
    """The page of all batches, the same after every batch: its numbers are in FILE."""
    meanings = {name: [each.sentence, each.unit, each.scale] for name, each in MEANINGS.items()}
    return render("trend.html", pipeline=pipeline, data_file=FILE, meanings=meanings, reasons=[*Reason])


def reported_before(warehouse: Warehouse, ledger: Ledger, batch_id: int) -> list[Batch]:
    """The reported batches before `batch_id`, at most KEPT, from ledger and metrics. The tables do not say which had warnings."""
    first, last = max(1, batch_id - KEPT), batch_id - 1
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in ledger.rows(first, last):
        steps.setdefault(row.batch_id, {})[row.step] = row
    return [
        replace(batch, steps=steps[batch.batch_id])
        for batch in stored_batches(warehouse, first, last)
        if PAIRED in steps.get(batch.batch_id, {})
    ]
