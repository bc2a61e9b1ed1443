"""Lands, pairs and publishes all there is, in one application; started by the bench of the whole way.

one_application --pipeline FILE [--warehouse URI]
"""

from __future__ import annotations

from collections import Counter

from spark_jobs import land_events, pair_events, publish_compounds
from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.tables.warehouse import Warehouse


def main(warehouse: Warehouse) -> Counts:
    """Batches of the pipeline's size until one lands nothing more; what came out of them."""
    total: Counter[str] = Counter()
    while True:
        landed = land_events.main(warehouse, warehouse.pipeline.max_records_per_batch, ())
        paired = pair_events.main(warehouse)
        sent = publish_compounds.main(warehouse)
        total.update(landed=landed["landed"], compounds=paired["compounds"], sent=sent["sent"])
        if not landed["backlog"]:
            return dict(total)


if __name__ == "__main__":
    run_job("one_application", job_parser("one_application", __doc__).parse_args(), main, own_workers=True)
