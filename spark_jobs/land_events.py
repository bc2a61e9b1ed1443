"""Lands a batch: plans it in the ledger, reads exactly its offsets, and appends every record as it came, with its parsed fields.

    land_events --pipeline include/pipelines/calls.yaml [--warehouse URI] [--max-records N] [--accept-lost-range RANGES]

First finishes a batch that was planned earlier but not paired.
"""

from __future__ import annotations

from collections.abc import Collection

from spark_jobs.corrections.unfinished import finish_batch
from spark_jobs.formats.decoding import check_schema_files
from spark_jobs.job.arguments import add_accept_lost_range
from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.kafka.ranges import first_offsets, new_topics
from spark_jobs.stages.land import land_batch, plan_batch
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.warehouse import Warehouse


def main(warehouse: Warehouse, max_records: int, accepted_losses: Collection[str] = ()) -> Counts:
    """Finishes an unfinished batch as it was planned, then plans and lands the next one; returns its counts.

    `accepted_losses`: lost ranges that the operator gives up, as the job has named them.
    """
    if not warehouse.exists(LEDGER):
        create_missing(warehouse)
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger, accepted_losses)
    # A plan carries its schema file: what is wrong with that is said before.
    check_schema_files(warehouse.pipeline)
    planned = plan_batch(warehouse, ledger, last, max_records, accepted_losses)
    counts = {"batch_id": planned.batch_id, **land_batch(warehouse, ledger, planned, accepted_losses).landed.flat()}
    joined = new_topics(planned.offsets, last.offsets if last else ())
    began = first_offsets(planned.offsets, joined)
    return counts | {f"began_{topic}-{number}": at for (topic, number), at in began.items()}


if __name__ == "__main__":
    parser = job_parser("land_events", __doc__)
    parser.add_argument(
        "--max-records", type=int, help="at most so many records in this batch (default: the pipeline's setting)"
    )
    add_accept_lost_range(parser, "continue without these records")
    given = parser.parse_args()
    if given.max_records is not None and given.max_records < 1:
        parser.error("--max-records must be at least 1")
    limit = given.max_records or given.pipeline.max_records_per_batch
    run_job("land_events", given, lambda warehouse: main(warehouse, limit, given.accept_lost_range), own_workers=True)
