"""What differs from one kind of sample traffic to another. The default is that of the shipped pipeline: calls, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from include.config.pipeline import Pipeline
from include.sample import bodies
from include.sample.bodies import Broken, Users


@dataclass(frozen=True)
class Traits:
    """What events look like, and how the two sides of a call lie in time.

    `payload`: (generator, side) -> the JSON text of a payload, None for an event without one. `body`: (pipeline, side, users, timestamp,
    payload, extra) -> the bytes of an event, as `bodies.body`. `broken`: every kind of event that must be rejected. `names`: for each key field
    (from the first again, if there are more fields) how its texts begin. `left_first`: the share of calls whose left side is the earlier one.
    `skew_ms`: the two sides of a call are at least so far apart. `turned`: with `key_order: any`, the share of left and of right events that
    have the two key fields in the other order.
    """

    payload: Callable[[Random, int], str | None] = bodies.payload
    body: Callable[[Pipeline, int, Users, str | None, str | None, bool], bytes] = bodies.body
    broken: Callable[[], Iterator[Broken]] = bodies.broken_variants
    names: Sequence[Sequence[str]] = (bodies.GIVEN_NAMES,)
    left_first: float = 0.5
    skew_ms: int = 0
    turned: tuple[float, float] = (0.5, 0.5)


OF_CALLS = Traits()
