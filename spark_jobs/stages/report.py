"""Reporting: each batch is counted afresh and judged, and its page written; afterwards the report fails if something is lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from include.config.health import State, stored_state
from include.config.pipeline import AFTER_PUBLISH
from include.config.setting_changes import in_words as changes_in_words
from include.config.store import pages_store
from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.arguments import write_outcome
from spark_jobs.kafka.records import translate_read_errors
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.current_pages import write_index
from spark_jobs.quality.foreign_changes import check_sentences
from spark_jobs.quality.lag import lag_after
from spark_jobs.quality.late_intervals import healed_batches, looks_of
from spark_jobs.quality.metrics import ReportInput, load_report_input, measure
from spark_jobs.quality.numbers import FAILED
from spark_jobs.quality.offenders import find_offenders
from spark_jobs.quality.pages import batch_details, prune_pages, rewrite_late, write_pages, write_unjudged
from spark_jobs.quality.problem_texts import broken_text, state_sentences
from spark_jobs.quality.silence import PASSED, notices
from spark_jobs.quality.state import OVER, add_to_state
from spark_jobs.quality.suite import INFO, LAWS, Judge, Verdict, in_words, judge
from spark_jobs.quality.trend_files import add_to_trend
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import ERASED, PAIRED, REPORTED
from spark_jobs.tables.records import ReportedCounts
from spark_jobs.tables.schemas import METRICS
from spark_jobs.tables.warehouse import Warehouse

# Pages beyond `quality.keep_pages` are deleted when a batch with such a number is reported.
PRUNED_EVERY = 50
_SHOWN = ("landed", "pair", "left_only", "right_only", "rejected", "open_after")


class BrokenBatch(NeedsOperator):
    """A critical check failed; the text says which, with both numbers."""


def report_batches(warehouse: Warehouse, judge: Judge = judge, again: bool = False) -> dict[str, Any]:
    """Reports every paired batch that was not reported yet; raises BrokenBatch if one fails a critical check.

    Returns the counts of the last one, and under `says` the sentences about it; empty if there was none to report.

    `again`: if there is none, the last batch is reported again, whatever its first verdict was. Its ledger row and its metrics row stay as they are.
    A completed erasure is not reported again.
    """
    ledger = Ledger(warehouse)
    last = ledger.last_ids()
    if again and last[PAIRED] == last[REPORTED] > 0 and not _is_erased(ledger, last[PAIRED]):
        last = {**last, REPORTED: last[PAIRED] - 1}
    if last[PAIRED] <= last[REPORTED]:
        _repeat_outcome(warehouse, ledger, last[REPORTED], judge)
        return {}
    try:
        given = load_report_input(warehouse, ledger, last)
        batches, state = _report(warehouse, ledger, given, judge) if given else ([], None)
    except Exception as error:
        _write_unjudged(warehouse, last[PAIRED], error)
        raise
    _fail_if_broken([(batch.batch_id, batch.verdict) for batch in batches if batch.verdict])
    if not batches or state is None:
        return {}
    counts = {name: int(batches[-1].metrics[name]) for name in _SHOWN}
    sentences = [notice.text for notice in notices(warehouse.pipeline, batches[-1].metrics)]
    sentences += [each for each in state_sentences(state) if each not in sentences]
    sentences += [f"from batch {batch.batch_id} on {changes_in_words(batch.changes)}" for batch in batches if batch.changes]
    says = "; ".join(sentences)
    return {"batch_id": last[PAIRED], "batches": len(batches), **counts, **({"says": says} if says else {})}


def _is_erased(ledger: Ledger, batch_id: int) -> bool:
    """Whether the batch is a completed erasure, which has deleted the open events that its report was counted from; it says so."""
    if not any(row.step == ERASED for row in ledger.rows(batch_id, batch_id)):
        return False
    print(f"batch {batch_id} is a completed erasure, which cannot be counted again: its first report holds")
    return True


def _repeat_outcome(warehouse: Warehouse, ledger: Ledger, last: int, judge: Judge) -> None:
    """What the last report said, up to batch `last`: a second try must not turn a broken batch green, and the first one may have died before
    its news were sent.
    """
    rows = ledger.rows(last, last) if last else []
    first = next((row.reported.first_of_report for row in rows if row.step == REPORTED), 0)
    batches = stored_batches(warehouse, first, last) if first else []
    state = stored_state(pages_store(warehouse.pipeline.name, warehouse.root))
    _send_news(warehouse, batches, state.news if state is not None and state.batch == last else ())
    quality = warehouse.pipeline.quality
    failed = [replace(batch, verdict=judge(batch.metrics, quality, {})) for batch in batches if batch.state == FAILED]
    if failed:
        write_outcome({"checks": _checks(failed)})
    _fail_if_broken([(batch.batch_id, batch.verdict) for batch in failed if batch.verdict])


def _report(warehouse: Warehouse, ledger: Ledger, given: ReportInput, judge: Judge) -> tuple[list[Batch], State]:
    started, quality = datetime.now(UTC), warehouse.pipeline.quality
    first, last = given.batches[0].batch_id, given.batches[-1].batch_id
    with ThreadPoolExecutor(max_workers=1) as beside:
        offenders = beside.submit(find_offenders, warehouse, first, last)
        measured = translate_read_errors(lambda: measure(warehouse, given), warehouse.pipeline, given.topics.ids)
        lag = translate_read_errors(
            lambda: lag_after(warehouse, given.batches[-1], given.topics), warehouse.pipeline, given.topics.ids
        )
    batches = []
    for batch in measured:
        verdict = judge(batch.metrics, quality, check_sentences(warehouse.pipeline, batch))
        batches.append(replace(batch, verdict=verdict, state=verdict.state))
    write_outcome({"checks": _checks(batches)})
    # A batch is reported for good when it is published, or before that, if that is the order.
    final = [batch for batch in batches if quality.gate != AFTER_PUBLISH or batch.batch_id <= given.published]
    again = _append_metrics(warehouse, final)
    fault_point("before_pages")
    pages = pages_store(warehouse.pipeline.name, warehouse.root)
    trend = add_to_trend(warehouse, ledger, started, batches)
    reported = given.history[-1].batch_id if given.history else 0
    state = add_to_state(warehouse, ledger, trend, batches, reported, again, lag)
    for batch in batches:
        write_pages(pages, batch, batch_details(batch, offenders.result()), state, _before(given, batches, batch))
    looks = [*given.late.looks, *looks_of(batches)]
    for late in healed_batches(batches, given.late.batches):
        rewrite_late(pages, warehouse.pipeline, late, batches[-1].paired.clock, looks)
    write_index(pages, last, trend)
    # It takes a list of all pages.
    if any(batch.batch_id % PRUNED_EVERY == 0 for batch in batches):
        prune_pages(pages, quality.keep_pages)
    fault_point("after_pages")
    _send_news(warehouse, final, state.news)
    _record(ledger, started, final)
    _say(batches, state, pages.at(f"batch-{last}.html").uri)
    return batches, state


def _checks(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """The checks of the newest batch, and those of the others that did not pass, as they are in the job's outcome."""
    return [
        {**judged.check._asdict(), "batch": batch.batch_id, "passed": judged.passed, "observed": judged.observed}
        for batch in batches
        for judged in (batch.verdict.checks if batch.verdict else ())
        if batch is batches[-1] or not judged.passed
    ]


def _say(batches: Sequence[Batch], state: State, page: str) -> None:
    """The verdicts in the task's log; the last line has all that is wrong now."""
    for batch in batches:
        for judged in batch.verdict.checks if batch.verdict else ():
            if judged.check.severity == INFO and not judged.passed:
                print(f"batch {batch.batch_id}: {judged.check.sentence}")
    newest = batches[-1]
    verdict = in_words(newest.verdict) if newest.verdict else ""
    print("; ".join([f"batch {newest.batch_id}: {verdict}", *state_sentences(state), f"quality report: {page}"]))


def _before(given: ReportInput, batches: Sequence[Batch], batch: Batch) -> list[Batch]:
    """The batches whose breakdowns a page adds to its own: of the report and of the history."""
    return [each for each in (*given.history, *batches) if each.batch_id < batch.batch_id]


def _record(ledger: Ledger, started: datetime, batches: Sequence[Batch]) -> None:
    """Writes the `reported` rows."""
    rows = []
    for batch in batches:
        failed = len(batch.verdict.failed) if batch.verdict else 0
        counts = ReportedCounts(failed_checks=failed, first_of_report=batches[0].batch_id)
        rows.append(batch.paired.next_step(REPORTED, started, counts))
    if rows:
        ledger.append(*rows)


def _append_metrics(warehouse: Warehouse, batches: Sequence[Batch]) -> set[int]:
    """Returns the batches that had their rows before."""
    # A report that died after this commit has left its rows; the batches that came since are added to them.
    there = {row["batch_id"] for row in warehouse.small_rows(METRICS, batches[0].batch_id)} if batches else set()
    now = datetime.now(UTC)
    rows = [
        {
            "batch_id": batch.batch_id,
            "judged_at": now,
            "success": batch.state != FAILED,
            "metrics": batch.metrics,
            "breakdowns": [row._asdict() for row in batch.breakdowns],
        }
        for batch in batches
        if batch.batch_id not in there
    ]
    if rows:
        commit_rows(warehouse, METRICS, rows, METRICS, batches[-1].batch_id)
    return {batch.batch_id for batch in batches if batch.batch_id in there}


def _send_news(warehouse: Warehouse, batches: Sequence[Batch], of_state: Sequence[str]) -> None:
    """Leaves word for the alerts of what began or ended with these batches, and in the pipeline's state; the report itself does not fail
    because of it.
    """
    found = [notice for batch in batches for notice in notices(warehouse.pipeline, batch.metrics)]
    if news := [*(notice.text for notice in found if notice.is_news), *of_state]:
        ended = [notice.text for notice in found if notice.is_news and notice.style == PASSED]
        write_outcome({"news": news, "over": [*ended, *(line for line in of_state if line.startswith(OVER))]})


def _fail_if_broken(verdicts: Sequence[tuple[int, Verdict]]) -> None:
    failed = [(batch_id, judged) for batch_id, verdict in verdicts for judged in verdict.failed]
    texts = "; ".join(broken_text(batch_id, judged) for batch_id, judged in failed)
    # A check that could not be looked at is as bad as a law that is broken.
    if any(judged.check.metric in LAWS or judged.observed is None for _, judged in failed):
        raise BrokenBatch(f"the counts do not add up: {texts}")
    if failed:
        raise BrokenBatch(f"checks failed that quality.severities sets to fail: {texts}")


def _write_unjudged(warehouse: Warehouse, batch_id: int, error: Exception) -> None:
    """A page in the place of a report that could not be made, if even that can be written."""
    try:
        pages = pages_store(warehouse.pipeline.name, warehouse.root)
        with translate_file_errors(pages.uri):
            write_unjudged(pages, warehouse.pipeline.name, batch_id, error)
            write_index(pages, batch_id)
    except (OSError, JobProblem) as full:
        # On standard error stands the reason alone.
        print(f"the page of batch {batch_id} could not be written either: {full}")
