"""Reconcile: read the broker and all tables afresh, and prove that nothing is lost and nothing is there twice.

    reconcile --pipeline include/pipelines/calls.yaml [--warehouse URI]

Every offset that the ledger planned must have exactly one outcome, and every compound of a published batch must be on the
output topic once. Only reads, so it may run at any moment, beside the jobs: it goes up to the last published batch and to the ends that
the topics had when it began. What the topics' retention has removed is listed, not counted as lost.
"""

from __future__ import annotations

from spark_jobs.job.arguments import tell_outcome
from spark_jobs.job.run import ending_at_once, job_parser, told_in_one_line, warehouse_folder
from spark_jobs.quality.reconcile import fail_if_any, report_text
from spark_jobs.quality.reconcile import reconcile as main
from spark_jobs.spark.session import reading_session
from spark_jobs.tables.diagnose import files_named
from spark_jobs.tables.warehouse import Warehouse

if __name__ == "__main__":
    given = job_parser("reconcile", __doc__).parse_args()
    pipeline = given.pipeline
    root = warehouse_folder(given.warehouse)
    with ending_at_once(), told_in_one_line(), files_named(f"{root}/{pipeline.name}"):
        spark = reading_session("reconcile", pipeline.name)
        try:
            answer = main(Warehouse(spark, root, pipeline))
        finally:
            spark.stop()
        print(report_text(pipeline.name, pipeline.output_topic, answer), flush=True)
        fail_if_any(pipeline.name, answer.offenders)
        tell_outcome({"ok": True, "counts": answer.counts})
