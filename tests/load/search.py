"""The search for the highest rate that holds: doubling or halving until one rate holds and another does not, then bisection."""

from __future__ import annotations

from collections.abc import Callable

# The two rates are near enough when one is at most so many times the other.
NEAR_ENOUGH = 1.2
# A rate that does not hold for long is lowered by this factor, again and again.
LOWERED = 0.7
# Below this many calls a second nothing is worth a search.
LEAST = 10.0


def highest_rate(holds: Callable[[float], bool], first: float, near_enough: float = NEAR_ENOUGH) -> float | None:
    """The highest rate found for which `holds` was true, within a factor of `near_enough`; None if not even LEAST holds.

    >>> asked = []
    >>> round(highest_rate(lambda rate: asked.append(rate) or rate <= 700, 200))
    673
    >>> [round(rate) for rate in asked]
    [200, 400, 800, 566, 673]
    """
    held, refused = _around(holds, first)
    if held is None:
        return None
    while refused > near_enough * held:
        middle = (held * refused) ** 0.5
        if holds(middle):
            held = middle
        else:
            refused = middle
    return held


def _around(holds: Callable[[float], bool], first: float) -> tuple[float | None, float]:
    """A rate that holds (None: there is none) and the double of it, which does not."""
    rate = first
    if holds(rate):
        while holds(rate * 2):
            rate *= 2
        return rate, rate * 2
    while rate / 2 >= LEAST:
        rate /= 2
        if holds(rate):
            return rate, rate * 2
    return None, rate


def confirmed(holds: Callable[[float], bool], found: float) -> float | None:
    """The first of `found` and the rates below it, each LOWERED times the one before, that holds for long; None if not even LEAST does.

    A short window does not see what grows: the events that are still open, and the replays and backfills beside it.

    >>> confirmed(lambda rate: rate <= 500, 1000.0)
    490.0
    """
    while not holds(found):
        found *= LOWERED
        if found < LEAST:
            return None
    return round(found, 3)
