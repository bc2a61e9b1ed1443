"""What the first screen of a batch's page shows: the pipeline's state when the batch was reported, with what the batch itself has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from markupsafe import Markup

from include.config.health import Counts, Lag, Problem, State
from include.config.health_panel import panel
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import SIDES
from spark_jobs.quality.problem_texts import problem_text, runbook_of
from spark_jobs.quality.suite import CRITICAL, INFO


def health(batch: Batch, state: State | None) -> Markup:
    """The panel. The state counts if it is of this batch: one report may have several."""
    own = [*_problems(batch)]
    if state is not None and state.batch == batch.batch_id:
        known = {problem.name for problem in state.problems}
        more = [problem for problem in own if problem.name not in known]
        return panel(state.model_copy(update={"problems": (*state.problems, *more)}))
    metrics = batch.metrics
    alone = State(
        pipeline=batch.paired.pipeline.name,
        at=batch.at / 1000,
        batch=batch.batch_id,
        problems=tuple(own),
        lag=Lag(unread=int(metrics.get("backlog", 0))),
    )
    return panel(alone, _counts(batch) if batch.is_live else None, f"Batch {batch.batch_id}")


def _problems(batch: Batch) -> Iterator[Problem]:
    """The checks that the batch has not passed."""
    at = batch.at / 1000
    for judged in batch.verdict.checks if batch.verdict else ():
        if not judged.passed:
            check = judged.check
            severity: Literal["warning", "failed"] = "failed" if check.severity == CRITICAL else "warning"
            yield Problem(
                name=check.metric,
                severity=severity,
                text=check.sentence if check.severity == INFO else problem_text(batch, judged),
                batch=batch.batch_id,
                since=at,
                last=at,
                runbook=runbook_of(check.metric),
            )


def _counts(batch: Batch) -> Counts:
    numbers = {name: int(batch.metrics.get(name, 0)) for name in Counts.model_fields}
    late = sum(int(batch.metrics.get(f"late_{side}", 0)) for side in SIDES)
    return Counts(**numbers | {"late": late})
