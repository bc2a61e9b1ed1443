"""Sample traffic: calls and trouble placed in time, so that the outcome of each is known when it is drawn.

Every call, chain or pair of look-alikes has its own users, which no other run uses, so sessions never mix. The truth holds if one batch lands
everything, and also if batches cut the records in the order of sending: no event lags its partition by more than the grace. Only with a last clock
(`late_before`) must one batch land all: a session that began before that clock is not late as a whole, but its first part alone would be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from operator import itemgetter
from random import Random
from typing import NamedTuple

from include.config.pipeline import MS_PER_UNIT, Pipeline
from include.sample.bodies import Users, users_named
from include.sample.records import Record, RecordWriter, Sample
from include.sample.shapes import RARE_SHAPES, Shape, Timing, latest, left_only, moved, pair, right_only
from include.sample.traits import OF_CALLS, Traits

# The oldest traffic. Brokers delete by record timestamp after days, so nothing older than hours is ever sent.
HISTORY_MS = MS_PER_UNIT["h"]
# The nearest future events are still too far ahead for a batch that is planned so much later.
FUTURE_MARGIN_MS = 10 * MS_PER_UNIT["m"]
FRESH_SHARE = 0.05
CALLS_PER_PIECE = 50_000


@dataclass(frozen=True)
class Shares:
    """Shares of the calls. `orphans`: of each side; `left_alone`: of the left side besides; `late`: only with a last clock."""

    orphans: float = 0.04
    duplicates: float = 0.02
    broken: float = 0.02
    future: float = 0.003
    late: float = 0.01
    look_alikes: float = 0.005
    left_alone: float = 0.0


USUAL = Shares()


class Window(NamedTuple):
    """Sessions end from `first_end` to `last_end` (both inclusive) and are sent at `now_ms`."""

    first_end: int
    last_end: int
    now_ms: int


class Traffic:
    """Draws calls, one window after another. The same arguments and the same calls of `draw` give the same bytes.

    `late_before`: clock of the last batch (None: there is none, so nothing can be late). `room`: the longest time from a shape's first event
    to its last. `near_future`: whether a batch will land all this soon. `sides`: those that get broken and future events.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        seed: int,
        now_ms: int,
        late_before: int | None = None,
        shares: Shares = Shares(),
        room: int | None = None,
        near_future: bool = True,
        traits: Traits = OF_CALLS,
        sides: tuple[int, ...] = (0, 1),
    ) -> None:
        self.pipeline, self.shares, self.late_before, self.traits, self.sides = pipeline, shares, late_before, traits, sides
        self.rng = Random(f"{seed} {now_ms}")
        self.run = f".{seed}.{now_ms}."
        self.timing = Timing.of(pipeline, room, traits.skew_ms, traits.left_first)
        wait = pipeline.gap_ms + pipeline.grace_ms
        # A session that ends here is the oldest one that is not late.
        self.floor = 0 if late_before is None else late_before - wait
        self.weights = {left_only: shares.orphans + shares.left_alone, right_only: shares.orphans, **RARE_SHAPES}
        self.weights[pair] = max(0.0, 1.0 - sum(self.weights.values()))
        self.broken = cycle(traits.broken())
        self.futures = cycle([None, 2**63 - 1, now_ms + 3_650 * MS_PER_UNIT["d"]][0 if near_future else 1 :])
        self.named = self.drawn = 0
        self.users = self.new_users()

    def draw(self, calls: int, window: Window) -> RecordWriter:
        """`calls` calls and their share of trouble. As many compounds, unless some collapse or duplicates are kept."""
        out = self.writer(window.now_ms)
        shapes = self.rng.choices(list(self.weights), list(self.weights.values()), k=calls)
        left = calls
        while left > 0:
            if left > 1 and self.rng.random() < self.shares.look_alikes:
                left -= self._look_alikes(out, window)
            else:
                left -= self._call(out, window, shapes.pop(), left)
        self.trouble(out, calls, window)
        return out

    def writer(self, now_ms: int) -> RecordWriter:
        """Takes what is drawn, to be sent at `now_ms`."""
        return RecordWriter(self.pipeline, self.rng, now_ms, self.pipeline.grace_ms // 2, self.traits)

    def trouble(self, out: RecordWriter, calls: int, window: Window) -> None:
        """The broken, future and late events that so many more calls bring along."""
        for share, trouble in (
            (self.shares.broken, self._broken),
            (self.shares.future, self._future),
            (0.0 if self.late_before is None else self.shares.late, self._late),
        ):
            for _ in range(int((self.drawn + calls) * share) - int(self.drawn * share)):
                trouble(out, window)
        self.drawn += calls

    def new_users(self, *names: str) -> Users:
        """Of these names, or of names that nobody has had."""
        return users_named(self.pipeline.key, names or self._names())

    def _names(self) -> tuple[str, ...]:
        return tuple(map(self._name, range(len(self.pipeline.key))))

    def _name(self, field: int) -> str:
        self.named += 1
        known = self.traits.names[field % len(self.traits.names)]
        return f"{known[int(self.rng.random() * len(known))]}{self.run}{self.named}"

    def _between(self, first: int, last: int) -> int:
        return first + int(self.rng.random() * (last - first + 1))

    def _call(self, out: RecordWriter, window: Window, draw: Callable[[Random, Timing], Shape | None], most: int) -> int:
        """Draws one shape with its own users, or a pair if it does not fit; returns its number of calls."""
        end = self._between(window.first_end, window.last_end)
        shape = draw(self.rng, self.timing)
        if shape is None or sum(map(len, shape)) > most or (len(shape) > 1 and not self._fits(shape, end)):
            shape = pair(self.rng, self.timing)
        self.users = self.new_users()
        for session in moved(shape, end - latest(shape[-1])):
            out.session(self.users, session, duplicate=self.rng.random() < self.shares.duplicates)
        return sum(map(len, shape))

    def _fits(self, shape: Shape, end: int) -> bool:
        """Whether no session of the shape is late, if the last one ends at `end`."""
        return end - latest(shape[-1]) + latest(shape[0]) >= self.floor

    def _look_alikes(self, out: RecordWriter, window: Window) -> int:
        """Two calls at the same time with users that look alike: a-b and b-a (unless these are one pair), or "x-1" with "y" and "x" with "1-y"."""
        one, *rest = self._names()
        end = self._between(window.first_end, window.last_end)
        twins = [(one, *rest), (*rest, one)]
        if rest and (self.pipeline.is_unordered or self.rng.random() < 0.5):
            twins = [(f"{one}-1", *rest), (one, f"1-{rest[0]}", *rest[1:])]
        for names in twins if rest else twins[:1]:
            shape = pair(self.rng, self.timing)
            out.session(self.new_users(*names), moved(shape, end - latest(shape[0]))[0], duplicate=False)
        return 2 if rest else 1

    def _broken(self, out: RecordWriter, window: Window) -> None:
        """The next kind of unreadable event, with users whose call it must not affect."""
        reason, spell = next(self.broken)
        side, ts = self.rng.choice(self.sides), self._between(window.first_end, window.last_end)
        value = spell(self.pipeline, side, self.users, ts)
        record = Record(self.pipeline.sides[side].single_topic, self.users.kafka_key, value, window.now_ms)
        out.send(record, ts)
        out.reject(reason, record)

    def _future(self, out: RecordWriter, window: Window) -> None:
        """An event stamped too far ahead, by minutes or by ages, with users whose call it must not affect."""
        ahead = next(self.futures)
        ts = window.now_ms + self.pipeline.max_future_ms + FUTURE_MARGIN_MS if ahead is None else ahead
        side = self.rng.choice(self.sides)
        payload = self.traits.payload(self.rng, side)
        value = self.traits.body(self.pipeline, side, self.users, str(ts), payload, False)
        record = Record(self.pipeline.sides[side].single_topic, self.users.kafka_key, value, window.now_ms)
        out.send(record, self._between(window.first_end, window.last_end))
        out.reject("future", record)

    def _late(self, out: RecordWriter, window: Window) -> None:
        """A whole session, of both sides or one, that ended well before the oldest one that is not late."""
        shape = self.rng.choice((pair, pair, left_only, right_only))(self.rng, self.timing)
        overdue = self.pipeline.gap_ms + self._between(MS_PER_UNIT["s"], HISTORY_MS // 6)
        users = self.new_users()
        for call in moved(shape, self.floor - overdue - latest(shape[0]))[0]:
            for side, ts in enumerate(call):
                if ts is not None:
                    record = out.event(users, side, ts).record
                    assert record is not None
                    out.send(record, self._between(window.first_end, window.last_end))
                    out.reject("late", record)


def pieces(traffic: Traffic, calls: int, now_ms: int) -> Iterator[Sample]:
    """`calls` calls of the last hour in the order of sending, in pieces, so that any number fits into memory."""
    waiting: list[tuple[float, Record]] = []
    for share, window in _windows(traffic, calls, now_ms):
        out = traffic.draw(share, window)
        waiting = sorted(waiting + out.records, key=itemgetter(0))
        # Later windows draw only events after this moment.
        ready = bisect_right(waiting, window.last_end - traffic.timing.room, key=itemgetter(0))
        yield Sample([record for _, record in waiting[:ready]], out.truth)
        waiting = waiting[ready:]
    yield Sample([record for _, record in waiting], [])


def _windows(traffic: Traffic, calls: int, now_ms: int) -> Iterator[tuple[int, Window]]:
    """How many calls end in which window: a batch planned at `now_ms` can close most of them; a few end too late for it."""
    wait = traffic.pipeline.gap_ms + traffic.pipeline.grace_ms
    closed = max(traffic.floor, now_ms - wait - MS_PER_UNIT["s"])
    first = max(traffic.floor, min(now_ms, closed) - HISTORY_MS)
    fresh = int(calls * FRESH_SHARE)
    count = 1 + (calls - fresh) // CALLS_PER_PIECE
    edges = [first + (closed - first) * part // count for part in range(count + 1)]
    for part in range(count):
        share = (calls - fresh) * (part + 1) // count - (calls - fresh) * part // count
        yield share, Window(edges[part], edges[part + 1], now_ms)
    yield fresh, Window(max(closed, now_ms - wait // 4), max(closed, now_ms), now_ms)


def generate(
    pipeline: Pipeline,
    calls: int,
    seed: int,
    now_ms: int,
    late_before: int | None = None,
    shares: Shares = Shares(),
    traits: Traits = OF_CALLS,
) -> Sample:
    """Records and truth of `calls` calls, to be sent at once at `now_ms`; the same arguments give the same bytes."""
    sample = Sample()
    for piece in pieces(Traffic(pipeline, seed, now_ms, late_before, shares, traits=traits), calls, now_ms):
        sample.records += piece.records
        sample.truth += piece.truth
    return sample
