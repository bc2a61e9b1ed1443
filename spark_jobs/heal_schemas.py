"""Heals records that were rejected as `unknown_schema`, once the registry knows their schemas.

    heal_schemas --pipeline include/pipelines/calls.yaml [--warehouse URI]

Asks the registry again, keeps the schemas that it knows now beside the tables, and replays the intervals of the records' events. Compounds that
change are published by the next publication, as after any replay. It may be run again at any time: what is healed already changes nothing.
Intervals that are not closed yet are left for the next run (`wait`).
"""

from __future__ import annotations

from spark_jobs.corrections.healing import heal as main
from spark_jobs.job.run import job_parser, run_job

if __name__ == "__main__":
    run_job("heal_schemas", job_parser("heal_schemas", __doc__).parse_args(), main)
