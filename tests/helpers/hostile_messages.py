"""Messages that no producer should send: what hypothesis draws, mixed by a seed. The same seed gives the same messages."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.rules.test_parsing import hostile, mutated, mutations

MINUTE = 60_000
# The last and the first millisecond that 64 bits hold in microseconds, as Spark has times.
LAST_OF_SPARK, FIRST_BEYOND = 9_223_372_036_854_775, 9_223_372_036_854_776
NAMES = [
    "ann", "a-b", "", " ", "-", "é", "e\u0301", "\u0000", '"', "\\", "'; DROP TABLE x; --", "`x`", "$(touch /x)", "../../x", "%2e%2e", "\u202e", "😀",
    "\U0010ffff", "null", "\n", "{}", "${x}", "x" * 10_000, "\ufeffx", "İ",
]  # fmt: skip
PAYLOADS = [
    "null", "true", "0", "-0", "1e400", "9223372036854775808", "7" * 6_000, '""', '"\\u0000"', '"\\ud83d\\ude00"', "[]", "{}", ' { "a" : [ 1 ,2 ] } ',
    '{"a":1,"a":2}', '{"user1":"x","ts":1}', "[" * 498 + "]" * 498, '"\u2028"', "0.1000000000000000000001", '"' + "x" * 20_000 + '"',
]  # fmt: skip
MOMENTS = [
    "0", "-1", "1.5", "1e3", '"17"', '"-17"', '"\\u0031"', "9223372036854775807", "9223372036854775808", "9" * 400, "true", "[]", "{}", "null", '""', "-0",
    "01", "NaN", "253402300800000", "1e999",
]  # fmt: skip
KEYS = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.just(b"k" * 1_000)
# The client that sends them takes a name for ended at a NUL.
_HEADER_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
HEADERS = st.lists(st.tuples(_HEADER_NAMES, st.none() | st.binary(max_size=8)), max_size=5) | st.sampled_from(
    [[("a", b"1"), ("a", None)], [("", b"")], [("pair-id", b"calls-0-0"), ("revision", b"-1")], [("long", b"x" * 5_000)], [("h", b"x")] * 40]
)  # fmt: skip


class Message(NamedTuple):
    """What is given to a producer. `side`: 0 left, 1 right. `timestamp` of the record, epoch ms; 0: the producer's clock."""

    side: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int


def drawn(strategy: st.SearchStrategy[Any], number: int, from_seed: int) -> list[Any]:
    """So many examples of the strategy, or all that it has."""
    found: list[Any] = []

    @seed(from_seed)
    @settings(
        max_examples=number, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=[*HealthCheck]
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


class Hostile:
    """`stream(n)` gives n messages around `now` (epoch ms), among them some whose record times Spark cannot hold.

    `examples`: how many bodies hypothesis draws; of changes, keys, headers and times a quarter of it each.
    """

    def __init__(self, from_seed: int, now: int, payloads: tuple[str, str], examples: int) -> None:
        self.random = random.Random(from_seed)
        self.now, self.payloads = now, payloads
        self.seen: list[Message] = []
        times = st.sampled_from([1, now - 24 * 60 * MINUTE, now + 30 * MINUTE, -1, -2, LAST_OF_SPARK]) | st.integers(
            0, LAST_OF_SPARK
        )
        times |= st.sampled_from([FIRST_BEYOND, 2**63 - 1]) | st.integers(FIRST_BEYOND, 2**63 - 1)
        self.bodies = drawn(hostile | st.none(), examples, from_seed)
        self.changes, self.keys, self.headers, self.times = (
            drawn(strategy, examples // 4, from_seed) for strategy in (mutations, KEYS, HEADERS, times)
        )

    def stream(self, number: int) -> Iterator[Message]:
        """Sound calls with strange names and payloads, changed ones, and bodies that never were any."""
        kinds: dict[Callable[[], Message], int] = {self._call: 50, self._changed: 16, self._body: 20, self._odd_moment: 6, self._again: 6, self._encoded: 2}  # fmt: skip  # noqa: E501
        for kind in self.random.choices(list(kinds), list(kinds.values()), k=number):
            message = kind()
            # The latest ones, so that a repetition may meet what it repeats in one session.
            if len(message.value or b"") < 1_000:
                self.seen = [*self.seen[-50:], message]
            yield message

    def _sound(self, side: int, moment: str, payload: str, number: int = 0) -> bytes:
        user = self.random.choice(NAMES) if self.random.random() < 0.05 else f"u{number}"
        other = self.random.choice(NAMES[1:3]) if self.random.random() < 0.05 else "v"
        user, other = (json.dumps(name, ensure_ascii=self.random.random() < 0.5) for name in (user, other))
        members = [f'"user1":{user}', f'"user2":{other}', f'"timestamp":{moment}', f'"{self.payloads[side]}":{payload}']
        self.random.shuffle(members)
        return f"{{{','.join(members)}}}".encode()

    def _message(self, value: bytes | None, side: int | None = None) -> Message:
        side = self.random.randrange(2) if side is None else side
        headers = self.random.choice(self.headers) if self.random.random() < 0.2 else None
        timestamp = self.random.choice(self.times) if self.random.random() < 0.1 else 0
        return Message(side, self.random.choice(self.keys), value, headers, timestamp)

    def _call(self) -> Message:
        side, number = self.random.randrange(2), self.random.randrange(6_000)
        # Each user calls within a minute of an hour of their own.
        moment = self.now - number % 60 * MINUTE - self.random.randrange(MINUTE)
        payload = self.random.choice(PAYLOADS) if self.random.random() < 0.2 else str(self.random.randrange(100))
        return self._message(self._sound(side, str(moment), payload, number), side)

    def _changed(self) -> Message:
        side = self.random.randrange(2)
        sound = self._sound(side, str(self.now - 5 * MINUTE), "1")
        return self._message(mutated(sound, self.random.choice(self.changes)), side)

    def _body(self) -> Message:
        return self._message(self.random.choice(self.bodies))

    def _odd_moment(self) -> Message:
        side = self.random.randrange(2)
        return self._message(self._sound(side, self.random.choice(MOMENTS), "1"), side)

    def _again(self) -> Message:
        return self.random.choice(self.seen) if self.seen else self._call()

    def _encoded(self) -> Message:
        text = self._sound(0, str(self.now - MINUTE), '"é"').decode()
        return self._message(text.encode(self.random.choice(["utf-16", "utf-8-sig", "utf-32-be", "utf-7"])))
