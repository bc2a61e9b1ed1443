"""`key_order: any` from Kafka to Kafka: one pair in either order of its users, and on each side who named whom.

Everything is done twice: by the job itself, which has few rows, and by Spark's workers. Times are ms; T = 100, G = 200, R = 500.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from include.local.broker import create_topics
from spark_jobs import pair_events, publish_compounds, reconcile, replay_interval, replay_late, report_quality, rewind
from spark_jobs.job.arguments import time_argument
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.story.from_tables import explain
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import fresh_pipeline
from tests.helpers import stream_clock
from tests.helpers.all_stages import land
from tests.helpers.comparing import differences
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

begun = stream_clock.begun
# Side, time, who names whom, payload.
FIRST = [
    ("a", 0, "ann bob", 1), ("m", 50, "bob ann", 2),
    ("a", 0, "dan cat", 3), ("m", 30, "dan cat", 4),
    ("a", 0, "fay eve", 5), ("m", 0, "eve abe", 6),
    # Once more the same, and the same from the other user.
    ("a", 0, "ian joe", 7), ("a", 0, "ian joe", 7), ("a", 0, "joe ian", 7), ("m", 10, "ian joe", 8),
    ("a", 300, "mia ned", 9), ("a", 600, "pat ola", 13),
    # These wait for the next batch.
    ("a", 1950, "leo kim", 10), ("a", 2000, "tick tick", 0), ("m", 2000, "tick tick", 0),
]  # fmt: skip
SECOND = [
    ("m", 1990, "kim leo", 11), ("a", 1950, "leo kim", 10), ("a", 1950, "kim leo", 10),
    # Late: the partner of an orphan, and what the other user says of one.
    ("m", 350, "ned mia", 12), ("a", 600, "ola pat", 13),
    ("a", 4000, "tick tick", 0), ("m", 4000, "tick tick", 0),
]  # fmt: skip


@pytest.fixture
def two(broker, spark, request, tmp_path, monkeypatch):
    """Two pipelines on the same topics; few rows of the second one go through Spark's workers, too."""
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    rules = {"clock": "stream_time", "tolerance_ms": 100, "gap_ms": 200, "grace_ms": 500}
    here = fresh_pipeline(request.node, key_order="any", late="replay", **rules)
    spread = replace(here, name=f"{here.name}s", output_topic=f"{here.output_topic}-spread")
    topics = {side.topic: 1 for side in here.sides} | {each.output_topic: 2 for each in (here, spread)}
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    return [Warehouse(str(tmp_path / "warehouse"), each, spark) for each in (here, spread)]


@pytest.fixture
def batch(broker, two, begun, monkeypatch):
    """batch(events): they are sent, and each of the pipelines lands, pairs and publishes them; returns the counts of pairing."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def run(events):
        for letter, at, users, payload in events:
            side = two[0].pipeline.left if letter == "a" else two[0].pipeline.right
            body = dict(zip(("user1", "user2"), users.split(), strict=True)) | {
                "timestamp": begun + at,
                side.payload: payload,
            }
            producer.produce(side.topic, value=json.dumps(body))
            assert producer.flush(20) == 0
        return [each_way(monkeypatch, warehouse, lambda of: (land(of), pair_events.main(of))[1]) for warehouse in two]

    return run


def each_way(monkeypatch, warehouse, job):
    """What the job answers, and then everything is published."""
    with monkeypatch.context() as patch:
        if warehouse.pipeline.name.endswith("s"):
            patch.setenv(FEW_VARIABLE, "0")
        answer = job(warehouse)
        publish_compounds.main(warehouse)
    return answer


def published(broker, warehouse):
    """Key -> (kind, payloads, directions) of the compounds that count, in words; the keys of the value are those of the key."""
    found, revisions = {}, {}
    for message in consume(broker.bootstrap, warehouse.pipeline.output_topic):
        if int(message["revision"]) >= revisions.get(message["pair-id"], 0):
            revisions[message["pair-id"]], found[message["pair-id"]] = int(message["revision"]), message
    words = []
    for message in found.values():
        if (value := message["value"]) is not None:
            assert message["key"] == f"{value['user1']}-{value['user2']}"
            assert list(value) == "user1 user2 ts analytics metrics analytics_reversed metrics_reversed".split()
            directions = {True: "reversed", False: "as it is", None: None}
            sides = [(value[name], directions[value[f"{name}_reversed"]]) for name in ("analytics", "metrics")]
            words.append((message["key"], message["kind"], *sides))
    return sorted(words, key=str)


FIRST_TOLD = [
    ("abe-eve", "right_only", (None, None), (6, "reversed")),
    ("ann-bob", "pair", (1, "as it is"), (2, "reversed")),
    ("cat-dan", "pair", (3, "reversed"), (4, "reversed")),
    ("eve-fay", "left_only", (5, "reversed"), (None, None)),
    ("ian-joe", "left_only", (7, "reversed"), (None, None)),
    ("ian-joe", "pair", (7, "as it is"), (8, "as it is")),
    ("mia-ned", "left_only", (9, "as it is"), (None, None)),
    ("ola-pat", "left_only", (13, "reversed"), (None, None)),
]
SECOND_TOLD = [
    ("kim-leo", "left_only", (10, "as it is"), (None, None)),
    ("kim-leo", "pair", (10, "reversed"), (11, "as it is")),
    ("tick-tick", "pair", (0, "as it is"), (0, "as it is")),
]
HEALED = [
    ("mia-ned", "pair", (9, "as it is"), (12, "reversed")),
    ("ola-pat", "left_only", (13, "as it is"), (None, None)),
]


def test_both_orders_are_one_pair_and_both_ways_give_the_same(two, batch, broker, begun, monkeypatch):
    for counts in batch(FIRST):
        assert (counts["pair"], counts["left_only"], counts["right_only"], counts["duplicate"]) == (3, 4, 1, 1)
        assert counts["open_after"] == 3
    here, spread = two
    assert published(broker, here) == FIRST_TOLD
    waiting = {(row["user1"], row["user2"], row["reversed"]) for row in table_rows(here, OPEN)}
    assert waiting == {("kim", "leo", True), ("tick", "tick", False)}
    for counts in batch(SECOND):
        assert (counts["pair"], counts["left_only"], counts["duplicate"], counts["late"]) == (2, 1, 1, 2)
    assert published(broker, here) == sorted([*FIRST_TOLD, *SECOND_TOLD], key=str)

    assert differences(broker.bootstrap, here.root, here.pipeline, spread.pipeline) == []

    # What late events touch is of both orders.
    (asked,) = replay_late.main(here)["replays"]
    edges = [time_argument(asked[name]) for name in ("window_start", "window_end")]
    assert edges == [begun + 300, begun + 601]
    counts = each_way(monkeypatch, here, lambda of: replay_interval.main(of, Window(*edges)))
    assert [counts[name] for name in ("new", "changed", "retracted", "unchanged")] == [1, 1, 0, 1]
    assert published(broker, here) == sorted([*FIRST_TOLD[:-2], FIRST_TOLD[-1], *SECOND_TOLD, *HEALED], key=str)
    # Raw tables have the users as they came.
    assert {row["user1"] for row in table_rows(here, "raw_analytics")} >= {"ann", "dan", "fay", "leo", "kim"}


@pytest.mark.long
def test_a_report_reconcile_a_rewind_and_the_story_follow(two, batch, broker, monkeypatch):
    here, spread = two
    batch(FIRST)
    batch(SECOND)
    report_quality.main(here)
    rows = {row["batch_id"]: row for row in table_rows(here, METRICS)}
    users = {
        (each["family"], each["field"], each["value"]): each["number"]
        for each in rows[1]["breakdowns"]
        if each["family"] in ("users", "top_user")
    }
    assert users == {("users", "user1 or user2", None): 9, ("top_user", "user1 or user2", "eve"): 2}
    assert dict(rows[2]["metrics"])["late_healable"] == 1
    assert reconcile.main(here).offenders == []

    one, other = (list(explain(here, key)) for key in (("kim", "leo"), ("leo", "kim")))
    assert one == other and one[0].startswith("kim, leo: 4 messages in 2 batches")
    assert one.count("  its own order is leo, kim") == 2
    assert not [line for line in one if "otherwise" in line]

    # Corrections after a rewind find the compounds that consumers know, whatever the direction of their events.
    before = published(broker, spread)
    rewind.main(spread, 1)
    each_way(monkeypatch, spread, lambda of: (land(of), pair_events.main(of)))
    assert published(broker, spread) == before
    assert reconcile.main(spread).offenders == []
    # A pair and an orphan: published, taken back, and found again.
    assert sorted(row["revision"] for row in table_rows(spread, COMPOUNDS) if row["user1"] == "kim") == [0, 0, 1, 1, 2, 2]
