"""Replays an interval: pairs its events again, late ones included, and corrects what was published otherwise.

    replay_interval --pipeline include/pipelines/calls.yaml --window-start TIME --window-end TIME [--warehouse URI]

TIME is ISO 8601 (UTC if it names no zone) or epoch ms; the start is inclusive, the end exclusive. A compound belongs to the interval
of its `ts`; sessions that cross an edge are read whole. Without a difference to what was published, nothing is written. Otherwise the
replay is a batch: changed compounds are published with their next revision, others are retracted. The job first finishes a batch that
was planned earlier but not paired; the next job finishes a killed replay.
"""

from __future__ import annotations

from spark_jobs.corrections.interval import replay_interval as main
from spark_jobs.corrections.looked import note_look
from spark_jobs.corrections.quiet import nothing_waits, quiet_counts
from spark_jobs.job.arguments import time_argument
from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.tables.records import Window
from spark_jobs.tables.tables import Tables


def with_rest(tables: Tables, counts: Counts) -> Counts:
    """The counts, and `nothing_waits` 1 if there is nothing to publish or report after them."""
    return counts if "batch_id" in counts or not nothing_waits(tables) else counts | {"nothing_waits": 1}


if __name__ == "__main__":
    parser = job_parser("replay_interval", __doc__)
    parser.add_argument("--window-start", type=time_argument, metavar="TIME", help="first moment of the interval")
    parser.add_argument("--window-end", type=time_argument, metavar="TIME", help="first moment after the interval")
    given = parser.parse_args()
    if given.window_start is None or given.window_end is None:
        parser.error(
            "which interval? give --window-start and --window-end, in Airflow the parameters window_start and window_end"
        )
    window = Window(given.window_start, given.window_end)

    def without_spark(tables: Tables) -> Counts | None:
        if (counts := quiet_counts(tables, window)) is None:
            return None
        note_look(tables, window)
        return with_rest(tables, counts)

    run_job(
        "replay_interval",
        given,
        lambda warehouse: with_rest(warehouse, main(warehouse, window)),
        without_spark=without_spark,
    )
