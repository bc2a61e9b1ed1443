"""Rewinds: puts the tables and the position back to what they were after an earlier batch, from which the next batch continues.

    rewind --pipeline include/pipelines/calls.yaml --to-batch N [--yes] [--warehouse URI] [--accept-lost-range RANGES]

Without --yes it only prints a preview. A rewind is a batch: it has the next batch_id and is planned in the ledger before any work;
land_events or the same command finishes a killed one. Compounds that later batches published are corrected: they are retracted, and
come back with a higher revision if batches after the rewind find them again.
"""

from __future__ import annotations

from spark_jobs.corrections.rewind import dry_run
from spark_jobs.corrections.rewind import rewind as main
from spark_jobs.job.arguments import write_outcome
from spark_jobs.job.run import errors_in_one_line, exit_without_cleanup, job_parser, run_job, warehouse_folder
from spark_jobs.spark.session import reading_session
from spark_jobs.tables.warehouse import Warehouse

_LOCK_WAIT_S = 20.0

if __name__ == "__main__":
    parser = job_parser("rewind", __doc__)
    parser.add_argument(
        "--to-batch", type=int, required=True, metavar="N", help="the batch to go on from; 0: from the very beginning"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this nothing is changed")
    parser.add_argument(
        "--accept-lost-range",
        action="append",
        default=[],
        metavar="TOPIC-PARTITION:FIRST-UNTIL",
        help="give up these landed records, which the broker no longer has; several with spaces between, or repeat",
    )
    given = parser.parse_args()
    losses = " ".join(given.accept_lost_range).split()
    if given.yes:
        run_job("rewind", given, lambda warehouse: main(warehouse, given.to_batch, losses), _LOCK_WAIT_S)
    else:
        with exit_without_cleanup(), errors_in_one_line():
            spark = reading_session("rewind", given.pipeline.name)
            try:
                print(dry_run(Warehouse(warehouse_folder(given.warehouse), given.pipeline, spark), given.to_batch))
            finally:
                spark.stop()
            write_outcome({"ok": True, "counts": {}})
