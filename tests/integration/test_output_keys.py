"""Pairs whose joined fields are the same text: a message each under a key of its own, in everything that spells or reads output keys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from spark_jobs import publish_compounds, reconcile
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.story.from_tables import explain
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers import stream_clock
from tests.helpers.all_stages import land
from tests.helpers.reading import consume
from tests.helpers.stream_clock import run

pytestmark = pytest.mark.integration

KEYS = [("a-b", "c"), ("a", "b-c"), ("a\\", "b-c"), ("ann", "bob"), ('"', "\x00,é")]
SPELLED = {
    "escaped": [r"a\-b-c", r"a-b\-c", r"a\\-b\-c", "ann-bob", '"-\x00,é'],
    "json": ['["a-b","c"]', '["a","b-c"]', '["a\\\\","b-c"]', '["ann","bob"]', '["\\"","\\u0000,é"]'],
}
begun = stream_clock.begun
shipped = stream_clock.pipeline


@pytest.fixture(params=list(SPELLED))
def pipeline(shipped, request):
    return replace(shipped, output_key=request.param)


@pytest.fixture
def traffic(broker, pipeline, begun):
    """An event of each key at 0 ms, on both sides, and one that lets time pass."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for side in pipeline.sides:
        for at, keys in ((0, KEYS), (2_000, [("tick", "v")])):
            for key in keys:
                body = {"user1": key[0], "user2": key[1], "timestamp": begun + at, side.payload: 1}
                producer.produce(side.topic, value=json.dumps(body), key="-".join(key))
        # Whose it is says its Kafka key alone, which here is that of two pairs.
        producer.produce(side.topic, value=b"{nope", key="a-b-c")
    assert producer.flush(20) == 0


def test_no_pair_takes_the_key_of_another(warehouse, pipeline, broker, traffic):
    run(warehouse)
    publish_compounds.main(warehouse)
    on_topic = consume(broker.bootstrap, pipeline.output_topic)
    found = {message["key"]: (message["value"]["user1"], message["value"]["user2"]) for message in on_topic}
    assert (len(on_topic), found) == (len(KEYS), dict(zip(SPELLED[pipeline.output_key], KEYS, strict=True)))
    assert reconcile.main(warehouse).offenders == []
    for key in KEYS:
        lines = list(explain(warehouse, key))
        assert [line for line in lines if f": on {pipeline.output_topic}-" in line], lines
        assert ("  of this pair by its Kafka key only" in lines) == ("-".join(key) == "a-b-c")


def test_another_spelling_is_another_pipeline(warehouse, pipeline):
    land(warehouse)
    (other,) = set(SPELLED) - {pipeline.output_key}
    with pytest.raises(
        NeedsOperator, match=f"'{other}'.*: put it back, or give the changed pipeline a file name of its own"
    ):
        land(Warehouse(warehouse.root, replace(pipeline, output_key=other), warehouse.spark))
