"""Pipelines whose clocks follow the events alone, so that one cut of the traffic always gives the same."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from include.local.broker import create_topics
from spark_jobs import pair_events
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.story.from_tables import explain
from tests.conftest import fresh_pipeline
from tests.helpers.all_stages import land
from tests.helpers.reading import consume, table_rows


class Killed(Exception):
    """Instead of a kill."""


@pytest.fixture
def pipeline(broker, request, monkeypatch):
    """Clocks follow the events alone, so that one cut of the traffic always gives the same. T = 100, G = 200, R = 500."""
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    mine = fresh_pipeline(request.node, clock="stream_time", tolerance_ms=100, gap_ms=200, grace_ms=500)
    topics = {mine.left.topic: 1, mine.right.topic: 1, mine.output_topic: 2}
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    return mine


@pytest.fixture
def begun():
    """Epoch ms of the time 0 of `send`."""
    return (time.time_ns() // 1_000_000_000 - 3_600) * 1_000


@pytest.fixture
def send(broker, pipeline, begun):
    """send("a0:x m50:x a99:x=2"): left at 0 and right at 50 ms of user x, and another left with payload 2."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send_words(words):
        for word in words.split():
            side = pipeline.left if word[0] == "a" else pipeline.right
            at, _, user = word[1:].partition(":")
            user, _, payload = user.partition("=")
            body = {"user1": user, "user2": "v", "timestamp": begun + int(at or 0), side.payload: payload or word}
            # One record after the other: their offsets are part of what is compared.
            producer.produce(side.topic, value=json.dumps(body) if at else b"{nope", key=f"{user}-v")
            assert producer.flush(20) == 0

    return send_words


def run(warehouse):
    land(warehouse)
    return pair_events.main(warehouse)


@contextmanager
def killed_at(monkeypatch, point):
    """A job that changes a table, or archives its rows, dies at the point."""

    def die(name):
        if name == point:
            raise Killed(name)

    with monkeypatch.context() as patched:
        patched.setattr("spark_jobs.faults.fault_points.fault_point", die)
        with pytest.raises(Killed):
            yield


def consumed(warehouse, broker):
    """What a consumer has who applies every message: pair_id -> (kind, value). Revisions of a pair_id come one after the other."""
    state, revisions = {}, Counter()
    for message in consume(broker.bootstrap, warehouse.pipeline.output_topic):
        pair_id = message["pair-id"]
        assert int(message["revision"]) == revisions[pair_id], pair_id
        assert (message["op"] == "retract") == (message["value"] is None)
        revisions[pair_id] += 1
        state.pop(pair_id, None)
        if message["op"] == "upsert":
            state[pair_id] = (message["kind"], json.dumps(message["value"]))
    return state


def stories(warehouse):
    """user1 -> the lines of explain_pair, for everybody who has an event. They must agree with the tables, and with the topic."""
    raw = [row for side in warehouse.pipeline.sides for row in table_rows(warehouse, f"raw_{side.payload}")]
    keys = sorted({(row["user1"], row["user2"]) for row in raw if row["user1"] and row["user2"]})
    told = {key[0]: list(explain(warehouse, key)) for key in keys}
    lines = [line for each in told.values() for line in each]
    assert not [line for line in lines if "otherwise" in line or "not read" in line or "not on" in line]
    # Every row of every compound, whether it holds now or not.
    revisions = [line for line in lines if line.startswith("  revision ")]
    assert len(revisions) == len([row for row in table_rows(warehouse, "compound_events") if row["user1"] in told])
    return told
