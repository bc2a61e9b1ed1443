"""Shapes of input that break careless programs, each with the answer that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from include.config.pipeline import Pipeline
from spark_jobs.rules.rules import LEFT, RIGHT, Ints
from tests.helpers.timeline import CALLS

START = 1_750_000_000_000
PIPELINE = replace(CALLS, tolerance_ms=60_000, gap_ms=60_000, grace_ms=180_000, max_session_ms=3_600_000)


class Events(NamedTuple):
    """One entry an event; its number is its offset. `partner`: of a left event in a pair the number of its right one, else -1.
    `rest`: the outcome of all events in no pair, if they are no orphans.
    """

    user: Ints
    ts: Ints
    side: Ints
    partner: Ints
    rest: str = ""


@dataclass(frozen=True)
class Shape:
    """`size`: events at full size. Keys and payloads have so many bytes each, and with `distinct` no payload is another's."""

    says: str
    size: int
    events: Callable[[int], Events]
    pipeline: Pipeline = PIPELINE
    key_bytes: int = 10
    payload_bytes: int = 10
    distinct: bool = True
    rows_a_batch: int = 10_000


def _calls_with_a_rest(ts: Ints, user: Ints | None = None) -> Events:
    """Left, left, right over and over, the right nearest to the left just before it."""
    number = np.arange(len(ts))
    partner = np.where((number % 3 == 1) & (number + 1 < len(ts)), number + 1, -1)
    return Events(number * 0 if user is None else user, ts, np.where(number % 3 == 2, RIGHT, LEFT), partner)


def _chain(size: int) -> Events:
    number = np.arange(size)
    return _calls_with_a_rest(START + number // 3 * 1_800 + np.array([0, 600, 1_000])[number % 3])


def _dense(size: int) -> Events:
    return _calls_with_a_rest(START + np.arange(size))


def _deep(size: int) -> Events:
    """A left each millisecond, and a second later a right each millisecond: 999 ms lets each left but the first have one."""
    half = size // 2
    number = np.arange(2 * half)
    order = np.argsort(np.where(number < half, 2 * number, 2 * (number - half) + 2_001))
    side = np.where(order < half, LEFT, RIGHT)
    place = np.empty_like(order)
    place[order] = number
    partner = np.where((order > 0) & (order < half), place[np.minimum(order + half - 1, 2 * half - 1)], -1)
    return Events(number * 0, START + np.where(order < half, order, order - half + 1_000), side, partner)


def _one_moment(size: int) -> Events:
    """Twice as many lefts as rights: the first lefts belong to the rights, in order."""
    number = np.arange(size)
    lefts = size * 2 // 3
    partner = np.where(number < size - lefts, number + lefts, -1)
    return Events(number * 0, number * 0 + START, np.where(number < lefts, LEFT, RIGHT), partner)


def _all_the_same(size: int) -> Events:
    return _only_the_first(_one_moment(size), "duplicate")


def _collapsed(size: int) -> Events:
    return _only_the_first(_deep(size), "collapsed")


def _only_the_first(events: Events, rest: str) -> Events:
    """Just one pair: the first left and the first right."""
    partner = np.full(len(events.ts), -1)
    partner[np.argmax(events.side == LEFT)] = np.argmax(events.side == RIGHT)
    return events._replace(partner=partner, rest=rest)


def _single_events(size: int) -> Events:
    number = np.arange(size)
    return Events(number, START + number * 7, number % 2, np.full(size, -1))


def _two_a_session(size: int) -> Events:
    number = np.arange(size)
    partner = np.where((number % 2 == 0) & (number + 1 < size), number + 1, -1)
    return Events(number * 0, START + number * 60_000, number % 2, partner)


def _every_length(size: int) -> Events:
    """Keys of 3, 6, 9 … events."""
    lengths = 3 * np.arange(1, int((2 * size / 3) ** 0.5) + 2)
    return _calls_with_a_rest(START + np.arange(size), np.repeat(np.arange(len(lengths)), lengths)[:size])


_TIGHT = replace(PIPELINE, gap_ms=1_000, max_session_ms=3_599_999)
SHAPES = {
    "chain-small-tolerance": Shape("one key, one chain, T < G", 2_000_000, _chain, replace(_TIGHT, tolerance_ms=500)),
    "chain-tolerance-is-gap": Shape("one key, one chain, T = G", 2_000_000, _chain, replace(_TIGHT, tolerance_ms=1_000)),
    "chain-large-tolerance": Shape("one key, one chain, T > G", 2_000_000, _chain, _TIGHT),
    "dense": Shape("one session, an event each ms", 2_000_000, _dense),
    "dense-small-batches": Shape("the same in 4,000 batches", 2_000_000, _dense, rows_a_batch=500),
    "deep": Shape("one session, all lefts 1 s ahead", 2_000_000, _deep, replace(PIPELINE, tolerance_ms=999)),
    "collapse": Shape("the same, collapsed", 2_000_000, _collapsed, replace(PIPELINE, matching="collapse")),
    "two-a-session": Shape(
        "one chain cut 1,000,000 times", 2_000_000, _two_a_session, replace(PIPELINE, max_session_ms=60_000)
    ),
    "every-length": Shape("a session of every length", 2_000_000, _every_length),
    "single-events": Shape("as many keys as events", 800_000, _single_events),
    "one-moment": Shape("one session, one timestamp", 200_000, _one_moment),
    "all-the-same": Shape("one timestamp, equal payloads", 200_000, _all_the_same, distinct=False),
    "large-payloads": Shape("one key, 5 MB each: over 2 GB", 432, _dense, payload_bytes=5_000_000, rows_a_batch=4),
    "large-duplicates": Shape("the same at one moment, equal", 432, _all_the_same, PIPELINE, 10, 5_000_000, False, 4),
    "large-key": Shape("one key of 10 kB", 80_000, _dense, key_bytes=10_000, rows_a_batch=1_600),
    "large-keys": Shape("as many keys of 10 kB as events", 80_000, _single_events, key_bytes=10_000, rows_a_batch=1_600),
}
