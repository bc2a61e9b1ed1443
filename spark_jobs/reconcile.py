"""Reconcile: read the broker and all tables afresh, and prove that nothing is lost and nothing is there twice.

    reconcile --pipeline include/pipelines/calls.yaml [--warehouse URI]

Every offset that the ledger planned must have exactly one outcome, and every compound of a published batch must be on the
output topic once. Changes neither tables nor topics, so it may run at any moment, beside the jobs: it goes up to the last published batch and
to the ends that the topics had when it began. What the topics' retention has removed is listed, not counted as lost. What it finds is a problem
in the pipeline's state until it finds nothing.
"""

from __future__ import annotations

from spark_jobs.job.arguments import write_outcome
from spark_jobs.job.lineage import lineage
from spark_jobs.job.run import job_parser, reading_job
from spark_jobs.quality.reconcile import fail_if_any, note_in_state, report_text
from spark_jobs.quality.reconcile import reconcile as main

if __name__ == "__main__":
    given = job_parser("reconcile", __doc__).parse_args()
    with reading_job("reconcile", given) as warehouse:
        answer = main(warehouse)
        print(report_text(given.pipeline.name, given.pipeline.output_topic, answer), flush=True)
        note_in_state(warehouse, answer)
        write_outcome({"lineage": lineage("reconcile", warehouse)})
        fail_if_any(given.pipeline.name, answer.offenders)
        write_outcome({"ok": True, "counts": answer.counts})
