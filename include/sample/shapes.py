"""The shapes sample calls come in, each laid out so that its pairing is plain from its construction.

A call is (left, right): when each side reports, in ms from an arbitrary zero, None where that side never does. A session
is a list of calls, a shape a list of sessions in order of time. What is written down as one call is what pairing must find:

- alone in its session, a call pairs because its sides are within the limit, and is written as two calls where they are not;
- chained, events of different calls are further apart than the two sides of any call, and what is missing is missing on
  one side only. So every event of the side that has fewer has its own partner strictly nearest, all can have theirs at
  once, and no other set of pairs is as large and as close.
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
    """A pipeline's durations as shapes need them, in ms, all inclusive.

    `limit`: the two sides of a lone call this far apart still make one compound. `jitter`: the same inside a chain.
    `room`: no shape spans more; a shape that would is not drawn.
    """

    limit: int
    gap: int
    jitter: int
    room: int
    longest_session: int

    @staticmethod
    def of(pipeline: Pipeline, room: int | None = None) -> Timing:
        """`room` is by default enough for every shape."""
        gap = pipeline.gap_ms
        # collapse makes one compound of whatever shares a session, so there only the gap parts two sides
        limit = gap if pipeline.matching == "collapse" else min(pipeline.tolerance_ms, gap)
        jitter = min(limit, gap // 4)
        enough = LONGEST_CHAIN * (gap + jitter + 1)
        return Timing(limit, gap, jitter, enough if room is None else room, pipeline.max_session_ms)


def pair(rng: Random, timing: Timing) -> Shape:
    """Both sides, mostly close together, up to the limit apart, either first."""
    draw = rng.random()
    apart = int(draw**3 * (min(timing.limit, timing.room) + 1))
    return [[(0, apart)]] if rng.random() < 0.5 else [[(apart, 0)]]


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
    """A chain in which one side misses one call or more, though others of its events are near enough to be mistaken."""
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
            apart = rng.randint(0, timing.jitter)
            calls.append((start, start + apart) if rng.random() < 0.5 else (start + apart, start))
            start += apart
        start += timing.gap if rng.random() < 0.25 else rng.randint(timing.gap // 2 + 1, timing.gap)
    return [calls]


def silence(rng: Random, timing: Timing) -> Shape | None:
    """Two calls of one pair of users parted by a silence longer than the gap, by 1 ms or more: two sessions."""
    first, second = pair(rng, timing), pair(rng, timing)
    extra = 1 if rng.random() < 0.5 else rng.randint(1, timing.gap)
    start = latest(first[0]) + timing.gap + extra
    shape = [*first, *moved(second, start)]
    return shape if latest(shape[-1]) <= timing.room else None


def at_limit(rng: Random, timing: Timing) -> Shape | None:
    """The two sides exactly as far apart as they may be: a pair."""
    if timing.limit > timing.room:
        return None
    return [[(0, timing.limit)]] if rng.random() < 0.5 else [[(timing.limit, 0)]]


def beyond_limit(rng: Random, timing: Timing) -> Shape | None:
    """The two sides 1 ms too far apart: two orphans, in one session where the gap is longer than that."""
    apart = timing.limit + 1
    if apart > timing.room:
        return None
    first, second = ((0, None), (None, apart)) if rng.random() < 0.5 else ((None, 0), (apart, None))
    return [[first, second]] if apart <= timing.gap else [[first], [second]]


# Share of the shapes drawn; `pair` is drawn for the rest. The shares of orphans are set by the caller.
RARE_SHAPES: dict[Callable[[Random, Timing], Shape | None], float] = {
    chain: 0.03,
    chain_with_orphans: 0.01,
    silence: 0.01,
    at_limit: 0.005,
    beyond_limit: 0.005,
}


def latest(session: Session) -> int:
    """When the session's last event reports."""
    return max([at for call in session for at in call if at is not None])


def moved(shape: Shape, by: int) -> Shape:
    """The shape `by` ms later."""
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
