"""The shapes of sample calls, constructed so that the right pairing is known without pairing code.

A call is (left, right): when each side reports, in ms from an arbitrary zero, None for a side that never does. A session is a list of calls, a
shape a list of sessions in order of time. Pairing must find exactly the calls:

- A call alone in its session is a pair because its sides are within the limit. Sides beyond the limit are written as two calls.
- In a chain, events of different calls are further apart than the two sides of any call, and events are missing on one side only. So the nearest
  event to each event of the side with fewer events is its own partner, all these pairs are possible together, and no other set of pairs is as
  large and as close.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from include.config.pipeline import Pipeline

Call = tuple[int | None, int | None]
Session = list[Call]
Shape = list[Session]

LONGEST_CHAIN = 5


@dataclass(frozen=True)
class Timing:
    """A pipeline's durations for shapes, in ms, all inclusive.

    `limit`: the largest distance of the two sides of a lone call that is a pair. `jitter`: the same inside a chain.
    `room`: the longest span of a shape; a longer one is not drawn. `skew`: the two sides of a call are at least so far apart, in a chain at most
    the jitter. `left_first`: the share of calls whose left side is the earlier one.
    """

    limit: int
    gap: int
    jitter: int
    room: int
    longest_session: int
    skew: int = 0
    left_first: float = 0.5

    @staticmethod
    def of(pipeline: Pipeline, room: int | None = None, skew: int = 0, left_first: float = 0.5) -> Timing:
        """`room` is by default enough for every shape."""
        gap = pipeline.gap_ms
        # collapse makes one compound of a session, so only the gap separates two sides.
        limit = gap if pipeline.matching == "collapse" else min(pipeline.tolerance_ms, gap)
        jitter = min(limit, gap // 4)
        enough = LONGEST_CHAIN * (gap + jitter + 1)
        return Timing(limit, gap, jitter, enough if room is None else room, pipeline.max_session_ms, skew, left_first)


def pair(rng: Random, timing: Timing) -> Shape:
    """Both sides, mostly as close together as the skew lets them, at most the limit apart, either one first."""
    draw, most = rng.random(), min(timing.limit, timing.room)
    least = min(timing.skew, most)
    apart = least + int(draw**3 * (most - least + 1))
    return [[(0, apart)]] if rng.random() < timing.left_first else [[(apart, 0)]]


def left_only(rng: Random, timing: Timing) -> Shape:
    """The right side never reports."""
    return [[(0, None)]]


def right_only(rng: Random, timing: Timing) -> Shape:
    """The left side never reports."""
    return [[(None, 0)]]


def chain(rng: Random, timing: Timing) -> Shape | None:
    """Two to five calls of one pair of users in one session; every fourth silence between them is exactly the gap."""
    return _chain(rng, timing, orphans=False)


def chain_with_orphans(rng: Random, timing: Timing) -> Shape | None:
    """A chain in which one side misses one call or more, with other events of that side near enough to be paired by mistake."""
    return _chain(rng, timing, orphans=True)


def _chain(rng: Random, timing: Timing, orphans: bool) -> Shape | None:
    step = timing.gap + timing.jitter
    longest = min(LONGEST_CHAIN, 1 + (min(timing.room, timing.longest_session) - timing.jitter) // step)
    if longest < 2:
        return None
    length = rng.randint(2, longest)
    missed = rng.sample(range(length), rng.randint(1, length - 1)) if orphans else []
    misses_left = rng.random() < 0.5
    calls: Session = []
    start = 0
    for position in range(length):
        if position in missed:
            calls.append((None, start) if misses_left else (start, None))
        else:
            apart = rng.randint(min(timing.skew, timing.jitter), timing.jitter)
            calls.append((start, start + apart) if rng.random() < timing.left_first else (start + apart, start))
            start += apart
        start += timing.gap if rng.random() < 0.25 else rng.randint(timing.gap // 2 + 1, timing.gap)
    return [calls]


def silence(rng: Random, timing: Timing) -> Shape | None:
    """Two calls of one pair of users with a silence between them that is longer than the gap by 1 ms or more: two sessions."""
    first, second = pair(rng, timing), pair(rng, timing)
    extra = 1 if rng.random() < 0.5 else rng.randint(1, timing.gap)
    start = latest(first[0]) + timing.gap + extra
    shape = [*first, *moved(second, start)]
    return shape if latest(shape[-1]) <= timing.room else None


def at_limit(rng: Random, timing: Timing) -> Shape | None:
    """The two sides exactly the limit apart: a pair."""
    if timing.limit > timing.room:
        return None
    return [[(0, timing.limit)]] if rng.random() < timing.left_first else [[(timing.limit, 0)]]


def beyond_limit(rng: Random, timing: Timing) -> Shape | None:
    """The two sides 1 ms beyond the limit: two orphans, in one session if the gap is longer than that."""
    apart = timing.limit + 1
    if apart > timing.room:
        return None
    first, second = ((0, None), (None, apart)) if rng.random() < 0.5 else ((None, 0), (apart, None))
    return [[first, second]] if apart <= timing.gap else [[first], [second]]


# Shares of the shapes; the rest are pairs. The caller sets the shares of orphans.
RARE_SHAPES: dict[Callable[[Random, Timing], Shape | None], float] = {
    chain: 0.03,
    chain_with_orphans: 0.01,
    silence: 0.01,
    at_limit: 0.005,
    beyond_limit: 0.005,
}


def latest(session: Session) -> int:
    """The time of the session's last event."""
    return max([at for call in session for at in call if at is not None])


def moved(shape: Shape, by: int) -> Shape:
    """The shape, shifted by `by` ms."""
    return [
        [(None if left is None else left + by, None if right is None else right + by) for left, right in session]
        for session in shape
    ]


def compounds(session: Session, matching: str) -> list[Call]:
    """The compounds of a session as (left, right) times: its calls, or for `collapse` the first event of each side.

    >>> compounds([(0, 5), (60, None)], "one_to_one"), compounds([(0, 5), (60, None)], "collapse")
    ([(0, 5), (60, None)], [(0, 5)])
    """
    if matching != "collapse":
        return session
    lefts = [left for left, _ in session if left is not None]
    rights = [right for _, right in session if right is not None]
    return [(min(lefts, default=None), min(rights, default=None))]
