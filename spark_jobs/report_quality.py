"""Report: count each batch afresh, judge the counts, write its page; then fail if something is lost.

    report_quality --pipeline include/pipelines/calls.yaml [--again] [--warehouse URI]

Report first, then fail: metrics row, page and ledger row are there whatever the verdict. A batch that should be published by now and is
not has its page and fails, but is reported for good only when it is. If the report itself fails, there is a page that says so. With
--again the last batch is counted and judged afresh, and its page written anew, if nothing else is to be reported.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from spark_jobs.quality.suite import judge, judge_beside

_at_the_end = ExitStack()
# What is imported below takes seconds, and so does what this process imports: side by side.
_judge_there = _at_the_end.enter_context(judge_beside()) if __name__ == "__main__" else None

from spark_jobs.corrections.erasure_end import finish_erasures
from spark_jobs.job.run import job_parser, run_job
from spark_jobs.maintenance.files import merge_recent
from spark_jobs.quality.suite import Judge
from spark_jobs.stages.report import report_batches
from spark_jobs.tables.warehouse import Warehouse


def main(warehouse: Warehouse, judge: Judge = judge, again: bool = False) -> dict[str, Any]:
    """Reports as `report_batches`, then completes an erasure whose command was killed when its batch is published and reported."""
    merge_recent(warehouse)
    counts = report_batches(warehouse, judge, again)
    finish_erasures(warehouse)
    return counts


if __name__ == "__main__":
    with _at_the_end:
        parser = job_parser("report_quality", __doc__)
        parser.add_argument(
            "--again", action="store_true", help="where nothing is to be reported, count the last batch afresh"
        )
        given = parser.parse_args()
        run_job("report_quality", given, lambda warehouse: main(warehouse, _judge_there or judge, given.again))
