"""What a report leaves beside the pages of its batches: the trend page, its data, what all pages load, and the newest batch's numbers.

These are OpenMetrics text: for a scrape of Airflow's web server, or node_exporter's textfile collector. Gauges only and no timestamps, so the
text is valid in Prometheus' older format too, which that collector reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

from include.config.store import Store, pages_store, write_text
from spark_jobs.quality.assets import write_assets
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.catalogue import MEANINGS, SECONDS, Meaning
from spark_jobs.quality.rendering import render
from spark_jobs.quality.trend import FILE, KEPT, KINDS, Trend
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import PAIRED, REMOVED_LEDGER, REPORTED, Ledger, removed_through
from spark_jobs.tables.records import StepCounts
from spark_jobs.tables.warehouse import Warehouse

PAGE_FILE, METRICS_FILE = "trend.html", "metrics.prom"
_PREFIX = "event_pairing_"
_REJECTED = {f"rejected_{reason}": str(reason) for reason in Reason}


def add_to_trend(warehouse: Warehouse, ledger: Ledger, started: datetime, batches: Sequence[Batch]) -> None:
    """Called by the report that began at `started`, with successive batches that are judged."""
    # The report's own row as it is by now; the little that is left to do takes a moment.
    rows = [batch.paired.next_step(REPORTED, started, StepCounts(), finished_at=datetime.now(UTC)) for batch in batches]
    reported = [replace(batch, steps={**batch.steps, REPORTED: row}) for batch, row in zip(batches, rows, strict=True)]
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
        trend = Trend(pipeline, removed=removed())
        trend.add(history())
    trend.add(batches)
    write_text(pages, FILE, trend.text())
    write_text(pages, METRICS_FILE, exposition(trend))
    write_assets(pages, {PAGE_FILE: trend_page(pipeline)})
    return trend


def trend_page(pipeline: str) -> str:
    """The page of all batches, the same after every batch: its numbers are in FILE."""
    return render("trend.html", pipeline=pipeline, data_file=FILE)


def reported_before(warehouse: Warehouse, ledger: Ledger, batch_id: int) -> list[Batch]:
    """The reported batches before `batch_id`, at most KEPT, from ledger and metrics. The tables do not say which had warnings."""
    first, last = max(1, batch_id - KEPT), batch_id - 1
    rows = groupby(ledger.rows(first, last), attrgetter("batch_id"))
    steps = {number: {row.step: row for row in of_batch} for number, of_batch in rows}
    return [
        replace(batch, steps=steps[batch.batch_id])
        for batch in stored_batches(warehouse, first, last)
        if PAIRED in steps.get(batch.batch_id, {})
    ]


def exposition(trend: Trend) -> str:
    """The text, which ends with `# EOF`; without a batch that line alone."""
    lines: list[str] = []
    if trend.columns["batch"]:
        pipeline = f'pipeline="{escaped(trend.pipeline)}"'
        batch, at, kind, state = (trend.columns[name][-1] for name in ("batch", "at", "kind", "state"))
        newest = trend.newest()
        own = {
            "batch": (Meaning("Number of the newest reported batch"), {f'{pipeline},kind="{KINDS[kind]}"': batch}),
            "batch_wall_time": (Meaning("Wall time of the newest reported batch since 1970", SECONDS), {pipeline: at}),
            "check_state": (Meaning("0: all checks passed, 1: a warning, 2: a critical check failed"), {pipeline: state}),
        }
        own |= {name: (_meaning(name), {pipeline: value}) for name, value in newest.items() if name not in _REJECTED}
        if by_reason := {f'{pipeline},reason="{_REJECTED[name]}"': newest[name] for name in _REJECTED if name in newest}:
            own["rejected_by_reason"] = (Meaning("Events rejected, by reason"), by_reason)
        lines = [line for name, (known, samples) in own.items() for line in family(name, known, samples)]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def family(name: str, known: Meaning, samples: dict[str, float]) -> list[str]:
    """One gauge with its samples by labels. Its name ends with the unit, as OpenMetrics demands."""
    full = f"{_PREFIX}{name}"
    if known.unit and not full.endswith(f"_{known.unit}"):
        full += f"_{known.unit}"
    unit = [f"# UNIT {full} {known.unit}"] if known.unit else []
    values = [f"{full}{{{labels}}} {round(value * known.scale, 6):.15g}" for labels, value in samples.items()]
    return [f"# TYPE {full} gauge", *unit, f"# HELP {full} {escaped(known.sentence)}", *values]


def escaped(text: str) -> str:
    """The text between quotation marks, or in a help line."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _meaning(name: str) -> Meaning:
    """Of a metric that is not in the catalogue its name, as a count."""
    return MEANINGS.get(name, Meaning(name.replace("_", " ").capitalize()))
