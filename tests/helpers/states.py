"""States of a pipeline as its reports leave them, made by hand."""

from __future__ import annotations

import math

from include.config.health import Acknowledgement, Counts, Lag, Problem, State
from tests.helpers.batch_history import END

AT = END.timestamp()
SILENT = Problem(
    name="silent_left",
    severity="warning",
    text="analyticsTopic has been silent since 2026-01-31 11:05 UTC: 312 right_only since; metricsTopic goes on, up to 2026-01-31 12:00 UTC",
    batch=297,
    since=AT - 900,
    last=AT,
    runbook="docs/runbooks/topic-silent.md",
)
BROKEN = Problem(
    name="pairing_difference_left",
    severity="failed",
    text="does not hold: every event is in a compound, open, collapsed or rejected (left) (-3, allowed 0)",
    batch=299,
    since=AT - 300,
    last=AT,
    runbook="docs/runbooks/counts-do-not-add-up.md",
)
TAKEN = Problem(
    name="orphan_ratio_deviation",
    severity="warning",
    text="the orphan ratio is 6.5 spreads above that of the batches before",
    batch=290,
    since=AT - 3_000,
    last=AT - 600,
    runbook="docs/runbooks/orphans.md",
    acknowledged=Acknowledgement(by="ann", at=AT - 200, note="the right service restarts"),
)


def made_up_state(batch: int, *problems: Problem, pipeline: str = "calls") -> State:
    """A day of a pipeline up to END, with this newest batch."""
    hours = tuple(_hour(hour) for hour in range(24))
    day = _sum(hours)
    week = Counts(**{name: 7 * number for name, number in day.model_dump().items()})
    return State(
        pipeline=pipeline, at=AT, batch=batch, problems=problems, hours=hours, windows={"1h": hours[-1], "24h": day, "7d": week},
        lag=Lag(unread=1_204, oldest_unread=AT - 14, oldest_open=AT - 260),
    )  # fmt: skip


def _hour(hour: int) -> Counts:
    landed = round(90_000 * (1 + 0.8 * math.sin((hour - 3) / 24 * 2 * math.pi)))
    late = hour * 7 % 60
    return Counts(
        landed=landed, pair=round(landed * 0.47), left_only=round(landed * 0.02), right_only=round(landed * 0.013), rejected=late * 8,
        late=late, late_healable=late // 2,
    )  # fmt: skip


def _sum(counts: tuple[Counts, ...]) -> Counts:
    return Counts(**{name: sum(getattr(each, name) for each in counts) for name in Counts.model_fields})
