"""A small picture of distances in letters."""

from __future__ import annotations

import numpy as np

from include.config.time_text import duration

_WIDTH = 40
# At both ends a few are left out, so that one stray distance does not squeeze the rest.
_LEFT_OUT = 0.005


def histogram(lags: np.ndarray, bins: int = 12) -> list[str]:
    """Lines that show how often distances (ms, signed) occur: from, a bar, how often. Empty without any.

    >>> print("\\n".join(histogram(np.array([-500] * 4 + [0] * 2 + [999]), bins=3)))
    -500ms  ########################################  4
       0ms  ####################                      2
     500ms  ##########                                1
    """
    if not len(lags):
        return []
    low, high = np.quantile(lags, (_LEFT_OUT, 1 - _LEFT_OUT), method="nearest")
    step = _step(max(int(high - low) // bins + 1, 1))
    first = int(low) // step
    counts = np.bincount((lags[(lags >= low) & (lags <= high)] // step - first).astype(int))
    names = [signed((first + number) * step) for number in range(len(counts))]
    longest = max(map(len, names))
    return [
        f"{name:>{longest}}  {'#' * -(-int(count) * _WIDTH // int(counts.max())):{_WIDTH}}  {count}"
        for name, count in zip(names, counts, strict=True)
    ]


def signed(ms: int) -> str:
    """A duration with its sign.

    >>> signed(-1500), signed(0)
    ('-1s500ms', '0ms')
    """
    return f"-{duration(-ms)}" if ms < 0 else duration(ms)


def _step(least: int) -> int:
    """A round number of ms of at least so many.

    >>> [_step(each) for each in (1, 3, 420, 70_000)]
    [1, 5, 500, 120000]
    """
    units = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000)
    return next(unit * times for unit in units for times in (1, 2, 5) if unit * times >= least)
