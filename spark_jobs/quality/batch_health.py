"""What the first screen of a batch's page shows: the pipeline's state when the batch was reported, with what the batch itself has failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from markupsafe import Markup

from include.config.advice import runbook_of
from include.config.health import Counts, Lag, Problem, State, read_state
from include.config.health_panel import panel
from include.config.store import Store
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import SIDES
from spark_jobs.quality.silence import checked_sentences, notices
from spark_jobs.quality.suite import CRITICAL, INFO, Judged


def health(pages: Store, batch: Batch) -> Markup:
    """The panel. The state file counts if it is of this batch: one report may have several, and older versions wrote none."""
    stored, own = read_state(pages), [*_problems(batch)]
    if stored is not None and (stored.pipeline, stored.batch) == (batch.paired.pipeline.name, batch.batch_id):
        known = {problem.name for problem in stored.problems}
        more = [problem for problem in own if problem.name not in known]
        return panel(stored.model_copy(update={"problems": (*stored.problems, *more)}))
    metrics = batch.metrics
    state = State(
        pipeline=batch.paired.pipeline.name,
        at=batch.at / 1000,
        batch=batch.batch_id,
        problems=tuple(own),
        lag=Lag(unread=int(metrics.get("backlog", 0))),
    )
    return panel(state, _counts(batch) if batch.is_live else None, f"Batch {batch.batch_id}")


def _problems(batch: Batch) -> Iterator[Problem]:
    """The checks that the batch has not passed."""
    at, sentences = batch.at / 1000, checked_sentences(notices(batch.paired.pipeline, batch.metrics))
    for judged in batch.verdict.checks if batch.verdict else ():
        if not judged.passed:
            check = judged.check
            text = check.sentence if check.severity == INFO or check.metric in sentences else _broken(judged)
            severity: Literal["warning", "failed"] = "failed" if check.severity == CRITICAL else "warning"
            yield Problem(
                name=check.metric,
                severity=severity,
                text=text,
                batch=batch.batch_id,
                since=at,
                last=at,
                runbook=runbook_of(check.metric),
            )


def _broken(judged: Judged) -> str:
    check, observed = judged.check, "nothing" if judged.observed is None else f"{judged.observed:g}"
    allowed = f"{check.least:g}" if check.least == check.most else f"{check.least:g} to {check.most:g}"
    return f"does not hold: {check.sentence} ({observed}, allowed {allowed})"


def _counts(batch: Batch) -> Counts:
    numbers = {name: int(batch.metrics.get(name, 0)) for name in Counts.model_fields}
    late = sum(int(batch.metrics.get(f"late_{side}", 0)) for side in SIDES)
    return Counts(**numbers | {"late": late})
