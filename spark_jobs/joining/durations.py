"""Tolerance, gap, grace and the other durations of a pipeline, from what the sample shows. All in ms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from include.config.setting_types import LONGEST_MS, MS_PER_UNIT
from spark_jobs.joining.fields import ABSENT
from spark_jobs.joining.lags import Lags, Peak
from spark_jobs.joining.times import TimeField, is_loaded

_S, _M, _H = MS_PER_UNIT["s"], MS_PER_UNIT["m"], MS_PER_UNIT["h"]
_ROUND = [
    *(each * _S for each in (1, 2, 5, 10, 15, 20, 30, 45)),
    *(each * _M for each in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(each * _H for each in (1, 2, 3, 6, 12, 24, 48, 96, 192)),
]
# The largest distance of the sample is not the largest there will be.
_ROOM, _ROOM_LATE = 1.2, 1.5
_NEARLY_ALL = 0.995
_NEARLY_ALL_LATE = 0.999
# A few times far in the future are mistakes, which are rejected.
_MOST_AHEAD = 0.99
_DEFAULT_FUTURE, _DEFAULT_SESSION = 5 * _M, _H
_GUESSED = 5 * _M


class Durations(NamedTuple):
    """Settings, and what they come from. `max_future`, `max_session`: None where the default will do.

    `skew`: the median lag (right − left) of the nearest events of both sides; `lags`: theirs, ascending. `arrival`: how long after their times
    nearly all events arrive, by side; `is_loaded`: records were written later, so this says nothing of their producers, and grace is a guess.
    """

    tolerance: int
    gap: int
    grace: int
    max_future: int | None
    max_session: int | None
    skew: int
    lags: np.ndarray
    arrival: tuple[int, int]
    is_loaded: bool


def choose_durations(
    lags: Lags, peak: Peak, left: TimeField, right: TimeField, stamps: tuple[np.ndarray, np.ndarray]
) -> Durations:
    """`lags`: of the chosen key; `stamps`: record timestamps of both sides."""
    reach = lags.whole(peak).width
    near = lags.nearest(peak.center)
    near = np.sort(near[np.abs(near - peak.center) <= reach])
    tolerance = round_up(float(np.quantile(np.abs(near), _NEARLY_ALL)) * _ROOM)
    arrival = tuple(_quantile(stamp, time.at, _NEARLY_ALL_LATE) for time, stamp in zip((left, right), stamps, strict=True))
    ahead = max(_quantile(time.at, stamp, _MOST_AHEAD) for time, stamp in zip((left, right), stamps, strict=True))
    guessed = any(is_loaded(time, stamp) for time, stamp in zip((left, right), stamps, strict=True))
    grace = _GUESSED if guessed else max(round_up(max(arrival) * _ROOM_LATE), _M)
    return Durations(
        tolerance,
        tolerance,
        grace,
        round_up(ahead * _ROOM_LATE) if ahead * _ROOM_LATE > _DEFAULT_FUTURE else None,
        round_up(4.0 * tolerance) if 4 * tolerance > _DEFAULT_SESSION else None,
        int(np.median(near)),
        near,
        (arrival[0], arrival[1]),
        guessed,
    )


def round_up(ms: float) -> int:
    """The next duration that people would write, from a second to a year.

    >>> round_up(0), round_up(1_001), round_up(61_000), round_up(10**12) == LONGEST_MS
    (1000, 2000, 120000, True)
    """
    return next((each for each in _ROUND if each >= ms), LONGEST_MS)


def _quantile(later: np.ndarray, earlier: np.ndarray, share: float) -> int:
    """How much later nearly all of them are, at least 0."""
    is_sound = (later != ABSENT) & (earlier != ABSENT)
    return max(int(np.quantile((later - earlier)[is_sound], share)), 0) if is_sound.any() else 0
