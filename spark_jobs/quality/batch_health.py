"""What the first screen of a batch's page shows: the pipeline's state when the batch was reported, with what the batch itself has failed."""

from __future__ import annotations

from markupsafe import Markup

from include.config.health import Counts, Lag, State
from include.config.health_panel import panel
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.problems import own_problems
from spark_jobs.quality.trend import METRIC_OF


def health(batch: Batch, state: State | None) -> Markup:
    """The panel. The state counts if it is of this batch: one report may have several."""
    failed, unknown = own_problems(batch)
    if state is not None and state.batch == batch.batch_id:
        known = {problem.name for problem in state.problems}
        more = [problem for problem in failed if problem.name not in known]
        return panel(state.model_copy(update={"problems": (*state.problems, *more)}))
    metrics = batch.metrics
    alone = State(
        pipeline=batch.paired.pipeline.name,
        at=batch.at / 1000,
        batch=batch.batch_id,
        problems=tuple(failed),
        remarks=tuple(unknown),
        lag=Lag(unread=int(metrics.get("backlog", 0))),
    )
    return panel(alone, _counts(batch) if batch.is_live else None, f"Batch {batch.batch_id}")


def _counts(batch: Batch) -> Counts:
    return Counts(**{name: int(batch.metrics.get(metric, 0)) for name, metric in METRIC_OF.items()})
