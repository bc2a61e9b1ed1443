"""Reconcile: read the broker and all tables afresh, and prove that nothing is lost and nothing is there twice.

    reconcile --pipeline include/pipelines/calls.yaml [--warehouse URI]

Every offset that the ledger planned must have exactly one outcome, and every compound of a published batch must be on the
output topic once. Only reads, so it may run at any moment, beside the jobs: it goes up to the last published batch and to the ends that
the topics had when it began. What the topics' retention has removed is listed, not counted as lost.
"""

from __future__ import annotations

from spark_jobs.job.arguments import write_outcome
from spark_jobs.job.run import errors_in_one_line, exit_without_cleanup, job_parser, warehouse_folder
from spark_jobs.quality.reconcile import fail_if_any, report_text
from spark_jobs.quality.reconcile import reconcile as main
from spark_jobs.spark.session import reading_session
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.warehouse import Warehouse

if __name__ == "__main__":
    given = job_parser("reconcile", __doc__).parse_args()
    pipeline = given.pipeline
    root = warehouse_folder(given.warehouse)
    with exit_without_cleanup(), errors_in_one_line(), translate_file_errors(f"{root}/{pipeline.name}"):
        spark = reading_session("reconcile", pipeline.name)
        try:
            answer = main(Warehouse(root, pipeline, spark))
        finally:
            spark.stop()
        print(report_text(pipeline.name, pipeline.output_topic, answer), flush=True)
        fail_if_any(pipeline.name, answer.offenders)
        write_outcome({"ok": True, "counts": answer.counts})
