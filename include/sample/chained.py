"""Sample traffic of a pipeline that reads another one's compounds: what its other side sends, and its truth.

All follows from the truth of the first pipeline, which has every compound, its time and when it is published. A right event lies so near to the
compound it belongs to that every other compound of its pair is further away. Events are missing on the right side only. So each right event is
paired with its own compound, for the reason that shapes.py gives for chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any

from include.config.pipeline import Pipeline
from include.sample.bodies import users_named
from include.sample.outcome import canonical, parse
from include.sample.records import ChainedCompound, Sample
from include.sample.shapes import Call, Session, Timing, latest
from include.sample.traffic import USUAL, Shares, Traffic, Window
from include.sample.traits import OF_CALLS, Traits


def follow(
    second: Pipeline,
    first_truth: Iterable[str],
    seed: int,
    now_ms: int,
    shares: Shares = USUAL,
    traits: Traits = OF_CALLS,
) -> Sample:
    """The right events and the truth of `second`, whose left events are the compounds of the first pipeline's truth.

    The truth holds if no batch of `second` has a clock beyond compounds that are not published yet, as with `clock: stream_time`.
    """
    traffic = Traffic(second, seed, now_ms, None, shares, traits=traits, sides=(1,))
    rng, out, calls = traffic.rng, traffic.writer(now_ms), 0
    pairs = list(_by_pair(first_truth, second.key))
    ends = sorted(max(lefts) for _, lefts in pairs) or [now_ms]
    for names, lefts in pairs:
        near = _near(lefts, traffic.timing)
        own: list[Call] = [
            (ts, None if rng.random() < shares.orphans else ts + rng.randint(-near, near)) for ts in sorted(lefts)
        ]
        traffic.users = users_named(second.key, names)
        for session in _sessions(own, second.gap_ms):
            out.session(traffic.users, session, rng.random() < shares.duplicates, lefts)
        calls += len(own)
    for _ in range(int(calls * shares.orphans)):
        out.session(traffic.new_users(), [(None, rng.choice(ends))], duplicate=False)
    traffic.trouble(out, calls, Window(ends[0], ends[-1], now_ms))
    return Sample([record for _, record in sorted(out.records, key=itemgetter(0))], out.truth)


def _by_pair(
    first_truth: Iterable[str], key: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[int, ChainedCompound]]]:
    """The names of each pair, and its compounds by their times."""
    pairs: dict[tuple[str, ...], dict[int, ChainedCompound]] = {}
    for line in first_truth:
        truth: dict[str, Any] = parse(line)
        for compound in truth.get("compounds", ()):
            value = compound["value"]
            lefts = pairs.setdefault(tuple(value[name] for name in key), {})
            lefts[int(value["ts"])] = ChainedCompound(canonical(value), int(truth["closes_after"]))
    yield from pairs.items()


def _near(lefts: Iterable[int], timing: Timing) -> int:
    """How far from its compound a right event may be, ms: less than half the way to the next compound."""
    times = sorted(lefts)
    return min([timing.jitter, *((later - ts - 1) // 2 for ts, later in pairwise(times))])


def _sessions(calls: list[Call], gap_ms: int) -> Iterator[Session]:
    """The calls of one pair, in order of time, cut where nothing happens for longer than the gap."""
    session: Session = []
    for call in calls:
        if session and min(ts for ts in call if ts is not None) - latest(session) > gap_ms:
            yield session
            session = []
        session.append(call)
    yield session
