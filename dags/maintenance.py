"""The maintenance DAG of each pipeline file: maintain_tables >> reconcile.

A refused file has a DAG that shows its error, made by pairing.py, and none here.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from include.airflow.dag_settings import DEFAULT_POOL, NO_BACKFILLS, dag_settings
from include.airflow.docs import maintenance_doc
from include.airflow.operators import PairingJobOperator
from include.config.pipeline import MAINTENANCE_SUFFIX, PIPELINES, Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline


def maintenance_dag(pipeline: Pipeline, file: Path) -> DAG:
    """`<pipeline>_maintenance`: runs by its own schedule. maintain_tables is in the pool of the writers; reconcile only reads, beside them."""
    schedule = pipeline.maintenance.schedule
    with DAG(
        dag_id=f"{pipeline.name}{MAINTENANCE_SUFFIX}",
        # Without data intervals: each run works on the tables as they are.
        schedule=CronTriggerTimetable(schedule, timezone="UTC") if schedule else None,
        max_active_runs=1,
        allowed_run_types=NO_BACKFILLS,
        tags=["event-pairing", "maintenance"],
        doc_md=maintenance_doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        maintain_tables = PairingJobOperator(job="maintain_tables", pipeline_file=file)
        if pipeline.maintenance.reconcile:
            # It may take long, and the live runs go on meanwhile.
            maintain_tables >> PairingJobOperator(job="reconcile", pipeline_file=file, pool=DEFAULT_POOL)
    return dag


for _file in sorted(PIPELINES.glob("*.yaml")):
    with suppress(PipelineError):
        maintenance_dag(load_pipeline(_file), _file)
