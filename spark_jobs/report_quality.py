"""Report: count each batch afresh, judge the counts, write its page; then fail if something is lost.

    report_quality --pipeline include/pipelines/calls.yaml [--again] [--warehouse URI]

Report first, then fail: metrics row, page and ledger row are there whatever the verdict. With --again the last batch is counted and judged
afresh, and its page written anew, if nothing else is to be reported.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime

from include.warehouse_folder import pages_folder
from spark_jobs.fault_points import fault_point
from spark_jobs.job import Counts, job_parser, run_job
from spark_jobs.problems import NeedsOperator
from spark_jobs.quality.details import batch_details
from spark_jobs.quality.metrics import Metrics, measure
from spark_jobs.quality.offenders import find_offenders
from spark_jobs.quality.pages import write_index, write_pages
from spark_jobs.quality.suite import Judged, Verdict, judge, warm_up
from spark_jobs.quality.trend_files import add_to_trend
from spark_jobs.storage.commit import commit_rows
from spark_jobs.storage.ledger import PAIRED, REPORTED, Ledger, LedgerRow, rewinds_among
from spark_jobs.storage.tables import METRICS, Warehouse

_RECENT = 20


class BrokenBatch(NeedsOperator):
    """A critical check failed; the text says which, with both numbers."""


def main(warehouse: Warehouse, again: bool = False) -> Counts:
    """Reports every paired batch that was not reported yet; raises BrokenBatch if one fails a critical check.

    `again`: where there is none, the last one, whatever was found of it before.
    """
    with ThreadPoolExecutor(max_workers=2) as beside:
        beside.submit(warm_up)
        return _report(warehouse, beside, again)


def _report(warehouse: Warehouse, beside: Executor, again: bool) -> Counts:
    ledger, started = Ledger(warehouse), datetime.now(UTC)
    known = ledger.last_ids()
    done, last = known[REPORTED], known[PAIRED]
    if last <= done and not again:
        # A second try must not turn a broken batch green.
        _fail_again(warehouse)
        return {}
    # What a batch has in the tables already is not written a second time.
    batches = counting(ledger.rows(min(done + 1, last)))
    if not batches:
        return {}
    looked_up = beside.submit(find_offenders, warehouse, batches[0][PAIRED].batch_id, last)
    measured = measure(warehouse, batches)
    verdicts = [judge(metrics, warehouse.pipeline.quality) for metrics in measured]
    _append_metrics(warehouse, last, [rows[PAIRED].batch_id for rows in batches], measured, verdicts)
    fault_point("before_pages")
    folder = pages_folder(warehouse.root, warehouse.pipeline.name)
    for rows, metrics, verdict in zip(batches, measured, verdicts, strict=True):
        page = write_pages(folder, rows[PAIRED], metrics, verdict, batch_details(rows, metrics, looked_up.result()))
    write_index(folder)
    add_to_trend(warehouse, ledger, started, list(zip(batches, measured, verdicts, strict=True)))
    fault_point("after_pages")
    print(f"quality report: {page}")
    ledger.append(
        *(
            rows[PAIRED].next_step(REPORTED, started, counts={"failed_checks": len(verdict.failed)})
            for rows, verdict in zip(batches, verdicts, strict=True)
        )
    )
    _fail_if_broken(
        [
            (rows[PAIRED].batch_id, judged)
            for rows, verdict in zip(batches, verdicts, strict=True)
            for judged in verdict.failed
        ]
    )
    shown = ("landed", "pair", "left_only", "right_only", "rejected", "open_after")
    return {"batch_id": last, "batches": len(batches)} | {name: int(measured[-1][name]) for name in shown}


def counting(rows: list[LedgerRow]) -> list[dict[str, LedgerRow]]:
    """The paired batches, as rows by step, without those that a rewind gave up: their rows are gone from the tables."""
    rewinds = rewinds_among(rows)
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in rows:
        if not any(rewind.voids(row.batch_id) for rewind in rewinds):
            steps.setdefault(row.batch_id, {})[row.step] = row
    return [rows for _, rows in sorted(steps.items()) if PAIRED in rows]


def _append_metrics(
    warehouse: Warehouse, last: int, batch_ids: list[int], measured: list[Metrics], verdicts: list[Verdict]
) -> None:
    now = datetime.now(UTC)
    # A report that died after this commit has left its rows; the batches that came since are added to them.
    there = {row["batch_id"] for row in warehouse.small_rows(METRICS, batch_ids[0])}
    rows = [
        {"batch_id": batch_id, "judged_at": now, "success": not verdict.failed, "metrics": metrics}
        for batch_id, metrics, verdict in zip(batch_ids, measured, verdicts, strict=True)
        if batch_id not in there
    ]
    if rows:
        commit_rows(warehouse, METRICS, rows, METRICS, last)


def _fail_again(warehouse: Warehouse) -> None:
    """Judges the batches of the last report again; they were written together and share their time."""
    rows = warehouse.newest_rows(METRICS, _RECENT)
    newest = max((row["judged_at"] for row in rows), default=None)
    if rows and all(row["judged_at"] == newest for row in rows):
        # There may be more of them.
        rows = warehouse.small_rows(METRICS, 1)
    broken = [row for row in rows if row["judged_at"] == newest and not row["success"]]
    failed = [
        (row["batch_id"], judged)
        for row in sorted(broken, key=lambda row: row["batch_id"])
        for judged in judge(dict(row["metrics"]), warehouse.pipeline.quality).failed
    ]
    _fail_if_broken(failed)


def _fail_if_broken(failed: list[tuple[int, Judged]]) -> None:
    if failed:
        told = "; ".join(
            f"batch {batch_id}: {judged.check.sentence}: {judged.check.metric} is {judged.observed}, allowed {judged.check.least:g} to {judged.check.most:g}"
            for batch_id, judged in failed
        )
        raise BrokenBatch(f"the counts do not add up: {told}")


if __name__ == "__main__":
    parser = job_parser("report_quality", __doc__)
    parser.add_argument("--again", action="store_true", help="where nothing is to be reported, count the last batch afresh")
    given = parser.parse_args()
    run_job("report_quality", given, lambda warehouse: main(warehouse, given.again))
