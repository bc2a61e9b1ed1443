"""Two DAGs a pipeline file. The live one lands the two topics, pairs their events, publishes the compounds and reports on quality; the
replay DAG pairs intervals again, publishes the difference and reports on it.

Airflow stops scheduling all DAGs of a module that raises, so a file that is refused must not take the pipelines of the other files along.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, TriggerRule, task
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException

from include.pipeline_config import BEFORE_PUBLISH, PIPELINES, REPLAY_SUFFIX, Pipeline, PipelineError
from include.pipeline_file import check_runnable, load_pipeline
from plugins.alerts import run_is_late, task_failed
from plugins.pairing_operator import PairingJobOperator
from plugins.replay_timetable import OnlyBackfills

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
    "release_batch": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Release batch",
        description="With quality.gate: before_publish, publish up to this batch although it failed its checks.",
    ),
}

LAND_ARGUMENTS = [
    "{% if params.max_records %}--max-records={{ params.max_records }}{% endif %}",
    "{% if params.accept_lost_range %}--accept-lost-range={{ params.accept_lost_range }}{% endif %}",
]

PUBLISH_ARGUMENTS = ["{% if params.release_batch %}--release-batch={{ params.release_batch }}{% endif %}"]

_TIME: dict[str, Any] = {"type": ["null", "string"], "format": "date-time"}
REPLAY_PARAMS = {
    "window_start": Param(
        None, **_TIME, title="From", description="First moment of the interval. A backfill has its own and needs none."
    ),
    "window_end": Param(None, **_TIME, title="To", description="First moment after the interval."),
}

REPLAY_ARGUMENTS = [
    "{% if params.window_start %}--window-start={{ params.window_start }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-start={{ data_interval_start.isoformat() }}{% endif %}",
    "{% if params.window_end %}--window-end={{ params.window_end }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-end={{ data_interval_end.isoformat() }}{% endif %}",
]


def live_dag(pipeline: Pipeline, file: Path) -> DAG:
    """The scheduled DAG of one pipeline, named after it."""
    with DAG(
        dag_id=pipeline.name,
        schedule=CronDataIntervalTimetable(pipeline.schedule, timezone="UTC") if pipeline.schedule else None,
        max_active_runs=1,
        params=PARAMS,
        tags=["event-pairing"],
        doc_md=doc(pipeline),
        **_settings(pipeline),
    ) as dag:
        land_events = PairingJobOperator(
            job="land_events", pipeline_file=file, job_arguments=LAND_ARGUMENTS, outlets=raw_assets(pipeline)
        )
        pair_events = PairingJobOperator(job="pair_events", pipeline_file=file, outlets=[compounds_asset(pipeline)])
        then, last = published_and_reported(pipeline, file, PUBLISH_ARGUMENTS)

        land_events >> pair_events >> then >> last
        pair_events >> last
    return dag


def replay_dag(pipeline: Pipeline, file: Path) -> DAG:
    """`<pipeline>_replay`: runs by backfill and by hand, and may do so beside the live DAG at any moment."""
    with DAG(
        dag_id=f"{pipeline.name}{REPLAY_SUFFIX}",
        schedule=OnlyBackfills(pipeline.replay_schedule, timezone="UTC"),
        # Nothing runs before somebody asks for it, so there is nothing to be unpaused for.
        is_paused_upon_creation=False,
        params=REPLAY_PARAMS,
        tags=["event-pairing", "replay"],
        doc_md=replay_doc(pipeline),
        **_settings(pipeline),
    ) as dag:
        replay_interval = PairingJobOperator(
            job="replay_interval",
            pipeline_file=file,
            job_arguments=REPLAY_ARGUMENTS,
            outlets=[compounds_asset(pipeline)],
        )
        then, last = published_and_reported(pipeline, file)

        replay_interval >> then >> last
        replay_interval >> last
    return dag


def published_and_reported(
    pipeline: Pipeline, file: Path, publish_arguments: list[str] | None = None
) -> tuple[PairingJobOperator, PairingJobOperator]:
    """publish_compounds and report_quality, or the other way round with `quality.gate: before_publish`.

    The second one also runs if the first one failed: a batch that could not be published has its page, and the batches before one that
    is held back go out.
    """
    jobs: dict[str, dict[str, Any]] = {
        "publish_compounds": {"outlets": [topic_asset(pipeline)], "job_arguments": publish_arguments},
        "report_quality": {},
    }
    then, last = reversed(jobs) if pipeline.quality.gate == BEFORE_PUBLISH else jobs
    return (
        PairingJobOperator(job=then, pipeline_file=file, **jobs[then]),
        PairingJobOperator(job=last, pipeline_file=file, trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS, **jobs[last]),
    )


def raw_assets(pipeline: Pipeline) -> list[Asset]:
    """The raw tables, for DAGs that are to run when they change; events carry the job's counts."""
    return [Asset(f"{pipeline.name}/raw_{side.payload}", group="event-pairing") for side in pipeline.sides]


def compounds_asset(pipeline: Pipeline) -> Asset:
    """The table of compounds, changed by live runs and by replays."""
    return Asset(f"{pipeline.name}/compound_events", group="event-pairing")


def topic_asset(pipeline: Pipeline) -> Asset:
    """The output topic."""
    return Asset(f"{pipeline.name}/{pipeline.output_topic}", group="event-pairing")


def _settings(pipeline: Pipeline) -> dict[str, Any]:
    # The pool has one slot: the writers of a pipeline come one after the other, whichever of its DAGs they are of.
    default_args = DEFAULT_ARGS | {"pool": pipeline.name, "on_failure_callback": task_failed}
    within = timedelta(milliseconds=pipeline.run_deadline_ms)
    late = AsyncCallback(run_is_late, {"deadline": str(within)})
    deadline = DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, within, late)
    return {"start_date": datetime(2026, 1, 1), "catchup": False, "default_args": default_args, "deadline": deadline}


def doc(pipeline: Pipeline) -> str:
    """What the DAG's page in Airflow says."""
    left, right = pipeline.sides
    return f"""### {left.topic} + {right.topic} → {pipeline.output_topic}

1. **land_events** plans a batch and lands `{left.topic}` and `{right.topic}` into Delta tables.
2. **pair_events** pairs the two sides of each session, tolerance {pipeline.tolerance_ms / 1000:g} s.
{in_order(pipeline, 3)}
"""


def replay_doc(pipeline: Pipeline) -> str:
    """What the replay DAG's page in Airflow says."""
    return f"""### {pipeline.output_topic}: an interval again

Pairs the landed events of an interval again, late ones included, and publishes only what differs from what was published: the
next revision of a compound, a retraction, a new one. The interval must be closed. Three ways to ask for it, all the same:

- **Backfill** in the UI, which gives one run for each interval of `{pipeline.replay_schedule}`;
- `airflow backfill create --dag-id {pipeline.name}{REPLAY_SUFFIX} --from-date … --to-date … [--reprocess-behavior completed]`;
- **Trigger** with `window_start` and `window_end`, for any interval.

1. **replay_interval** finishes what a live batch left unfinished, then pairs the interval and writes the difference.
{in_order(pipeline, 2)}
"""


def in_order(pipeline: Pipeline, first: int) -> str:
    """The last two tasks for the DAG's page, numbered from `first`."""
    gate = pipeline.quality.gate == BEFORE_PUBLISH
    held = ", holding back what failed" if gate else ""
    told = [
        f"**publish_compounds** sends each compound exactly once to `{pipeline.output_topic}`{held}.",
        f"**report_quality** counts everything afresh, writes [the quality page](/quality/{pipeline.name}/index.html), and fails if\n"
        "   an event was lost.",
    ]
    return "\n".join(f"{first + n}. {text}" for n, text in enumerate(reversed(told) if gate else told))


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
    """The DAGs of every file. Raises PipelineError if none of them can be used: then it is an import error, and takes nothing along."""
    dags: list[DAG] = []
    refused: dict[Path, PipelineError] = {}
    for file in files:
        try:
            pipeline = check_runnable(load_pipeline(file))
            dags += [live_dag(pipeline, file), replay_dag(pipeline, file)]
        except PipelineError as error:
            refused[file] = error
    if refused and not dags:
        raise next(iter(refused.values()))
    return dags + [refused_dag(file, refusal) for file, refusal in refused.items()]


all_dags(sorted(PIPELINES.glob("*.yaml")))
