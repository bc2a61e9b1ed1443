"""Lists the replays that late events of live batches request, with `late: replay` in the pipeline's file.

    replay_late --pipeline include/pipelines/calls.yaml [--after-batch N] [--warehouse URI]

Writes nothing. Airflow's task of this name starts the replays; the same late events have the same run ids at every call, so that none is
started twice. Intervals that a replay in the ledger has covered are left out, as are those that are not closed yet (`waiting`).
"""

from __future__ import annotations

from spark_jobs.corrections.late import late_replays as main
from spark_jobs.job.run import job_parser, run_job

if __name__ == "__main__":
    parser = job_parser("replay_late", __doc__)
    parser.add_argument(
        "--after-batch", type=int, default=0, metavar="N", help="leave out the late events of batches up to N (default 0)"
    )
    given = parser.parse_args()
    run_job("replay_late", given, lambda warehouse: main(warehouse, given.after_batch))
