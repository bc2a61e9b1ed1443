"""Traffic of which no outcome depends on when it is landed: event times lie in the past, and the clock is that of the stream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker, create_topics
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers.timeline import CALLS

START = 1_700_000_000_000
MINUTE = 60_000
# Longer than gap and grace together, so that every portion closes what the one before left open.
STEP = 10 * MINUTE


def timeless(name: str, inputs: str, folder: Path) -> tuple[Pipeline, Path]:
    """The shipped rules with the clock of the stream, and their file. Pipelines with the same `inputs` read the same topics."""
    left, right = Side(f"{inputs}.analytics", "analytics"), Side(f"{inputs}.metrics", "metrics")
    pipeline = replace(CALLS, name=name, left=left, right=right, output_topic=f"{name}.output", clock="stream_time")
    folder.mkdir(parents=True, exist_ok=True)
    file = yaml_of(pipeline, folder)
    file.write_text(f"{file.read_text()}clock: stream_time\n")
    return pipeline, file


class Portions:
    """Sends portion after portion to the input topics of a pipeline, each with every outcome that there is."""

    def __init__(self, broker: LocalBroker, *pipelines: Pipeline) -> None:
        self.pipeline, self.sent = pipelines[0], 0
        topics = {side.topic for side in self.pipeline.sides} | {pipeline.output_topic for pipeline in pipelines}
        create_topics(broker.bootstrap, dict.fromkeys(topics, PARTITIONS), {"retention.ms": "-1"})
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})

    def send(self) -> None:
        """The next portion, all on the topics when it returns."""
        number, now = self.sent, START + self.sent * STEP
        over = now - STEP // 2
        for call in range(6):
            self._event("a", f"pair{number}-{call}", over + call)
            self._event("m", f"pair{number}-{call}", over + call + 30)
        self._event("a", f"left{number}", over)
        self._event("m", f"right{number}", over)
        for _ in range(2):
            self._event("m", f"twice{number}", over)
        # Late, but for the first portion, before which there is no clock.
        self._event("a", f"late{number}", now - 120 * MINUTE)
        self._event("a", f"future{number}", now + 100 * 365 * 24 * 60 * MINUTE)
        for broken in (b"{nope", b'{"user2": "v", "timestamp": 1}', b'{"user1": "u", "user2": "v", "timestamp": -1}'):
            self._record("m", broken)
        # The other side comes with the next portion, and once more what came with this one.
        for call in range(3):
            self._event("a", f"open{number}-{call}", now)
            if number:
                self._event("m", f"open{number - 1}-{call}", now - STEP + 20_000)
        if number:
            self._event("a", f"open{number - 1}-0", now - STEP)
        for side in "am":
            for partition in range(PARTITIONS):
                self._event(side, f"tick{number}-{side}{partition}", now, partition=partition)
        assert self.producer.flush(20) == 0
        self.sent += 1

    def _event(self, side: str, user: str, ts: int, **options: Any) -> None:
        of = self.pipeline.left if side == "a" else self.pipeline.right
        body = {"user1": user, "user2": "v", "timestamp": ts, of.payload: {"of": user, "at": ts}}
        self._record(side, json.dumps(body).encode(), key=f"{user}-v", **options)

    def _record(self, side: str, value: bytes, **options: Any) -> None:
        of = self.pipeline.left if side == "a" else self.pipeline.right
        self.producer.produce(of.topic, value=value, **options)
