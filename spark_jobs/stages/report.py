"""Reporting: each batch is counted afresh and judged, and its page written; the report fails afterwards, if something is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple

from include.config.pipeline import AFTER_PUBLISH
from include.config.store import pages_store
from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.arguments import tell_outcome
from spark_jobs.kafka.records import translate_read_errors
from spark_jobs.quality.details import batch_details
from spark_jobs.quality.judging import Judge
from spark_jobs.quality.laws import Steps
from spark_jobs.quality.metrics import measure
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.offenders import find_offenders
from spark_jobs.quality.pages import prune_pages, write_index, write_pages, write_unjudged
from spark_jobs.quality.report_input import Known, look_around
from spark_jobs.quality.silence_words import checked_sentences, notices
from spark_jobs.quality.suite import INFO, Verdict, judge
from spark_jobs.quality.trend_files import add_to_trend
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.diagnose import files_named
from spark_jobs.tables.ledger import PAIRED, REPORTED, Ledger, LedgerRow
from spark_jobs.tables.records import ReportedCounts
from spark_jobs.tables.warehouse import METRICS, Warehouse

# Pages beyond `quality.keep_pages` go when a batch with such a number is reported.
PRUNED_EVERY = 50


class BrokenBatch(NeedsOperator):
    """A critical check failed; the text says which, with both numbers."""


class Report(NamedTuple):
    """A batch, by step, with its numbers and what is thought of them."""

    steps: Steps
    metrics: Metrics
    verdict: Verdict

    @property
    def paired(self) -> LedgerRow:
        """Its `paired` row."""
        return self.steps[PAIRED]


def report_batches(warehouse: Warehouse, judge: Judge = judge, again: bool = False) -> dict[str, Any]:
    """Reports every paired batch that was not reported yet; raises BrokenBatch if one fails a critical check.

    Gives the counts of the last one, and under `says` what there is to say of it in words.

    `again`: where there is none, the last one, whatever was found of it before. Its row and its metrics stay those of the first time.
    """
    ledger = Ledger(warehouse)
    last = ledger.last_ids()
    if again and last[PAIRED] == last[REPORTED] > 0:
        last = {**last, REPORTED: last[PAIRED] - 1}
    if last[PAIRED] <= last[REPORTED]:
        # A second try must not turn a broken batch green, and the first one may have died before its news were told.
        before = _reported_before(warehouse, ledger, last[REPORTED])
        _tell_news(warehouse, [metrics for _, metrics, _ in before])
        quality = warehouse.pipeline.quality
        _fail_if_broken([(batch_id, judge(metrics, quality)) for batch_id, metrics, passed in before if not passed])
        return {}
    try:
        known = look_around(warehouse, ledger, last)
        reports = _report(warehouse, ledger, known, judge) if known else []
    except Exception as error:
        _tell_unjudged(warehouse, last[PAIRED], error)
        raise
    _fail_if_broken([(report.paired.batch_id, report.verdict) for report in reports])
    shown = ("landed", "pair", "left_only", "right_only", "rejected", "open_after")
    counts = {name: int(reports[-1].metrics[name]) for name in shown} if reports else {}
    if not reports:
        return {}
    said = "; ".join(notice.text for notice in notices(warehouse.pipeline, reports[-1].metrics))
    return {"batch_id": last[PAIRED], "batches": len(reports), **counts, **({"says": said} if said else {})}


def _report(warehouse: Warehouse, ledger: Ledger, known: Known, judge: Judge) -> list[Report]:
    started, quality = datetime.now(UTC), warehouse.pipeline.quality
    first, last = known.batches[0][PAIRED].batch_id, known.batches[-1][PAIRED].batch_id
    with ThreadPoolExecutor(max_workers=1) as beside:
        looked_up = beside.submit(find_offenders, warehouse, first, last)
        measured = translate_read_errors(lambda: measure(warehouse, known), warehouse.pipeline.topics)
    said = [checked_sentences(notices(warehouse.pipeline, metrics)) for metrics in measured]
    reports = [
        Report(*each[:2], judge(each[1], quality, each[2])) for each in zip(known.batches, measured, said, strict=True)
    ]
    # The last word on a batch is spoken when it is published, or before that, if that is the order.
    final = [report for report in reports if quality.gate != AFTER_PUBLISH or report.paired.batch_id <= known.published]
    _append_metrics(warehouse, final)
    fault_point("before_pages")
    pages = pages_store(warehouse.pipeline.name, warehouse.root)
    for report in reports:
        details = batch_details(report.steps, report.metrics, looked_up.result())
        page = write_pages(pages, report.paired, report.metrics, report.verdict, details)
        for judged in report.verdict.checks:
            if judged.check.severity == INFO and not judged.passed:
                print(f"batch {report.paired.batch_id}: {judged.check.sentence}")
    write_index(pages, last)
    add_to_trend(warehouse, ledger, started, reports)
    # It takes a list of all pages.
    if any(report.paired.batch_id % PRUNED_EVERY == 0 for report in reports):
        prune_pages(pages, quality.keep_pages)
    fault_point("after_pages")
    print(f"quality report: {page}")
    _tell_news(warehouse, [report.metrics for report in final])
    if final:
        first = final[0].paired.batch_id
        rows = [
            report.paired.next_step(
                REPORTED, started, ReportedCounts(failed_checks=len(report.verdict.failed), first_of_report=first)
            )
            for report in final
        ]
        ledger.append(*rows)
    return reports


def _append_metrics(warehouse: Warehouse, reports: list[Report]) -> None:
    # A report that died after this commit has left its rows; the batches that came since are added to them.
    there = {row["batch_id"] for row in warehouse.small_rows(METRICS, reports[0].paired.batch_id)} if reports else set()
    now = datetime.now(UTC)
    rows = [
        {
            "batch_id": report.paired.batch_id,
            "judged_at": now,
            "success": not report.verdict.failed,
            "metrics": report.metrics,
        }
        for report in reports
        if report.paired.batch_id not in there
    ]
    if rows:
        commit_rows(warehouse, METRICS, rows, METRICS, reports[-1].paired.batch_id)


def _reported_before(warehouse: Warehouse, ledger: Ledger, last: int) -> list[tuple[int, Metrics, bool]]:
    """The batches of the last report: id, metrics, and whether no critical check failed."""
    if not last:
        return []
    reported = next(row for row in ledger.rows(last, last) if row.step == REPORTED)
    rows = warehouse.small_rows(METRICS, reported.reported.first_of_report, last)
    return [(row["batch_id"], dict(row["metrics"]), row["success"]) for row in rows]


def _tell_news(warehouse: Warehouse, batches: list[Metrics]) -> None:
    """Leaves word of what began or ended with these batches, for whoever is to be told; the report itself does not fail of it."""
    news = [notice.text for metrics in batches for notice in notices(warehouse.pipeline, metrics) if notice.is_news]
    if news:
        tell_outcome({"news": news})


def _fail_if_broken(verdicts: list[tuple[int, Verdict]]) -> None:
    failed = [
        f"batch {batch_id}: {judged.check.sentence}: {judged.check.metric} is {judged.observed}, allowed {judged.check.least:g} "
        f"to {judged.check.most:g}"
        for batch_id, verdict in verdicts
        for judged in verdict.failed
    ]
    if failed:
        raise BrokenBatch(f"the counts do not add up: {'; '.join(failed)}")


def _tell_unjudged(warehouse: Warehouse, batch_id: int, error: Exception) -> None:
    """A page in the place of a report that could not be made, if even that can be written."""
    try:
        pages = pages_store(warehouse.pipeline.name, warehouse.root)
        with files_named(pages.uri):
            write_unjudged(pages, warehouse.pipeline.name, batch_id, error)
            write_index(pages, batch_id)
    except (OSError, JobProblem) as full:
        # On standard error stands the reason alone.
        print(f"the page of batch {batch_id} could not be written either: {full}")
