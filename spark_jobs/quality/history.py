"""A batch against those before it: median and median absolute deviation of the comparable ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import sqrt
from statistics import median

from include.config.pipeline import FEWEST_BATCHES
from spark_jobs.quality.batch import Batch

# Makes the median absolute deviation of normal values their standard deviation.
_MAD_TO_SIGMA = 1.4826
ANY, SAME_HOUR, SAME_WEEKDAY_AND_HOUR = 0, 1, 2


def comparable(at: int, before: Sequence[Batch]) -> tuple[Sequence[Batch], int]:
    """The live batches with compounds of the same weekday and hour (UTC) as `at` (epoch ms); if these are too few, of the same hour; else all.
    With what they have in common.
    """
    live = [past for past in before if past.is_live and past.metrics.get("compounds", 0.0) > 0]
    hour = [past for past in live if _moment(past.at).hour == _moment(at).hour]
    weekday = [past for past in hour if _moment(past.at).weekday() == _moment(at).weekday()]
    for found, by in ((weekday, SAME_WEEKDAY_AND_HOUR), (hour, SAME_HOUR)):
        # The last hour or two are of this weekday and hour, too: they alone would say nothing about weekdays.
        if len({_moment(past.at).date() for past in found}) > 1 and len(found) >= FEWEST_BATCHES:
            return found, by
    return live, ANY


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def ratio_against(ratio: float, compounds: float, before: Sequence[float]) -> dict[str, float]:
    """How far an orphan ratio is from the ones before, in spreads; empty if there are too few.

    The spread is never narrower than what chance does to a batch of so many compounds.

    >>> {name: round(number, 3) for name, number in ratio_against(0.5, 400, [0.1] * 8).items()}
    {'orphan_ratio_median': 0.1, 'orphan_ratio_spread': 0.015, 'orphan_ratio_deviation': 26.434}
    """
    if len(before) < FEWEST_BATCHES or not compounds:
        return {}
    middle = median(before)
    mad = median(abs(each - middle) for each in before)
    # With one orphan more and one pair more, so that there is chance where the median is 0 or 1, too.
    likely = (middle * compounds + 1) / (compounds + 2)
    spread = max(_MAD_TO_SIGMA * mad, sqrt(likely * (1 - likely) / compounds))
    deviation = (ratio - middle) / spread
    return {"orphan_ratio_median": middle, "orphan_ratio_spread": spread, "orphan_ratio_deviation": deviation}


def drift_against(skew: float, before: Sequence[float]) -> dict[str, float]:
    """How far the median of right ts - left ts has moved (ms); empty if there are too few before.

    >>> drift_against(250, [100] * 8), drift_against(250, [100] * 7)
    ({'skew_before': 100.0, 'skew_drift': 150.0}, {})
    """
    if len(before) < FEWEST_BATCHES:
        return {}
    return {"skew_before": median(before), "skew_drift": skew - median(before)}
