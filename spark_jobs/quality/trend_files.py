"""What a report leaves beside the pages of its batches: the trend page, its data, the newest numbers as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from include.warehouse_folder import pages_folder
from spark_jobs.quality import openmetrics, trend_page
from spark_jobs.quality.laws import Steps
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.pages import write_text
from spark_jobs.quality.suite import Verdict
from spark_jobs.quality.trend import FAILED, FILE, KEPT, PASSED, WARNED, Reported, Trend
from spark_jobs.storage.ledger import PAIRED, REPORTED, Ledger, LedgerRow
from spark_jobs.storage.tables import METRICS, Warehouse


def add_to_trend(
    warehouse: Warehouse, ledger: Ledger, started: datetime, batches: Sequence[tuple[Steps, Metrics, Verdict]]
) -> None:
    """Called by the report that began at `started`, with the ledger rows by step, metrics and verdict of successive batches."""
    reported = [Reported(_with_report(rows, started), metrics, _state_of(verdict)) for rows, metrics, verdict in batches]
    folder, first = pages_folder(warehouse.root, warehouse.pipeline.name), batches[0][0][PAIRED].batch_id
    write_trend(folder, warehouse.pipeline.name, reported, lambda: reported_before(warehouse, ledger, first))


def _with_report(rows: Steps, started: datetime) -> dict[str, LedgerRow]:
    """With the report's own row as it is by now; what is left to do takes a moment."""
    return {**rows, REPORTED: rows[PAIRED].next_step(REPORTED, started, finished_at=datetime.now(UTC))}


def _state_of(verdict: Verdict) -> int:
    """PASSED, WARNED or FAILED."""
    return FAILED if verdict.failed else PASSED if all(judged.passed for judged in verdict.checks) else WARNED


def write_trend(folder: Path, pipeline: str, batches: list[Reported], history: Callable[[], list[Reported]]) -> Trend:
    """Adds the batches to the trend and writes its files. `history` gives all reported batches before them; it is called only if
    there is no trend to add to.
    """
    trend = Trend.load(folder, pipeline)
    if trend is None:
        trend = Trend(pipeline)
        trend.add(history())
    trend.add(batches)
    write_text(folder / FILE, trend.text())
    write_text(folder / openmetrics.FILE, openmetrics.exposition(trend))
    page, text = folder / trend_page.FILE, trend_page.page(pipeline)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        write_text(page, text)
    return trend


def reported_before(warehouse: Warehouse, ledger: Ledger, batch_id: int) -> list[Reported]:
    """The reported batches before `batch_id`, as many as the trend keeps, from ledger and metrics. Whether one was warned of is not
    in the tables.
    """
    first, last = max(1, batch_id - KEPT), batch_id - 1
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in ledger.rows(first, last):
        steps.setdefault(row.batch_id, {})[row.step] = row
    return [
        Reported(steps[row["batch_id"]], dict(row["metrics"]), PASSED if row["success"] else FAILED)
        for row in warehouse.small_rows(METRICS, first, last)
        if PAIRED in steps.get(row["batch_id"], {})
    ]
