"""Shapes of input that break careless programs: how long, how it grows, how much memory, and whether the answer is exact.

    python -m tests.hostile_shapes [NAME …]

Runs what a Spark worker runs on each shape, at a quarter of its size and at its size, each three times in a fresh process, and
prints the least CPU seconds (user time: what the kernel takes to hand out memory is the machine's affair, and the memory is
shown), their growth, and peak memory. Exit 1 if an answer is wrong, if four times the events take more than five times the time and
more than a second, or if a process needs more than 3 GB. What Spark does around the worker is not in these figures.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.pair_events import _decider
from spark_jobs.pairing.rules import LEFT, RIGHT, Ints, Rules, event_schema

MAX_GROWTH = 5.0
MAX_MB = 3_000
START = 1_750_000_000_000
RULES = Rules(
    key=("user1", "user2"),
    tolerance_ms=60_000,
    gap_ms=60_000,
    grace_ms=180_000,
    max_session_ms=3_600_000,
    matching="one_to_one",
    drop_duplicates=True,
    left_topic_first=True,
    clock=2**62,
    previous_clock=0,
)


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
    rules: Rules = RULES
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


_TIGHT = replace(RULES, gap_ms=1_000, max_session_ms=3_599_999)
SHAPES = {
    "chain-small-tolerance": Shape("one key, one chain, T < G", 2_000_000, _chain, replace(_TIGHT, tolerance_ms=500)),
    "chain-tolerance-is-gap": Shape("one key, one chain, T = G", 2_000_000, _chain, replace(_TIGHT, tolerance_ms=1_000)),
    "chain-large-tolerance": Shape("one key, one chain, T > G", 2_000_000, _chain, _TIGHT),
    "dense": Shape("one session, an event each ms", 2_000_000, _dense),
    "dense-small-batches": Shape("the same in 4,000 batches", 2_000_000, _dense, rows_a_batch=500),
    "deep": Shape("one session, all lefts 1 s ahead", 2_000_000, _deep, replace(RULES, tolerance_ms=999)),
    "collapse": Shape("the same, collapsed", 2_000_000, _collapsed, replace(RULES, matching="collapse")),
    "two-a-session": Shape(
        "one chain cut 1,000,000 times", 2_000_000, _two_a_session, replace(RULES, max_session_ms=60_000)
    ),
    "every-length": Shape("a session of every length", 2_000_000, _every_length),
    "single-events": Shape("as many keys as events", 800_000, _single_events),
    "one-moment": Shape("one session, one timestamp", 200_000, _one_moment),
    "all-the-same": Shape("one timestamp, equal payloads", 200_000, _all_the_same, distinct=False),
    "large-payloads": Shape("one key, 5 MB each: over 2 GB", 432, _dense, payload_bytes=5_000_000, rows_a_batch=13),
    "large-duplicates": Shape("the same at one moment, equal", 432, _all_the_same, RULES, 10, 5_000_000, False, 13),
    "large-key": Shape("one key of 10 kB", 80_000, _dense, key_bytes=10_000, rows_a_batch=6_400),
    "large-keys": Shape("as many keys of 10 kB as events", 80_000, _single_events, key_bytes=10_000, rows_a_batch=6_400),
}


def _batches(events: Events, shape: Shape) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(events.ts), shape.rows_a_batch):
        number = np.arange(begin, min(begin + shape.rows_a_batch, len(events.ts)))
        users, of = np.unique(events.user[number], return_inverse=True)
        key = pa.array([str(user).ljust(shape.key_bytes, "u") for user in users]).take(pa.array(of))
        payload = [(str(n) if shape.distinct else "").ljust(shape.payload_bytes) for n in number]
        count = len(number)
        columns = [key, pa.array(["v"] * count), events.side[number], np.zeros(count), number, events.ts[number], payload]
        columns += [np.ones(count), np.zeros(count, dtype=bool)]
        schema = event_schema(shape.rules.key)
        yield pa.record_batch(
            [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )


def _user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def measure(name: str, size: int) -> dict[str, float | bool]:
    """One shape at one size in this process: CPU seconds without making the input, peak MB with it, and whether it is exact."""
    shape = SHAPES[name]
    events = shape.events(size)
    making = 0.0

    def timed() -> Iterator[pa.RecordBatch]:
        nonlocal making
        source = _batches(events, shape)
        while True:
            begin = _user_seconds()
            batch = next(source, None)
            making += _user_seconds() - begin
            if batch is None:
                return
            yield batch

    begin = _user_seconds()
    kept = [batch.select(["outcome", "left_offset", "right_offset"]) for batch in _decider(shape.rules)(timed())]
    seconds = _user_seconds() - begin - making
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "peak_mb": peak, "exact": _exact(pa.Table.from_batches(kept), events)}


def _exact(outcomes: pa.Table, events: Events) -> bool:
    left, right = (outcomes.column(f"{side}_offset").fill_null(-1).to_numpy() for side in ("left", "right"))
    is_pair = pc.equal(outcomes.column("outcome"), "pair").to_numpy()
    partner = np.full(len(events.ts), -1)
    partner[left[is_pair]] = right[is_pair]
    alone = np.ones(len(events.ts), dtype=bool)
    alone[events.partner[events.partner >= 0]] = alone[events.partner >= 0] = False
    single = np.maximum(left, right)[~is_pair]
    kinds = np.where(events.side == LEFT, "left_only", "right_only")[single]
    told = outcomes.column("outcome").filter(pa.array(~is_pair))
    return (
        np.array_equal(partner, events.partner)
        and np.array_equal(np.sort(single), np.flatnonzero(alone))
        and pc.all(
            pc.equal(told, pa.array([events.rest] * len(single) if events.rest else kinds.tolist(), pa.string()))
        ).as_py()
        is not False
    )


def _fresh_processes(name: str, size: int) -> dict[str, float | bool]:
    command = [sys.executable, "-m", "tests.hostile_shapes", "--one", name, str(size)]
    runs = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(3)]
    least = {"seconds": min(run["seconds"] for run in runs), "peak_mb": max(run["peak_mb"] for run in runs)}
    return least | {"exact": all(run["exact"] for run in runs)}


def main(names: list[str]) -> int:
    """Prints a line a shape; gives the exit status."""
    failed = False
    print(f"{'shape':24} {'events':>9} {'s':>6} {'growth':>7} {'MB':>6}")
    for name in names:
        shape = SHAPES[name]
        quarter, whole = (_fresh_processes(name, size) for size in (shape.size // 4, shape.size))
        growth = whole["seconds"] / quarter["seconds"]
        wrong = [] if quarter["exact"] and whole["exact"] else ["wrong answer"]
        # Below a second, growth mostly tells which of the two sizes still fits into the machine's caches.
        wrong += ["grows too fast"] if growth > MAX_GROWTH and whole["seconds"] > 1.0 else []
        wrong += ["too much memory"] if whole["peak_mb"] > MAX_MB else []
        failed |= bool(wrong)
        figures = f"{shape.size:>9} {whole['seconds']:>6.2f} {growth:>7.1f} {whole['peak_mb']:>6.0f}"
        print(f"{name:24} {figures}  {shape.says}: {', '.join(wrong) or 'exact'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    elif unknown := [name for name in sys.argv[1:] if name not in SHAPES]:
        sys.exit(f"no such shape: {', '.join(unknown)} (there are: {', '.join(SHAPES)})")
    else:
        sys.exit(main(sys.argv[1:] or list(SHAPES)))
