"""Traffic of chains, with ids, and what came out of it by these ids.

A user pair has five calls within 50 minutes, at random moments; its right side is up to half a minute before or behind the left one. So one call
in five is in a chain: its session has other calls. 1,960,000 events are 1,000,000 calls of 200,000 user pairs. Fewer events have fewer pairs, more events take
more time. Of 4 % of the calls one side is missing. All sessions are over when the events are paired.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition

from tests.benches.traffic import POOL, payloads
from tests.helpers.reading import wait_for_markers

_KEYS, _CALLS_A_KEY = 200_000, 5
_SPAN_MS, _UNTIL_NOW_MS, _BETWEEN_SIDES_MS = 3_000_000, 600_000, 30_000
_EVENTS_A_TABLE = 250_000
_MESSAGES_AT_ONCE = 10_000


class Chains(NamedTuple):
    """Events in the order in which they happened, as columns of one length."""

    side: np.ndarray  # 0 left, 1 right
    key: np.ndarray  # number of the user pair
    call: np.ndarray  # number of the call; both sides have it as their payload's id
    ts: np.ndarray  # epoch ms

    @classmethod
    def make(cls, events: int, now: int, seed: int = 1) -> Chains:
        """Exactly `events` of them. `now`: when they are paired, epoch ms."""
        random = np.random.default_rng(seed)
        calls = -(-events * 50 // 98)
        missing = calls // 50
        keys = max(1, min(_KEYS, calls // _CALLS_A_KEY))
        span = _SPAN_MS * calls // (keys * _CALLS_A_KEY)
        key, begin = random.integers(0, keys, calls), now - _UNTIL_NOW_MS - span + random.integers(0, span, calls)
        alone = random.permutation(calls)
        lefts, rights = alone[missing:], np.delete(alone, np.s_[missing : 2 * missing])
        ts = np.concatenate(
            (begin[lefts], begin[rights] + random.integers(-_BETWEEN_SIDES_MS, _BETWEEN_SIDES_MS + 1, len(rights)))
        )
        call, side = np.concatenate((lefts, rights)), np.repeat((0, 1), (len(lefts), len(rights)))
        # Rounding may have made one or two events more.
        order = np.argsort(ts, kind="stable")[-events:]
        return cls(side[order], key[call][order], call[order], ts[order])

    @property
    def pairs(self) -> int:
        """Calls with both sides."""
        return len(self.call) - len(np.unique(self.call))

    def in_chains(self, gap_ms: int) -> float:
        """The share of the calls whose session, cut where nothing happens for longer than the gap, has others, too."""
        order = np.lexsort((self.ts, self.key))
        key, ts, call = self.key[order], self.ts[order], self.call[order]
        session = np.cumsum(np.concatenate(([True], (np.diff(key) != 0) | (np.diff(ts) > gap_ms))))
        session = np.unique(session * (call.max() + 1) + call) // (call.max() + 1)
        return float(np.mean(np.bincount(session)[session] > 1))

    def tables(self) -> Iterator[pa.Table]:
        """The events in the columns of `traffic.slots`, some at a time."""
        random = np.random.default_rng(2)
        # The pool's texts without their first brace.
        pools = [pa.array([text[1:] for text in pool.to_pylist()]) for pool in payloads(random)]
        for begin in range(0, len(self.ts), _EVENTS_A_TABLE):
            side, key, call, ts = (column[begin : begin + _EVENTS_A_TABLE] for column in self)
            drawn = pa.array(random.integers(0, POOL, len(ts)))
            rest = pc.if_else(pa.array(side == 0), pools[0].take(drawn), pools[1].take(drawn))
            # Nobody calls himself.
            users = [
                pc.binary_join_element_wise("user", pa.array(part).cast(pa.string()), "-")
                for part in divmod(key + 1_000_000, 1_000)
            ]
            ids = pa.array(call).cast(pa.string())
            yield pa.table(
                {
                    "side": pa.array(side, pa.int32()),
                    "user1": users[0],
                    "user2": users[1],
                    "ts": pa.array(ts, pa.int64()),
                    "payload": pc.binary_join_element_wise('{"id":"', ids, '",', rest, ""),
                }
            )


class Answers(NamedTuple):
    """What an output has, by the ids. Halves are sides of calls: one is an event."""

    right_pairs: int
    mixed: int  # compounds of halves of different calls
    missing: int  # halves that are in no compound
    repeated: int  # halves too many

    @classmethod
    def judge(cls, left: np.ndarray, right: np.ndarray, halves: int) -> Answers:
        """Of compounds with these ids on either side, -1 where there is none. `halves`: how many went in.

        >>> print(*Answers.judge(np.array([1, 2, 3, 3]), np.array([1, 4, -1, -1]), halves=6))
        1 1 1 1
        """
        both = (left >= 0) & (right >= 0)
        right_pairs = int((both & (left == right)).sum())
        found = np.concatenate((2 * left[left >= 0], 2 * right[right >= 0] + 1))
        distinct = len(np.unique(found))
        return cls(right_pairs, int(both.sum()) - right_pairs, halves - distinct, len(found) - distinct)


def read_answers(bootstrap: str, topic: str, payload_fields: tuple[str, str], halves: int) -> Answers:
    """Of the committed messages of a topic, read by a consumer of its own."""
    ids = array("q"), array("q")
    for value in _values(bootstrap, topic):
        body = json.loads(value)
        for field, mine in zip(payload_fields, ids, strict=True):
            mine.append(-1 if body[field] is None else int(body[field]["id"]))
    return Answers.judge(*(np.array(each) for each in ids), halves)


def _values(bootstrap: str, topic: str) -> Iterator[bytes]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "answers",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    with Consumer(settings | {"isolation.level": "read_committed", "auto.offset.reset": "error"}) as consumer:
        places = [
            TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, timeout=20).topics[topic].partitions
        ]
        wait_for_markers(bootstrap, places)
        consumer.assign(places)
        at_end = 0
        while at_end < len(places):
            for message in consumer.consume(_MESSAGES_AT_ONCE, 1):
                if message.error():
                    at_end += 1
                else:
                    yield message.value()
