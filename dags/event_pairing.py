"""One live DAG a pipeline file: land the two topics, pair their events, publish the compounds, report on quality.

Airflow stops scheduling all DAGs of a module that raises, so a file that is refused must not take the pipelines of the other files along.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, Param, task
from airflow.sdk.exceptions import AirflowFailException

from include.pipeline_config import Pipeline, PipelineError, check_runnable, load_pipeline
from plugins.pairing_operator import PairingJobOperator

PIPELINES = Path(__file__).resolve().parents[1] / "include" / "pipelines"

DEFAULT_ARGS = {
    "owner": "data-engineering",
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(hours=2),
}

PARAMS = {
    "max_records": Param(
        None, type=["null", "integer"], minimum=1, title="Records at most", description="Instead of max_records_per_batch."
    ),
    "accept_lost_range": Param(
        None,
        type=["null", "string"],
        pattern=r"^[A-Za-z0-9._-]+-\d+:\d+-\d+( [A-Za-z0-9._-]+-\d+:\d+-\d+)*$",
        title="Accept lost ranges",
        description="Go on without these records, which the broker no longer has; copy the ranges from the failed task.",
    ),
}

LAND_ARGUMENTS = [
    "{% if params.max_records %}--max-records={{ params.max_records }}{% endif %}",
    "{% if params.accept_lost_range %}--accept-lost-range={{ params.accept_lost_range }}{% endif %}",
]


def live_dag(pipeline: Pipeline, file: Path) -> DAG:
    """The scheduled DAG of one pipeline, named after it."""
    with DAG(
        dag_id=pipeline.name,
        schedule=CronDataIntervalTimetable(pipeline.schedule, timezone="UTC") if pipeline.schedule else None,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        default_args=DEFAULT_ARGS,
        params=PARAMS,
        tags=["event-pairing"],
        doc_md=doc(pipeline),
    ) as dag:
        land_events = PairingJobOperator(job="land_events", pipeline_file=file, job_arguments=LAND_ARGUMENTS)
        pair_events = PairingJobOperator(job="pair_events", pipeline_file=file)
        publish_compounds = PairingJobOperator(job="publish_compounds", pipeline_file=file)
        report_quality = PairingJobOperator(job="report_quality", pipeline_file=file)

        land_events >> pair_events >> publish_compounds >> report_quality
    return dag


def doc(pipeline: Pipeline) -> str:
    """What the DAG's page in Airflow says."""
    left, right = pipeline.sides
    return f"""### {left.topic} + {right.topic} → {pipeline.output_topic}

1. **land_events** plans a batch and lands `{left.topic}` and `{right.topic}` into Delta tables.
2. **pair_events** pairs the two sides of each session, tolerance {pipeline.tolerance_ms / 1000:g} s.
3. **publish_compounds** sends each compound exactly once to `{pipeline.output_topic}`.
4. **report_quality** counts everything afresh, writes [the quality page](/quality/{pipeline.name}/index.html), and fails if
   an event was lost.
"""


def refused_dag(file: Path, refusal: PipelineError) -> DAG:
    """In the place of a refused file's DAG: fails every hour, and says why, so that whoever is told of failures is told of this one."""
    with DAG(
        dag_id=re.sub(r"[^A-Za-z0-9._-]", "_", file.stem),
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        default_args={"owner": DEFAULT_ARGS["owner"]},
        tags=["event-pairing", "configuration-refused"],
        doc_md=f"### Configuration refused\n\n`{refusal}`",
    ) as dag:

        @task
        def read_configuration() -> None:
            raise AirflowFailException(str(refusal))

        read_configuration()
    return dag


def all_dags(files: list[Path]) -> list[DAG]:
    """The DAG of every file. Raises PipelineError if none of them can be used: then it is an import error, and takes nothing along."""
    dags: list[DAG] = []
    refused: dict[Path, PipelineError] = {}
    for file in files:
        try:
            dags.append(live_dag(check_runnable(load_pipeline(file)), file))
        except PipelineError as error:
            refused[file] = error
    if refused and not dags:
        raise next(iter(refused.values()))
    return dags + [refused_dag(file, refusal) for file, refusal in refused.items()]


all_dags(sorted(PIPELINES.glob("*.yaml")))
