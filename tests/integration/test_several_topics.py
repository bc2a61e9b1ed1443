"""Sides of several topics: named ones and those of a pattern, topics that appear between batches, and what every law and correction makes of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from include.config.pipeline import Side
from include.local.broker import create_topics
from spark_jobs import pair_events, publish_compounds, reconcile, replay_interval, replay_late, report_quality, rewind
from spark_jobs.changes.plan import plan_changes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.arguments import time_argument
from spark_jobs.kafka.messages import output_partition
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.rules.rules import LEFT, RIGHT, Rules
from spark_jobs.rules.side_topics import SideTopics, pack
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.story.from_topics import read_topics
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.places import placed_by_side
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN, REJECTED
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import fresh_pipeline
from tests.helpers import stream_clock
from tests.helpers.all_stages import land
from tests.helpers.pages import pages_folder
from tests.helpers.reading import table_rows
from tests.helpers.reference_pairing import slow_outcomes
from tests.helpers.stream_clock import consumed, stories
from tests.integration.test_rejected_topic import OURS, delivered, letters, records, rejected

pytestmark = pytest.mark.integration

begun = stream_clock.begun
PARTITIONS = 2


@pytest.fixture
def pipeline(broker, request, monkeypatch):
    """Two topics left, a pattern right; T = 100, G = 200, R = 500, and clocks that follow the events alone."""
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    mine = fresh_pipeline(
        request.node, clock="stream_time", late="replay", tolerance_ms=100, gap_ms=200, grace_ms=500, consumer_group="seen"
    )
    name = mine.name
    left = Side((f"{name}-left-eu", f"{name}-left-us"), "analytics")
    right = Side(None, "metrics", topic_pattern=f"{name}-right-[a-z]+")
    # By name, a topic of the right side is between those of the left one.
    topics = [*left.named_topics, f"{name}-right-b", f"{name}-right-c", f"{name}-right-0", mine.output_topic]
    create_topics(broker.bootstrap, dict.fromkeys(topics, PARTITIONS), {"retention.ms": "-1"})
    return replace(mine, left=left, right=right)


@pytest.fixture
def warehouse(spark, pipeline, tmp_path):
    return Warehouse(str(tmp_path / "warehouse"), pipeline, spark)


@pytest.fixture
def topics(pipeline):
    """By the end of their names."""
    known = [*pipeline.left.named_topics, *(f"{pipeline.name}-right-{letter}" for letter in "abc")]
    return {topic.removeprefix(f"{pipeline.name}-"): topic for topic in known}


@pytest.fixture
def send(broker, pipeline, begun):
    """send(events): each (topic, partition, ms after `begun`, user); keeps them with their offsets as `send.sent`, as `slow_outcomes` takes them."""
    producer, sent, offsets = Producer({"bootstrap.servers": broker.bootstrap}), [], Counter()

    def send_events(events):
        for topic, partition, at, user in events:
            side = LEFT if "-left-" in topic else RIGHT
            payload = f"{len(sent)}"
            body = {"user1": user, "user2": "v", "timestamp": begun + at, pipeline.sides[side].payload: payload}
            producer.produce(topic, json.dumps(body), partition=partition)
            place = {"topic": topic, "side": side, "partition": partition, "offset": offsets[topic, partition]}
            sent.append(
                {"user1": user, "user2": "v", "ts": begun + at, "payload": payload, "is_open": False, "batch_id": 1, **place}
            )
            offsets[topic, partition] += 1
        assert producer.flush(20) == 0

    send_events.sent = sent
    return send_events


def ticks(topics, at):
    """An event on every partition, so that every clock comes this far."""
    return [(topic, number, at, "tick") for topic in topics for number in range(PARTITIONS)]


def traffic(topics, begin, seed):
    """Events of three users with many equal times, and ticks behind them."""
    drawn = random.Random(seed)
    events = [
        (drawn.choice(topics), drawn.randrange(PARTITIONS), begin + 50 * drawn.randrange(12), drawn.choice("xyz"))
        for _ in range(40)
    ]
    return [*events, *ticks(topics, begin + 900)]


def made(warehouse):
    """(kind, left, right) of the compounds that hold, as `slow_outcomes` names them."""
    newest = {}
    for row in sorted(table_rows(warehouse, COMPOUNDS), key=lambda row: row["revision"]):
        newest[row["pair_id"]] = row
    found = Counter()
    for row in newest.values():
        if row["op"] == "upsert":
            sides = [
                None
                if row[f"{side}_offset"] is None
                else (row["user1"], "v", number, row[f"{side}_topic"], row[f"{side}_partition"], row[f"{side}_offset"])
                for number, side in enumerate(("left", "right"))
            ]
            found[row["kind"], *sides] += 1
            mine = row["left_topic"] and f"{row['left_topic']}-{row['left_partition']}-{row['left_offset']}"
            assert row["pair_id"] == (mine or f"{row['right_topic']}-{row['right_partition']}-{row['right_offset']}")
    return found


def brute(send, pipeline, clock):
    """The same of all events at once, by the slow rules; open ones are left out."""
    found = slow_outcomes(send.sent, Rules(pipeline, clock, None))
    return Counter({names: number for names, number in found.items() if names[0] in ("pair", "left_only", "right_only")})


def run(warehouse):
    land(warehouse)
    counts = pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return counts


def first_two(warehouse, send, topics, broker):
    """A batch of four topics; then one that appeared meanwhile, its first record gone, is in the next one, and in the third all sessions are closed."""
    old = [topics[name] for name in ("left-eu", "left-us", "right-b", "right-c")]
    send(traffic(old, 0, 1))
    run(warehouse)
    create_topics(broker.bootstrap, {topics["right-a"]: PARTITIONS}, {"retention.ms": "-1"})
    send([(topics["right-a"], 0, 950, "gone")])
    del send.sent[-1]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (answer,) = admin.delete_records([TopicPartition(topics["right-a"], 0, 1)]).values()
    answer.result(timeout=20)
    send(traffic([*topics.values()], 1_000, 2))
    run(warehouse)
    send(ticks(topics.values(), 9_000))
    run(warehouse)


def test_a_topic_that_appears_joins_the_next_batch_and_every_law_holds(warehouse, send, topics, broker, begun, capsys):
    first_two(warehouse, send, topics, broker)
    said = capsys.readouterr().out
    assert f"topic {topics['right-a']} is new: it is read from its first offset on" in said
    assert f"{topics['right-a']}-0 began at 1: older records were gone before this pipeline" in said
    assert not table_rows(warehouse, REJECTED)
    assert made(warehouse) == brute(send, warehouse.pipeline, begun + 9_000)
    assert {row["topic"] for row in table_rows(warehouse, OPEN)} == set(topics.values())
    planned = [row for row in Ledger(warehouse).rows(1) if row.step == PLANNED]
    assert [len(row.topics.right) for row in planned] == [2, 3, 3]
    assert [sorted(row.topic_ids) == sorted({at.topic for at in row.offsets}) for row in planned] == [True] * 3

    report_quality.main(warehouse)
    metrics = {row["batch_id"]: dict(row["metrics"]) for row in table_rows(warehouse, METRICS)}
    assert all(numbers[law] == 0 for numbers in metrics.values() for law in numbers if law.endswith("_difference"))
    page = (pages_folder(warehouse.root, warehouse.pipeline.name) / "batch-2.html").read_text()
    assert f"Topics that are new with this batch: {topics['right-a']}." in page
    assert [metrics[batch]["gone_at_start"] for batch in (1, 2, 3)] == [0, 1, 0]
    answer = reconcile.main(warehouse)
    assert (answer.offenders, answer.counts["records that were gone when the pipeline began"]) == ([], 1)
    assert len(consumed(warehouse, broker)) == sum(made(warehouse).values())
    (rehearsed,) = read_topics(warehouse.pipeline, 1_000, None)
    assert len(rehearsed.messages) == len(send.sent)


@pytest.mark.long
def test_workers_replays_rewinds_and_stories_know_the_topics(warehouse, send, topics, broker, begun, monkeypatch):
    monkeypatch.setenv(FEW_VARIABLE, "0")
    pipeline = warehouse.pipeline
    first_two(warehouse, send, topics, broker)
    whole = made(warehouse)
    assert whole == brute(send, pipeline, begun + 9_000)
    stories(warehouse)

    counts = replay_interval.main(warehouse, Window(begun, begun + 1_900))
    assert sum(counts.get(name, 0) for name in ("new", "changed", "retracted")) == 0

    # Back to before the topic joined: it joins again, and all comes out as before.
    rewind.main(warehouse, 1)
    run(warehouse)
    run(warehouse)
    assert made(warehouse) == whole
    assert reconcile.main(warehouse).offenders == []

    # What a new topic has from before the clock is late, and its replay pairs it.
    send([(topics["right-a"], 1, 100, "x"), (topics["left-us"], 0, 150, "new"), *ticks(topics.values(), 20_000)])
    assert run(warehouse)["late"] == 2
    assert {row["topic"] for row in table_rows(warehouse, REJECTED)} == {topics["right-a"], topics["left-us"]}
    for each in replay_late.main(warehouse)["replays"]:
        edges = [time_argument(each[name]) for name in ("window_start", "window_end")]
        replay_interval.main(warehouse, Window(*edges))
        publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    assert made(warehouse) == brute(send, pipeline, begun + 20_000)
    assert reconcile.main(warehouse).offenders == []
    stories(warehouse)


@pytest.mark.long
def test_a_list_may_grow_and_nothing_else(warehouse, send, topics, broker, begun):
    first_two(warehouse, send, topics, broker)
    pipeline, known = warehouse.pipeline, warehouse.pipeline.left.named_topics
    added = f"{pipeline.name}-left-ap"

    def with_left(**changes):
        return replace(pipeline, left=replace(pipeline.left, **changes))

    for changes in ({"topic": known[0]}, {"topic": (known[0], added)}):
        with pytest.raises(NeedsOperator, match="its tables were made with topics"):
            land(replace(warehouse, pipeline=with_left(**changes)))
    with pytest.raises(NeedsOperator, match="its tables were made with topics"):
        land(replace(warehouse, pipeline=replace(pipeline, right=replace(pipeline.right, topic_pattern=".*-right-[a-z]"))))

    create_topics(broker.bootstrap, {added: 1}, {"retention.ms": "-1"})
    send([(added, 0, 9_050, "tick"), *ticks(topics.values(), 20_000), (added, 0, 20_000, "tick")])
    grown = replace(warehouse, pipeline=with_left(topic=tuple(sorted((*known, added)))))
    plan = plan_changes(warehouse.root, grown.pipeline)
    assert plan.state == "changed"
    assert f"partitions of {added} 0 -> 1" in [str(each.change) for each in plan.changes]
    run(grown)
    assert made(grown) == brute(send, grown.pipeline, begun + 20_000)
    assert reconcile.main(grown).offenders == []
    # From names to a pattern that has all of them.
    matched = replace(grown, pipeline=with_left(topic=None, topic_pattern=f"{pipeline.name}-left-(eu|us|ap)"))
    assert land(matched)["landed"] == 0


def test_an_empty_new_topic_does_not_hold_back_the_clock(warehouse, send, topics, broker, begun):
    """With lag_aware an empty partition is at the wall time; with stream_time it does not count."""
    lagging = replace(warehouse, pipeline=replace(warehouse.pipeline, clock="lag_aware"))
    send([(topics["left-eu"], 0, 0, "x"), (topics["right-b"], 0, 50, "x")])
    land(lagging)
    before = Ledger(lagging).last_batch()[PLANNED].wall_time
    pair_events.main(lagging)
    create_topics(broker.bootstrap, {topics["right-a"]: PARTITIONS})
    land(lagging)
    assert Ledger(lagging).last_batch()["landed"].clock > before


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.long)], ids=["here", "by Spark"])
def test_a_dead_letter_is_of_the_topic_that_it_names(few, warehouse, topics, broker, begun, monkeypatch):
    """Records of several topics have the same partition and offset."""
    if not few:
        monkeypatch.setenv(FEW_VARIABLE, "0")
    names, to = ("left-eu", "left-us", "right-b", "right-c"), f"{warehouse.pipeline.name}-rejected"
    create_topics(broker.bootstrap, {to: 3}, {"retention.ms": "-1"})
    mine = replace(warehouse, pipeline=replace(warehouse.pipeline, output_rejected_topic=to))
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def produce(name, value):
        producer.produce(topics[name], value, partition=0, headers=[("from", name.encode())])
        assert producer.flush(20) == 0

    for name in names:
        produce(name, f"{{nope {name}")
    event = json.dumps({"user1": "x", "user2": "v", "timestamp": begun, "analytics": 1})
    produce("left-us", event)
    run(mine)
    # Of two equal events, that of the first topic by name counts. The other one was landed by the batch before.
    produce("left-eu", event)
    run(mine)
    assert letters(mine, broker) == rejected(mine)
    wanted = [(f"{topics[name]}-0-0", "malformed_json", 1) for name in names] + [
        (f"{topics['left-us']}-0-1", "duplicate", 2)
    ]
    assert rejected(mine) == sorted(wanted)
    sources = {
        f"{each.topic()}-0-{each.offset()}": each for name in names for each in records(broker.bootstrap, topics[name])
    }
    for letter in records(broker.bootstrap, to):
        headers = letter.headers()
        ours = {name.removeprefix("__rejected."): value.decode() for name, value in headers[-len(OURS) :]}
        place = "-".join(ours[name] for name in ("topic", "partition", "offset"))
        assert (letter.key(), letter.value()) == (None, sources[place].value())
        assert headers[: -len(OURS)] == sources[place].headers()
        assert letter.partition() == output_partition(place.encode(), 3)
    report_quality.main(mine)
    assert delivered(mine, 2) == (5, 5, 0)
    answer = reconcile.main(mine)
    assert (answer.offenders, answer.counts["… on the rejected topic"]) == ([], 5)


def test_what_cannot_be_read_is_refused_in_one_line(warehouse, send, topics, broker):
    pipeline = warehouse.pipeline

    def refused(left=pipeline.left, right=pipeline.right):
        with pytest.raises(NeedsOperator) as line:
            land(replace(warehouse, pipeline=replace(pipeline, left=left, right=right)))
        assert "\n" not in str(line.value)
        return str(line.value)

    nothing = refused(right=replace(pipeline.right, topic_pattern="nobody-has-.*"))
    assert "matches right.topic_pattern 'nobody-has-.*'" in nothing and "correct the pattern" in nothing
    both = refused(left=replace(pipeline.left, topic=None, topic_pattern=f"{pipeline.name}-right-b"))
    assert both.startswith(f"both sides would read {topics['right-b']}, ")
    assert refused(left=replace(pipeline.left, topic=("gone-a", "gone-b"))).startswith("topic gone-a is not on the broker")
    # Those that orphans and rejected records went to under earlier settings.
    orphans, strange = f"{pipeline.name}-right-orphans", f"{pipeline.name}-right-rejected"
    send([(topics["left-eu"], 0, 0, "x")])
    before = replace(warehouse, pipeline=replace(pipeline, output_orphans_topic=orphans, output_rejected_topic=strange))
    land(before)
    pair_events.main(before)
    for own in (strange, orphans):
        create_topics(broker.bootstrap, {own: 1})
        assert refused().startswith(f"topic {own} has compounds or rejected records of this pipeline")
    # One that was read and vanished.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (answer,) = admin.delete_topics([topics["right-c"]]).values()
    answer.result(timeout=20)
    assert refused().startswith(f"topic {topics['right-c']} is not on the broker")


def test_spark_numbers_topics_as_arrow_does(spark):
    topics = SideTopics(("a", "c"), ("b",))
    rows = [("left", "a", 3), ("left", "c", 2**20 - 1), ("right", "b", 5)]
    frame = spark.createDataFrame(rows, "side string, topic string, partition int")
    found = [number for (number,) in frame.select(placed_by_side(topics, F.col("side") == "left")).collect()]
    arrays = [pack(topics[side == "right"], pa.array([topic]), pa.array([at], pa.int32())) for side, topic, at in rows]
    assert found == [each[0].as_py() for each in arrays]


@pytest.mark.long
def test_fifty_topics_a_side(warehouse, send, broker, begun, pipeline):
    """With as many that do not match beside them."""
    letters = [f"{one}{other}" for one in "defgh" for other in "abcdefghij"]
    mine = [f"{pipeline.name}-right-{each}" for each in letters]
    others = [f"{pipeline.name}-right-{number}" for number in range(1, 51)]
    create_topics(broker.bootstrap, dict.fromkeys([*mine, *others], PARTITIONS), {"retention.ms": "-1"})
    topics = [*pipeline.left.named_topics, *mine]
    send([*traffic(topics, 0, 3), *traffic(topics, 1_000, 4)])
    run(warehouse)
    send(ticks(topics, 9_000))
    run(warehouse)
    assert made(warehouse) == brute(send, pipeline, begun + 9_000)
    report_quality.main(warehouse)
    assert reconcile.main(warehouse).offenders == []
