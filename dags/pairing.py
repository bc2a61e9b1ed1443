"""Two DAGs a pipeline file. The live one lands the two topics, pairs their events, publishes the compounds and reports on quality; the
replay DAG pairs intervals again, publishes the difference and reports on it.

Airflow stops scheduling all DAGs of a module that raises, so a file that is refused must not take the pipelines of the other files along.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException

from include.airflow.assets import compounds_asset, raw_assets, topic_asset
from include.airflow.dag_docs import live_doc, refused_doc, replay_doc
from include.airflow.dag_params import (
    LAND_ARGUMENTS,
    LIVE_PARAMS,
    PUBLISH_ARGUMENTS,
    REPLAY_ARGUMENTS,
    REPLAY_PARAMS,
    REPORT_ARGUMENTS,
    REPORT_ONLY,
)
from include.airflow.dag_settings import DEFAULT_ARGS, NO_BACKFILLS, dag_settings
from include.airflow.late_replays import LateReplayOperator
from include.airflow.live_schedule import live_schedule
from include.airflow.operator import PairingJobOperator
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
        params=LIVE_PARAMS,
        tags=["event-pairing"],
        doc_md=live_doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        submit = partial(PairingJobOperator, pipeline_file=file, idle_with=REPORT_ONLY)
        land_events = submit(job="land_events", job_arguments=LAND_ARGUMENTS, outlets=raw_assets(pipeline))
        pair_events = submit(job="pair_events", outlets=[compounds])
        publish = {"job_arguments": PUBLISH_ARGUMENTS, "outlets": [topic_asset(pipeline)]}
        then, last = published_and_reported(
            pipeline, submit, publish, {"job_arguments": REPORT_ARGUMENTS, "idle_with": None}
        )

        land_events >> pair_events >> then >> last
        pair_events >> last

        if pipeline.late == "replay":
            last >> LateReplayOperator(
                pipeline_file=file, replay_dag_id=f"{pipeline.name}{REPLAY_SUFFIX}", asset=compounds, idle_with=REPORT_ONLY
            )
    return dag


def replay_dag(pipeline: Pipeline, file: Path) -> DAG:
    """`<pipeline>_replay`: runs by backfill, by hand and for late events, and may do so beside the live DAG at any moment."""
    with DAG(
        dag_id=f"{pipeline.name}{REPLAY_SUFFIX}",
        schedule=OnlyBackfills(pipeline.replay_schedule, timezone="UTC"),
        # Nothing runs before somebody asks for it, so there is nothing to be unpaused for.
        is_paused_upon_creation=False,
        params=REPLAY_PARAMS,
        tags=["event-pairing", "replay"],
        doc_md=replay_doc(pipeline),
        **dag_settings(pipeline),
    ) as dag:
        submit = partial(PairingJobOperator, pipeline_file=file)
        replay_interval = submit(job="replay_interval", job_arguments=REPLAY_ARGUMENTS, outlets=[compounds_asset(pipeline)])
        then, last = published_and_reported(pipeline, submit, {"outlets": [topic_asset(pipeline)]}, {})

        replay_interval >> then >> last
        replay_interval >> last
    return dag


def published_and_reported(
    pipeline: Pipeline, submit: Callable[..., PairingJobOperator], publish: dict[str, Any], report: dict[str, Any]
) -> tuple[PairingJobOperator, PairingJobOperator]:
    """publish_compounds and report_quality, or the other way round with `quality.gate: before_publish`, with these arguments.

    The second one also runs if the first one failed: a batch that could not be published has its page, and the batches before one that
    is held back go out.
    """
    both = [partial(submit, job="publish_compounds", **publish), partial(submit, job="report_quality", **report)]
    then, last = reversed(both) if pipeline.quality.gate == BEFORE_PUBLISH else both
    return then(), last(trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS)


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
        doc_md=refused_doc(refusal),
    ) as dag:

        @task
        def read_configuration() -> None:
            raise AirflowFailException(str(refusal))

        read_configuration()
    return dag


def all_dags(files: list[Path]) -> list[DAG]:
    """The DAGs of every file. Raises PipelineError if none of them can be used: then it is an import error, and takes nothing along."""
    dags: list[DAG] = []
    refused: dict[Path, PipelineError] = {}
    for file in files:
        try:
            pipeline = load_pipeline(file)
            dags += [live_dag(pipeline, file), replay_dag(pipeline, file)]
        except PipelineError as error:
            refused[file] = error
    if refused and not dags:
        raise next(iter(refused.values()))
    return dags + [refused_dag(file, refusal) for file, refusal in refused.items()]


all_dags(sorted(PIPELINES.glob("*.yaml")))
