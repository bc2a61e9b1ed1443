"""Two DAGs for each pipeline file.

Live: land_events >> pair_events >> publish_compounds >> report_quality (>> replay_late).
Replay: replay_interval >> publish_compounds >> report_quality.

Airflow stops scheduling all DAGs of a module that raises, so a refused file gets a DAG that shows its error, and the others go on.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException

from include.airflow import params
from include.airflow.dag_settings import (
    DEFAULT_ARGS,
    NO_BACKFILLS,
    compounds_asset,
    dag_settings,
    live_schedule,
    raw_assets,
    topic_assets,
)
from include.airflow.docs import live_doc, refused_doc, replay_doc
from include.airflow.notifiers import check_providers
from include.airflow.operators import LateReplayOperator, PairingJobOperator
from include.airflow.scheduling import OnlyBackfills
from include.config.pipeline import BEFORE_PUBLISH, PIPELINES, REPLAY_SUFFIX, Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline


def live_dag(pipeline: Pipeline, file: Path) -> DAG:
    """The scheduled DAG of one pipeline, named after it."""
    compounds = compounds_asset(pipeline)
    with DAG(
        dag_id=pipeline.name,
        schedule=live_schedule(pipeline),
        max_active_runs=1,
        allowed_run_types=NO_BACKFILLS,
        params=params.LIVE_PARAMS,
        tags=["event-pairing"],
        doc_md=live_doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        job = partial(PairingJobOperator, pipeline_file=file, idle_with=params.REPORT_ONLY)
        land_events = job(job="land_events", job_arguments=params.LAND_ARGUMENTS, outlets=raw_assets(pipeline))
        pair_events = job(job="pair_events", outlets=[compounds])
        publish_compounds = job(
            job="publish_compounds", job_arguments=params.PUBLISH_ARGUMENTS, outlets=topic_assets(pipeline)
        )
        report_quality = job(job="report_quality", job_arguments=params.REPORT_ARGUMENTS, idle_with=None)
        first, last = in_order(pipeline, publish_compounds, report_quality)

        land_events >> pair_events >> first >> last << pair_events

        if pipeline.late == "replay":
            last >> LateReplayOperator(
                pipeline_file=file,
                replay_dag_id=f"{pipeline.name}{REPLAY_SUFFIX}",
                asset=compounds,
                idle_with=params.REPORT_ONLY,
            )
    return dag


def replay_dag(pipeline: Pipeline, file: Path) -> DAG:
    """`<pipeline>_replay`: runs by backfill, by hand and for late events, at any moment beside the live DAG."""
    with DAG(
        dag_id=f"{pipeline.name}{REPLAY_SUFFIX}",
        schedule=OnlyBackfills(pipeline.replay_schedule, timezone="UTC"),
        # Nothing runs by itself, so there is no need to keep it paused.
        is_paused_upon_creation=False,
        params=params.REPLAY_PARAMS,
        tags=["event-pairing", "replay"],
        doc_md=replay_doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        job = partial(PairingJobOperator, pipeline_file=file)
        replay_interval = job(
            job="replay_interval",
            job_arguments=params.REPLAY_ARGUMENTS,
            outlets=[compounds_asset(pipeline)],
            # Most intervals of a long backfill have nothing to correct.
            last_with="nothing_waits",
        )
        publish_compounds = job(job="publish_compounds", outlets=topic_assets(pipeline))
        first, last = in_order(pipeline, publish_compounds, job(job="report_quality"))

        replay_interval >> first >> last << replay_interval
    return dag


def in_order(
    pipeline: Pipeline, publish: PairingJobOperator, report: PairingJobOperator
) -> tuple[PairingJobOperator, PairingJobOperator]:
    """The two tasks in the order of `quality.gate`.

    The second one also runs if the first one failed: a batch that could not be published gets its page, and the batches before one that
    is held back are published.
    """
    first, last = (report, publish) if pipeline.quality.gate == BEFORE_PUBLISH else (publish, report)
    last.trigger_rule = TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
    return first, last


def refused_dag(file: Path, refusal: PipelineError) -> DAG:
    """The DAG of a refused file: fails every hour with the file's error, so the usual failure alerts fire."""
    with DAG(
        dag_id=re.sub(r"[^A-Za-z0-9._-]", "_", file.stem),
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        default_args={"owner": DEFAULT_ARGS["owner"]},
        tags=["event-pairing", "configuration-refused"],
        doc_md=refused_doc(refusal),
    ) as dag:

        @task
        def read_configuration() -> None:
            raise AirflowFailException(str(refusal))

        read_configuration()
    return dag


def all_dags(files: list[Path]) -> None:
    """Makes the DAGs of every file. Raises PipelineError if all are refused: there is then no other DAG that an import error could stop."""
    refused: dict[Path, PipelineError] = {}
    for file in files:
        try:
            pipeline = load_pipeline(file)
            check_providers(pipeline, file)
        except PipelineError as error:
            refused[file] = error
        else:
            live_dag(pipeline, file)
            replay_dag(pipeline, file)
    if refused and len(refused) == len(files):
        raise refused[files[0]]
    for file, refusal in refused.items():
        refused_dag(file, refusal)


all_dags(sorted(PIPELINES.glob("*.yaml")))
