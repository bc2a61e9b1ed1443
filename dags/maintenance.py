"""One DAG a pipeline file: its tables are compacted, and what nobody needs any more is deleted.

A file that is refused has a DAG that says so from event_pairing.py, and none here.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from include.airflow.dag_settings import NO_BACKFILLS, dag_settings
from include.airflow.operator import PairingJobOperator
from include.config.pipeline import MAINTENANCE_SUFFIX, PIPELINES, Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline


def maintenance_dag(pipeline: Pipeline, file: Path) -> DAG:
    """`<pipeline>_maintenance`: runs by its schedule, in the same pool as the other writers."""
    schedule = pipeline.maintenance.schedule
    with DAG(
        dag_id=f"{pipeline.name}{MAINTENANCE_SUFFIX}",
        # No interval: it takes care of what is there.
        schedule=CronTriggerTimetable(schedule, timezone="UTC") if schedule else None,
        max_active_runs=1,
        allowed_run_types=NO_BACKFILLS,
        tags=["event-pairing", "maintenance"],
        doc_md=doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        PairingJobOperator(job="maintain_tables", pipeline_file=file)
    return dag


def doc(pipeline: Pipeline) -> str:
    """What the DAG's page in Airflow says."""
    return f"""### The tables of {pipeline.name}

1. **maintain_tables** takes rows out of the tables that are older than the retention settings say, if any is set, and writes them
   into the archive before, if that is set; puts small files together; deletes files and log entries that no reader, retry or rewind can need any more.
"""


for _file in sorted(PIPELINES.glob("*.yaml")):
    with suppress(PipelineError):
        maintenance_dag(load_pipeline(_file), _file)
