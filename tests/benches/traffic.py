"""Traffic for the benches: calls of 100,000 user pairs, made as columns, a million events in a second or two.

Every pair has one session in each slot of twelve minutes, 72 % of the sessions are one call, the longest five. Of 4 % of the
calls one side is missing. All but the last few sessions are over when the batch is paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from include.config.pipeline import Pipeline

KEYS = 100_000
SESSIONS_OF_CALLS = (72_000, 16_000, 7_000, 3_000, 2_000)
_CALLS = sum(calls * sessions for calls, sessions in enumerate(SESSIONS_OF_CALLS, 1))
_MISSING_A_SIDE = _CALLS // 50
EVENTS_A_SLOT = 2 * (_CALLS - _MISSING_A_SIDE)
_SLOT_MS, _BEGINS_WITHIN_MS, _UNTIL_NOW_MS = 720_000, 400_000, 600_000
_BETWEEN_CALLS_MS, _JITTER_MS, _BETWEEN_SIDES_MS = 40_000, 20_000, 15_000
POOL = 10_000
_IN_FLIGHT, _KB_IN_FLIGHT = 200_000, 200_000
LARGEST = 12_000_000


def slots(events: int, now: int, seed: int = 1) -> Iterator[pa.Table]:
    """Exactly `events` events in the order in which they happened, a table a slot of time.

    Columns: side (0 left, 1 right), user1, user2, ts (epoch ms), payload (JSON text). `now`: when they are paired, epoch ms.
    """
    random = np.random.default_rng(seed)
    pools = payloads(random)
    count = -(-events // EVENTS_A_SLOT)
    for number in range(count):
        slot = _slot(random, pools, now - _UNTIL_NOW_MS - (count - 1 - number) * _SLOT_MS)
        # The first slot is cut to what the full ones leave over.
        yield slot if number else slot.slice(EVENTS_A_SLOT * count - events)


def _slot(random: np.random.Generator, pools: tuple[pa.Array, pa.Array], begin: int) -> pa.Table:
    calls = random.permutation(np.repeat(np.arange(1, len(SESSIONS_OF_CALLS) + 1), SESSIONS_OF_CALLS))
    key = np.repeat(np.arange(KEYS), calls)
    rank = np.arange(_CALLS) - np.repeat(np.cumsum(calls) - calls, calls)
    ts = begin + np.repeat(random.integers(0, _BEGINS_WITHIN_MS, KEYS), calls)
    ts += rank * _BETWEEN_CALLS_MS + random.integers(0, _JITTER_MS, _CALLS)
    alone = random.permutation(_CALLS)
    lefts, rights = alone[_MISSING_A_SIDE:], np.delete(alone, np.s_[_MISSING_A_SIDE : 2 * _MISSING_A_SIDE])
    moments = np.concatenate(
        (ts[lefts], ts[rights] + random.integers(-_BETWEEN_SIDES_MS, _BETWEEN_SIDES_MS + 1, len(rights)))
    )
    payload = pa.concat_arrays([pool.take(pa.array(random.integers(0, POOL, len(lefts)))) for pool in pools])
    keys = pa.array(np.concatenate((key[lefts], key[rights])))
    table = pa.table(
        {
            "side": pa.array(np.repeat((0, 1), (len(lefts), len(rights))), pa.int32()),
            "user1": pa.array([f"user-{number % 1_000}" for number in range(KEYS)]).take(keys),
            "user2": pa.array([f"user-{number // 1_000 + 1_000}" for number in range(KEYS)]).take(keys),
            "ts": pa.array(moments, pa.int64()),
            "payload": payload,
        }
    )
    return table.take(pa.array(np.argsort(moments, kind="stable")))


def payloads(random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """POOL payloads of each side, JSON texts of some 45 bytes."""
    numbers = random.integers(0, 1_000_000, POOL).tolist()
    left = [f'{{"device":"phone","setup_ms":{number % 3_000},"rating":{number % 50 / 10}}}' for number in numbers]
    right = [f'{{"codec":"opus","rtt_ms":{number % 400},"loss":0.{number:06}}}' for number in numbers]
    return pa.array(left), pa.array(right)


def bodies(events: pa.Table, pipeline: Pipeline, side: int) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Kafka keys and values (binary) of the events, which are all of one side."""
    user1, user2 = (events.column(name) for name in pipeline.key)
    ts, payload = events.column("ts").cast(pa.string()), events.column("payload")
    names = [f'"{name}":' for name in (*pipeline.key, pipeline.timestamp, pipeline.sides[side].payload)]
    parts = ["{" + names[0] + '"', user1, '",' + names[1] + '"', user2, '",' + names[2], ts, "," + names[3], payload, "}"]
    values = pc.binary_join_element_wise(*parts, "")
    return pc.binary_join_element_wise(user1, user2, "-").cast(pa.binary()), values.cast(pa.binary())


def send(bootstrap: str, pipeline: Pipeline, tables: Iterable[pa.Table]) -> None:
    """Sends events in the columns of `slots` to the topics of their sides; returns when the broker has them."""

    def messages() -> Iterator[tuple[str, bytes, bytes]]:
        for table in tables:
            for number, side in enumerate(pipeline.sides):
                mine = table.filter(pc.equal(table.column("side"), number))
                keys, values = (column.to_pylist() for column in bodies(mine, pipeline, number))
                yield from ((side.topic, value, key) for key, value in zip(keys, values, strict=True))

    deliver(bootstrap, messages())


def deliver(bootstrap: str, messages: Iterable[tuple[Any, ...]]) -> None:
    """Sends the messages (what `Producer.produce` takes), each partition's in their order; returns when the broker has them all."""
    refused = []
    settings = {
        "bootstrap.servers": bootstrap,
        "partitioner": "murmur2_random",
        "linger.ms": 20,
        "compression.type": "lz4",
        "message.max.bytes": LARGEST,
        "queue.buffering.max.messages": _IN_FLIGHT,
        "queue.buffering.max.kbytes": _KB_IN_FLIGHT,
        # A retry must not change the order.
        "enable.idempotence": True,
        "delivery.report.only.error": True,
        "on_delivery": lambda error, _: refused.append(error),
    }
    producer = Producer(settings)
    for message in messages:
        while True:
            try:
                producer.produce(*message)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60) or refused:
        raise RuntimeError(f"the broker at {bootstrap} did not take all events: {refused[:1]}")
