"""Replays an interval: pairs its events again, late ones included, and corrects what was published otherwise.

    replay_interval --pipeline include/pipelines/calls.yaml --window-start TIME --window-end TIME [--warehouse URI]

TIME is ISO 8601 (UTC if it names no zone) or epoch ms; the start is inclusive, the end exclusive. A compound belongs to the interval
of its `ts`; sessions that cross an edge are read whole. Without a difference to what was published, nothing is written. Otherwise the
replay is a batch: changed compounds are published with their next revision, others are retracted. The job first finishes a batch that
was planned earlier but not paired; the next job finishes a killed replay.
"""

from __future__ import annotations

from spark_jobs.corrections.replay import check_window, difference, plan_replay, write_corrections
from spark_jobs.corrections.unfinished import finish_batch
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.arguments import time_argument
from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.tables.integrity import check_ledger
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse


def main(warehouse: Warehouse, window: Window) -> Counts:
    """Replays the interval; returns how many of its compounds are new, changed, retracted, unchanged.

    Raises NeedsOperator if the interval is not closed yet, or its events are gone.
    """
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger)
    if last is None:
        raise NeedsOperator(
            f"pipeline {warehouse.pipeline.name} has no batch yet, so there is nothing to replay: run land_events"
        )
    check_window(window, last, warehouse)
    planned = plan_replay(warehouse, ledger, last, window)
    with difference(warehouse, planned) as found:
        if not found.corrections:
            return found.counts
        check_ledger(warehouse, last)
        planned = ledger.plan(planned)
        # All four of the difference, as where there is none, also those that the ledger leaves out.
        return {
            "batch_id": planned.batch_id,
            **write_corrections(warehouse, ledger, planned, found).paired.flat(),
            **found.counts,
        }


if __name__ == "__main__":
    parser = job_parser("replay_interval", __doc__)
    parser.add_argument("--window-start", type=time_argument, metavar="TIME", help="first moment of the interval")
    parser.add_argument("--window-end", type=time_argument, metavar="TIME", help="first moment after the interval")
    given = parser.parse_args()
    if given.window_start is None or given.window_end is None:
        parser.error(
            "which interval? give --window-start and --window-end, in Airflow the parameters window_start and window_end"
        )
    run_job("replay_interval", given, lambda warehouse: main(warehouse, Window(given.window_start, given.window_end)))
