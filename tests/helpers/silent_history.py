"""A made-up history in which one side falls silent and comes back; its topic has a hostile name."""

from __future__ import annotations

from dataclasses import replace

from include.config.pipeline import Side
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import SIDES
from spark_jobs.quality.silence import LandedSide, _carried, _judged, next_states, state_of
from spark_jobs.tables.ledger_rows import PAIRED
from tests.helpers.batch_history import history
from tests.helpers.timeline import CALLS

HOSTILE = "<img src=x onerror=window.hurt=1>"
NAMED = replace(CALLS, left=Side(HOSTILE, "analytics"))


def silent_history(batches: int, first: int, back: int) -> list[Batch]:
    """So many batches, five minutes apart. The left side is called silent from batch `first` on, until batch `back` has a record of it."""
    found: list[Batch] = []
    metrics: dict[str, float] = {}
    for number, batch in enumerate(history(batches), 1):
        now = batch.steps[PAIRED].wall_time
        # Longer than 30 minutes are eight batches without.
        absent = first - 8 < number < back
        landed = [LandedSide(0 if absent else 5, 0, now, now, True), LandedSide(5, 0, now, now, True)]
        old = [state_of(metrics, side) for side in SIDES]
        new = next_states(NAMED.quality, now, old, landed, [0, 100 if absent else 0], 0 if absent else 100)
        metrics = batch.metrics | _carried(new) | _judged(old, new) | {"live": 1.0, "wall_time": float(now)}
        steps = {step: replace(row, config=NAMED.to_json()) for step, row in batch.steps.items()}
        found.append(replace(batch, metrics=metrics, steps=steps))
    return found
