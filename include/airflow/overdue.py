"""Pipelines that stand still: the schedule was due long ago, and no batch was reported since. A paused DAG stands still because somebody wants it so.

Reports cannot say it, since a pipeline that stands still makes none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime
from itertools import islice

from airflow.models.dag import DagModel
from croniter import croniter
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from include.config.health import WARNING, Problem, State
from include.config.pipeline import ON_DATA, PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline
from include.config.time_text import rough

NAME = "overdue"
_RUNBOOK = "docs/runbooks/pipeline-stands-still.md"
_AT_LEAST_S = 3600.0

_log = logging.getLogger(__name__)


def paused(names: Collection[str]) -> set[str]:
    """Those of the DAGs that are paused; empty while the metadata database does not answer, which the page says of the database."""
    from airflow.utils.session import create_session

    try:
        with create_session() as session:
            return set(session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(names), DagModel.is_paused)))
    except SQLAlchemyError as error:
        # Only the type: the text of a database's error may hold its address.
        _log.warning("which DAGs are paused cannot be asked: %s", type(error).__name__)
        return set()


def schedule_of(name: str) -> str | None:
    """The cron expression (UTC) of the pipeline's live DAG; None: runs begin by hand or with records, or the file is refused and has no such DAG."""
    try:
        schedule = load_pipeline(PIPELINES / f"{name}.yaml").schedule
    except PipelineError:
        return None
    return None if schedule == ON_DATA else schedule


def overdue(state: State, schedule: str | None, now: float) -> Problem | None:
    """The problem if a run was due more than two intervals ago and no batch was planned since; of short intervals one and an hour. `now`: epoch s.

    The interval is the one that the missing run begins, so nights and weekends in which nothing is due do not count.
    """
    if schedule is None:
        return None
    due, after = islice(croniter(schedule, state.at, ret_type=float), 2)
    if now - due <= max(2 * (after - due), after - due + _AT_LEAST_S):
        return None
    when = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Problem(
        name=NAME,
        severity=WARNING,
        text=f"no batch is reported after batch {state.batch}: by the schedule {schedule} a run was due at {when}, {rough((now - due) * 1000)} ago",
        batch=state.batch,
        since=due,
        last=now,
        runbook=_RUNBOOK,
    )


def as_of(state: State, is_paused: bool, now: float) -> State:
    """The state with the problem that no run has come, if that is so at `now` (epoch s) and the DAG is not paused."""
    problem = None if is_paused else overdue(state, schedule_of(state.pipeline), now)
    return state if problem is None else state.model_copy(update={"problems": (problem, *state.problems)})
