"""Pairs a batch: every event of it, and every event that is still open, gets exactly one outcome.

    pair_events --pipeline include/pipelines/calls.yaml [--warehouse URI]

Reads the events that the batch landed and `open_events` at the version its plan names, so a second try sees the same. The
conservation law is checked before the first commit.
"""

from __future__ import annotations

from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.stages.pair import pair_batch
from spark_jobs.tables.integrity import check_tables, newest_row
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED
from spark_jobs.tables.warehouse import Warehouse


def main(warehouse: Warehouse) -> Counts:
    """Pairs the last batch if that has not been done; returns its counts."""
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    if LANDED not in steps or PAIRED in steps:
        return {}
    check_tables(warehouse, newest_row(steps))
    paired = pair_batch(warehouse, ledger, steps[PLANNED], steps[LANDED])
    return {"batch_id": paired.batch_id, **paired.paired.flat()}


if __name__ == "__main__":
    run_job("pair_events", job_parser("pair_events", __doc__).parse_args(), main, own_workers=True)
