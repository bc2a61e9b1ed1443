"""Rewinds: puts the tables and the position back to what they were after an earlier batch, from which the next batch continues.

    rewind --pipeline include/pipelines/calls.yaml --to-batch N [--yes] [--warehouse URI] [--accept-lost-range RANGES]

Without --yes it only prints a preview. A rewind is a batch: it has the next batch_id and is planned in the ledger before any work;
land_events or the same command finishes a killed one. Compounds that later batches published are corrected: they are retracted, and
come back with a higher revision if batches after the rewind find them again.
"""

from __future__ import annotations

from spark_jobs.corrections.rewind import dry_run
from spark_jobs.corrections.rewind import rewind as main
from spark_jobs.job.arguments import add_accept_lost_range, write_outcome
from spark_jobs.job.run import job_parser, reading_job, run_job

_LOCK_WAIT_S = 20.0

if __name__ == "__main__":
    parser = job_parser("rewind", __doc__)
    parser.add_argument(
        "--to-batch", type=int, required=True, metavar="N", help="the batch to go on from; 0: from the very beginning"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this nothing is changed")
    add_accept_lost_range(parser, "give up these landed records")
    given = parser.parse_args()
    if given.yes:
        run_job("rewind", given, lambda warehouse: main(warehouse, given.to_batch, given.accept_lost_range), _LOCK_WAIT_S)
    else:
        with reading_job("rewind", given) as reading:
            print(dry_run(reading, given.to_batch))
            write_outcome({"ok": True, "counts": {}})
