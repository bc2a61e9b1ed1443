"""Maintains the tables: removes rows for their age, merges small files, deletes files and log entries that are no longer needed.

    maintain_tables --pipeline include/pipelines/calls.yaml [--warehouse URI]

Reads and writes only tables. It may be killed anywhere and run at any time: the next batch finds the same rows, and the versions of
open_events that a retry, the report or a rewind within `maintenance.time_travel` reads are kept.
"""

from __future__ import annotations

from spark_jobs.job.run import job_parser, run_job
from spark_jobs.maintenance.upkeep import maintain_tables as main

if __name__ == "__main__":
    run_job("maintain_tables", job_parser("maintain_tables", __doc__).parse_args(), main)
