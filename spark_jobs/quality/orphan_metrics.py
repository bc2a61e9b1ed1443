"""What the report says of a batch's orphans: when, how old, how near to a partner, and whose they are."""

from __future__ import annotations

from spark_jobs.quality.facts import Facts
from spark_jobs.quality.laws import Steps
from spark_jobs.quality.numbers import ORPHANS, Metrics
from spark_jobs.quality.orphans import BOUNDS_MS
from spark_jobs.tables.ledger import PAIRED

_PARTITIONS = 50
NOBODY = "none"


def orphan_metrics(rows: Steps, counted: Facts) -> Metrics:
    """The metrics of a live batch."""
    batch = (rows[PAIRED].batch_id,)
    metrics: Metrics = {f"hour_{kind}:{hour}": found.number for kind, hour, found in counted.of("hour", batch)}
    for side, kind in zip(("left", "right"), ORPHANS, strict=True):
        metrics |= _ages(side, kind, rows, counted)
        metrics |= {f"miss_{side}:{_bucket(at)}": found.number for _, at, found in counted.of(f"miss_{side}", batch)}
        by_partition = [(found.number, number) for _, number, found in counted.of(f"out_{side}", batch, kind)]
        largest = sorted(by_partition, key=lambda each: (-each[0], each[1]))[:_PARTITIONS]
        metrics |= {f"partition_{kind}:{partition}": number for number, partition in largest}
    metrics |= {f"grace_needed:{_bucket(at)}": found.number for _, at, found in counted.of("grace", batch)}
    metrics["late_healable"] = counted.number("healable", batch)
    return metrics | _users(rows, counted)


def _bucket(at: int | None) -> str:
    return NOBODY if at is None else str(at)


def _ages(side: str, kind: str, rows: Steps, counted: Facts) -> Metrics:
    """How long after its ts an orphan was given up, by the clock that closed its session."""
    found, clock = counted.of(f"alone_{side}", (rows[PAIRED].batch_id,), kind), rows[PAIRED].clock
    if not found or clock is None:
        return {}
    alone = found[0][2]
    # Values are -ts.
    return {f"orphan_age_median_{side}": clock + alone.middle, f"orphan_age_max_{side}": clock + alone.top}


def _users(rows: Steps, counted: Facts) -> Metrics:
    batch = (rows[PAIRED].batch_id,)
    orphans = sum(counted.number("hour", batch, kind) for kind in ORPHANS)
    found = counted.of("user", batch)
    if not found or not orphans:
        return {}
    metrics: Metrics = {f"users:{field}": most.number for field, _, most in found}
    metrics |= {f"top_user:{field}={most.text}": most.top for field, _, most in found}
    return metrics | {"top_user_share": max(most.top for _, _, most in found) / orphans}


def histogram(metrics: Metrics, *families: str) -> dict[int, float]:
    """Upper bound (ms, inclusive) -> number, of several families together; without what is further, or has nobody.

    >>> histogram({"miss_left:100": 2.0, "miss_right:100": 1.0, "miss_left:none": 5.0}, "miss_left", "miss_right")[100]
    3.0
    """
    return {at: sum(metrics.get(f"{family}:{at}", 0.0) for family in families) for at in BOUNDS_MS}
