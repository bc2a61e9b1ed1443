"""Maintain: give up rows for their age, put small files together, delete files and log entries that nobody can need any more.

    maintain_tables --pipeline include/pipelines/calls.yaml [--warehouse URI]

Reads and writes nothing but tables. It may be killed anywhere and run at any time: the next batch finds the same rows, and versions
of open_events that a retry, the report or a rewind within `maintenance.time_travel` reads stay.
"""

from __future__ import annotations

from spark_jobs.job.run import job_parser, run_job
from spark_jobs.maintenance.upkeep import maintain_tables as main

if __name__ == "__main__":
    run_job("maintain_tables", job_parser("maintain_tables", __doc__).parse_args(), main)
