"""Two pipelines one behind the other: callers and callees, and their compounds with what the switch says.

Clocks follow the events alone. T = 100, G = 200, R = 500 in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker, create_topics
from spark_jobs import pair_events, publish_compounds, replay_interval, replay_late
from spark_jobs.job.arguments import time_argument
from spark_jobs.rules.rules import LEFT, Rules
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import fresh_pipeline
from tests.helpers.all_stages import land
from tests.helpers.reading import consume
from tests.helpers.reference_pairing import slow_outcomes

_RULES: dict[str, Any] = {"clock": "stream_time", "late": "replay", "tolerance_ms": 100, "gap_ms": 200, "grace_ms": 500}


def chain(node: pytest.Item) -> tuple[Pipeline, Pipeline]:
    """Topics of their own, named after the test; the second one's name ends in 2."""
    first = replace(fresh_pipeline(node, **_RULES), late="replay")
    calls = Side(first.output_topic, "call", payload_from="$value", compounds=True)
    switch = Side(f"{first.name}-switch", "switch")
    second = replace(first, name=f"{first.name}2", left=calls, right=switch, output_topic=f"{first.name}-output2")
    return first, second


def with_topic(warehouse: Warehouse, broker: LocalBroker, setting: str, partitions: int) -> Warehouse:
    """With a topic of its own for this setting of the output."""
    topic = f"{warehouse.pipeline.name}-{setting}"
    create_topics(broker.bootstrap, {topic: partitions}, {"retention.ms": "-1"})
    return replace(warehouse, pipeline=replace(warehouse.pipeline, **{f"output_{setting}_topic": topic}))


class Traffic:
    """send("a0:ann m20:ann s10:ann"): a caller's, a callee's and a switch's event of ann, at so many ms from `begun`."""

    def __init__(self, broker: LocalBroker, first: Pipeline, second: Pipeline, begun: int) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap})
        self._sides, self._begun = {"a": first.left, "m": first.right, "s": second.right}, begun

    def send(self, words: str) -> None:
        for word in words.split():
            side, (at, _, user) = self._sides[word[0]], word[1:].partition(":")
            body = {"user1": user, "user2": "v", "timestamp": self._begun + int(at), side.payload: word}
            # One record after the other: their offsets are part of what is compared.
            self._producer.produce(side.topic, value=json.dumps(body), key=f"{user}-v")
            assert self._producer.flush(20) == 0

    def repeat(self, topic: str, message: dict[str, Any]) -> None:
        """A message that was consumed, once more, as a mirror that is not exact writes it."""
        headers = [(name, message[name]) for name in ("pair-id", "revision", "kind", "op")]
        value = None if message["value"] is None else json.dumps(message["value"])
        self._producer.produce(topic, value=value, key=message["key"], headers=headers)
        assert self._producer.flush(20) == 0


def run(warehouse: Warehouse) -> dict[str, Any]:
    """One live batch, published; the counts of landing and pairing."""
    counts = land(warehouse) | pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return counts


def heal(warehouse: Warehouse) -> list[Window]:
    """The replays that the pipeline asks for by itself, run and published."""
    windows = [
        Window(time_argument(each["window_start"]), time_argument(each["window_end"]))
        for each in replay_late.main(warehouse)["replays"]
    ]
    for window in windows:
        replay_interval.main(warehouse, window)
        publish_compounds.main(warehouse)
    return windows


def state(broker: LocalBroker, topic: str) -> list[dict[str, Any]]:
    """The messages that count for a consumer: of each pair_id that of the largest revision, if it is no retraction."""
    newest: dict[str, dict[str, Any]] = {}
    for message in consume(broker.bootstrap, topic):
        if int(message["revision"]) >= int(newest.get(message["pair-id"], message)["revision"]):
            newest[message["pair-id"]] = message
    return [message for message in newest.values() if message["op"] == "upsert"]


def words(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Compounds of the second pipeline as `caller callee switch`, a dash for what is missing, sorted."""
    found = []
    for message in messages:
        call = message["value"]["call"] or {"analytics": None, "metrics": None}
        sides = (call["analytics"], call["metrics"], message["value"]["switch"])
        found.append(" ".join(side or "-" for side in sides))
    return sorted(found)


def expected(broker: LocalBroker, first: Pipeline, second: Pipeline) -> list[str]:
    """What the second pipeline's rule, word for word, makes of the first one's final state and of all that the switch said."""
    calls = [(LEFT, message["value"], message["value"]["ts"]) for message in state(broker, first.output_topic)]
    said = [
        (1, body, body["timestamp"]) for body in (each["value"] for each in consume(broker.bootstrap, second.right.topic))
    ]
    events = []
    for offset, (side, body, ts) in enumerate([*calls, *said]):
        payload = json.dumps(body)
        place = {"side": side, "partition": 0, "offset": offset, "ts": ts, "payload": payload, "is_open": False}
        events.append({"user1": body["user1"], "user2": body["user2"]} | place)
    told = []
    for outcome, left, right in slow_outcomes(events, Rules(second, 2**60, None)):
        if outcome == "duplicate":
            continue
        call = json.loads(events[left[-1]]["payload"]) if left else {}
        switch = json.loads(events[right[-1]]["payload"])["switch"] if right else None
        told.append(" ".join(side or "-" for side in (call.get("analytics"), call.get("metrics"), switch)))
    return sorted(told)
