"""Kafka dies, forgets, or is another one than before: a clear refusal, or every event once; what was lost stays on record.

An output topic that changes, and a compound that it does not take: test_publishing.py. Positions that expired: test_jobs.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from include.local.broker import LocalBroker, create_topics
from include.local.process import free_port
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.corrections import unfinished
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import fencing, offsets, positions, records, retries, transaction
from spark_jobs.kafka.offsets import ask_broker
from spark_jobs.kafka.positions import publisher_group
from spark_jobs.kafka.settings import VARIABLE, BrokerProblem, consumer_settings, kafka_settings
from spark_jobs.stages import land as landing_stage
from spark_jobs.stages import publish
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS
from tests.helpers.cut_logs import batch_starts
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows
from tests.integration.test_publishing import assert_all_once, pair_made_up, publish_only

pytestmark = pytest.mark.integration

LOST = "the broker no longer has"


class SwiftBroker(LocalBroker):
    """Ends transactions that have timed out at once, not after ten seconds."""

    def _configure(self):
        super()._configure()
        with (self.folder / "server.properties").open("a") as settings:
            settings.write("transaction.abort.timed.out.transaction.cleanup.interval.ms=300\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of these tests' own, which they may stop and kill."""
    with SwiftBroker(tmp_path_factory.mktemp("broker"), free_port()) as running:
        yield running


@pytest.fixture(autouse=True)
def up_again(broker):
    yield
    broker.start()


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def pipeline(pipeline):
    """Sessions are over soon, so that what a later batch lands is neither late nor open."""
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100)


@pytest.fixture
def impatience(broker, pipeline, monkeypatch):
    """Within impatience(), jobs give an absent broker up after seconds: too few for one that has just started to find its groups."""

    @contextmanager
    def impatient():
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "delivery.timeout.ms": 3_000,
            "request.timeout.ms": 1_000,
            "linger.ms": 1,
        }
        with monkeypatch.context() as patch:
            patch.setenv(VARIABLE, json.dumps(settings))
            for module in (fencing, positions, retries, transaction):
                patch.setattr(module, "ANSWER_WITHIN_S", 3.0)
            yield

    return impatient


@pytest.fixture
def calls(broker, pipeline):
    """calls(first, last, sides): of each number both sides of a call, or these sides, over when this returns."""
    # One that lived longer would complain of every broker that is away.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "log_level": 0})

    def send(first, last, sides=(0, 1)):
        now = time.time_ns() // 1_000_000
        for number in range(first, last):
            for of in (pipeline.sides[side] for side in sides):
                body = {"user1": f"u{number}", "user2": "v", "timestamp": now, of.payload: number}
                producer.produce(of.topic, json.dumps(body), f"u{number}-v")
        assert producer.flush(20) == 0
        time.sleep(0.3)

    return send


def land(warehouse, accepted=()):
    return land_events.main(warehouse, 1_000_000, accepted)


def run_all(warehouse, accepted=()):
    land(warehouse, accepted)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return report_quality.main(warehouse)


def plan_only(warehouse):
    """What a land job has done that died right after its plan."""
    ledger = Ledger(warehouse)
    return landing_stage.plan_batch(warehouse, ledger, unfinished.finish_batch(warehouse, ledger), 1_000_000)


def row_of(warehouse, step, batch_id):
    return next(row for row in Ledger(warehouse).rows(batch_id, batch_id) if row.step == step)


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def id_of(topic):
    return ask_broker(kafka_settings(), [topic]).ids[topic]


def ends(admin, topic):
    places = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    return {place.partition: answer.result().offset for place, answer in admin.list_offsets(places).items()}


def forget(admin, topic, until):
    """What retention does. `until`: partition -> first offset that is left."""
    for answer in admin.delete_records([TopicPartition(topic, number, at) for number, at in until.items()]).values():
        answer.result(timeout=20)


def wait_for_the_ends_of_transactions(warehouse):
    """Kafka answers a commit first and writes it to the partitions afterwards; killed in between, one of version 4.3 may never do that."""
    group, topic = publisher_group(warehouse.pipeline.name), warehouse.pipeline.output_topic
    consumer = Consumer(consumer_settings(kafka_settings(), group))
    assert None not in positions.committed_positions(consumer, topic, range(PARTITIONS)).values()
    consumer.close()


def nobody_there(patch):
    """From now on nobody listens where the broker is looked for."""
    patch.setattr(offsets, "ANSWER_WITHIN_S", 0.5)
    patch.setenv(VARIABLE, json.dumps(kafka_settings() | {"bootstrap.servers": f"127.0.0.1:{free_port()}"}))


# The broker goes away


def test_a_broker_away_before_during_and_after_each_stage(warehouse, broker, calls, monkeypatch):
    calls(0, 20)
    with monkeypatch.context() as patch:
        nobody_there(patch)
        with pytest.raises(BrokerProblem, match="no answer from Kafka at 127"):
            land(warehouse)
    assert table_rows(warehouse, "batch_ledger") == []

    # Gone between plan and read, and for good: in Spark's own words a stack trace.
    def gone(*_):
        nobody_there(patch)
        raise TimeoutError("_TIMED_OUT")

    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "append_raw", gone)
        with pytest.raises(BrokerProblem, match="no answer from Kafka at 127"):
            land(warehouse)
    assert [row["step"] for row in table_rows(warehouse, "batch_ledger")] == [PLANNED]

    # Killed there, but back soon: the read waits for it.
    real, comes_back, faults = landing_stage.append_raw, threading.Thread(target=broker.start), [broker.kill]

    def append_without_broker(*arguments):
        while faults:
            faults.pop()()
            comes_back.start()
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "append_raw", append_without_broker)
        # A broker takes longer to start on a machine under load than a reader waits for one.
        patch.setattr(records, "ANSWER_WITHIN_S", 120.0)
        planned = Ledger(warehouse).last_batch()[PLANNED]
        assert landing_stage.land_batch(warehouse, Ledger(warehouse), planned).landed.landed == 40
    comes_back.join()
    with monkeypatch.context() as patch:
        nobody_there(patch)
        # Pairing needs no broker.
        assert pair_events.main(warehouse)["pair"] == 20
        with pytest.raises(BrokerProblem, match="no answer from Kafka at 127"):
            publish_compounds.main(warehouse)

    # Killed when all is sent and committed, before the ledger hears of it.
    def killed(*_):
        wait_for_the_ends_of_transactions(warehouse)
        broker.kill()
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "check_acknowledged", killed)
        with pytest.raises(RuntimeError, match="died"):
            publish_compounds.main(warehouse)
    broker.start()
    assert publish_compounds.main(warehouse)["sent"] == 0
    with monkeypatch.context() as patch:
        nobody_there(patch)
        # It reads back what was published.
        with pytest.raises(BrokerProblem, match="no answer from Kafka at 127"):
            report_quality.main(warehouse)
    assert "not judged" in (Path(warehouse.root) / warehouse.pipeline.name / "quality/index.html").read_text()
    assert report_quality.main(warehouse)["pair"] == 20
    assert Counter(row["user1"] for row in table_rows(warehouse, "compound_events")) == Counter(f"u{n}" for n in range(20))
    assert_all_once(warehouse, broker)


# A transaction that does not end as it should


@pytest.fixture
def end_is_lost(broker, pipeline):
    """end_is_lost(): the broker has forgotten the end of the transaction that was last to move a position of this pipeline."""

    def lose():
        broker.kill()
        data = broker.folder / "data"
        group = publisher_group(pipeline.name).encode()
        (log,) = (log for log in data.glob("__consumer_offsets-*/*.log") if group in log.read_bytes())
        batches = log.read_bytes()
        starts = list(batch_starts(batches))
        log.write_bytes(batches[: starts[-1]])
        for kept in (*log.parent.glob("*.snapshot"), *log.parent.glob("*.*index")):
            kept.unlink()
        broker.start()

    return lose


def test_a_position_that_the_broker_never_decides_is_told_as_what_it_is(warehouse, pipeline, impatience, end_is_lost):
    pair_made_up(warehouse, 1, {})
    publish_only(warehouse, *range(PARTITIONS))
    wait_for_the_ends_of_transactions(warehouse)
    end_is_lost()
    line = (
        f"the position on {pipeline.output_topic}-. of group {pipeline.name}.publisher is undecided: no transaction of this publisher is open, "
        r"but .* \(from offset \d+ of __consumer_offsets-\d on since \d{4}-.* UTC\); nothing was sent; .* abort --topic __consumer_offsets"
    )
    with impatience(), pytest.raises(BrokerProblem, match=line):
        publish_compounds.main(warehouse)


@pytest.fixture
def publish_with(warehouse, monkeypatch):
    """publish_with(at, fault): one partition after the other is published; the fault strikes once, at the first such point."""

    def publish(at, fault):
        struck = []

        def strike(name):
            if name == f"transaction_{at}" and not struck:
                struck.append(name)
                fault()

        with monkeypatch.context() as patch:
            patch.setattr(transaction, "fault_point", strike)
            try:
                publish_only(warehouse, *range(PARTITIONS))
            finally:
                assert struck

    return publish


@pytest.mark.long
@pytest.mark.parametrize("at", ["half_sent", "offsets_sent"])
def test_a_broker_restarted_with_a_transaction_open(at, warehouse, broker, impatience, publish_with):
    pair_made_up(warehouse, 1, {})

    def restart():
        broker.kill()
        broker.start()

    # The client may come through, or give up: whichever it is, the next run ends with every compound once.
    with suppress(BrokerProblem), impatience():
        publish_with(at, restart)
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


def test_a_broker_that_dies_for_good_in_a_transaction(warehouse, broker, impatience, publish_with):
    pair_made_up(warehouse, 1, {})
    lost = r"publishing to .* failed: .*; nothing of the open transaction is visible"
    with ExitStack() as impatient:

        def die():
            broker.kill()
            # Not before: it may just have started, and still be looking for its groups.
            impatient.enter_context(impatience())

        with pytest.raises(BrokerProblem, match=lost):
            publish_with("all_sent", die)
    broker.start()
    assert consume(broker.bootstrap, warehouse.pipeline.output_topic) == []
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


@pytest.mark.parametrize("at", [pytest.param("half_sent", marks=pytest.mark.long), "offsets_sent"])
def test_a_transaction_that_takes_longer_than_its_timeout(at, warehouse, broker, pipeline, publish_with, monkeypatch):
    pair_made_up(warehouse, 1, {})
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap, "transaction.timeout.ms": 1_000}))
        with pytest.raises(BrokerProblem, match=f"publishing to {pipeline.output_topic}-. at .* failed"):
            publish_with(at, lambda: time.sleep(2))
    assert consume(broker.bootstrap, pipeline.output_topic) == []
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


# Input topics change


@pytest.fixture
def recreated(broker, admin, calls):
    """recreated(): the right side's topic is another one, longer than the old one was; gives the line that refuses it."""

    def recreate(topic):
        old = id_of(topic)
        admin.delete_topics([topic])[topic].result(timeout=20)
        wait_for(lambda: topic not in admin.list_topics(timeout=20).topics)
        create_topics(broker.bootstrap, {topic: PARTITIONS}, {"retention.ms": "-1"})
        wait_for(lambda: topic in admin.list_topics(timeout=20).topics)
        calls(100, 140, sides=(1,))
        return rf"^input topic {topic} was deleted and created again \(id {old}, now {id_of(topic)}\): .*lost; .*start a new one under"

    return recreate


def test_an_input_topic_created_again_is_refused_whoever_works_with_its_offsets(warehouse, pipeline, calls, recreated):
    calls(0, 4)
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    line = recreated(pipeline.right.topic)
    before = [table_rows(warehouse, table) for table in ("batch_ledger", "raw_metrics", "compound_events")]
    for work in (land, land, lambda _: rewind.main(warehouse, 0), reconcile.main):
        with pytest.raises(NeedsOperator, match=line):
            work(warehouse)
    assert [table_rows(warehouse, table) for table in ("batch_ledger", "raw_metrics", "compound_events")] == before


def test_an_input_topic_created_again_after_the_plan_is_refused(warehouse, pipeline, calls, recreated):
    calls(0, 4)
    plan_only(warehouse)
    line = recreated(pipeline.right.topic)
    for _ in range(2):
        with pytest.raises(NeedsOperator, match=line):
            land(warehouse)
    assert [row["step"] for row in table_rows(warehouse, "batch_ledger")] == [PLANNED]
    assert table_rows(warehouse, "raw_metrics") == []


# Retention is faster


def test_records_lost_before_the_plan_are_refused_with_all_their_ranges(warehouse, admin, pipeline, calls):
    calls(0, 5)
    land(warehouse)
    pair_events.main(warehouse)
    first = {side.topic: ends(admin, side.topic) for side in pipeline.sides}
    calls(5, 45)
    lost = []
    for topic, begun in first.items():
        # All but the last record of each partition.
        until = {number: end - 1 for number, end in ends(admin, topic).items()}
        forget(admin, topic, until)
        lost += [f"{topic}-{number}:{begun[number]}-{end}" for number, end in sorted(until.items())]
    assert len(lost) == 4
    told = " ".join(lost)
    for accepted in ([], lost[:3], [*lost[:3], lost[3].replace(":", ":1")]):
        with pytest.raises(NeedsOperator, match=f"{LOST} 76 records that were never landed, {told} .* = {told}$"):
            land(warehouse, accepted)
    run_all(warehouse, lost)
    assert land(warehouse)["lost"] == 0
    # For ever: on the ledger, on the page of the batch and in its metrics; in what reconcile says, see below.
    landed = row_of(warehouse, LANDED, 2)
    on_ledger = [
        f"{at.topic}-{at.partition}:{at.from_offset - at.lost}-{at.from_offset}" for at in landed.offsets if at.lost
    ]
    assert (on_ledger, landed.landed.lost) == (lost, 76)
    page = (pages_folder(warehouse.root, pipeline.name) / "batch-2.html").read_text()
    line = next(line for line in page.splitlines() if '"row">no records were lost by the broker' in line)
    assert ">76<" in line and ">warning<" in line
    (metrics,) = (row["metrics"] for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == 2)
    assert dict(metrics)["lost"] == 76


def test_records_lost_after_the_plan_are_refused_and_then_landed_without(warehouse, admin, pipeline, calls, monkeypatch):
    left, right = (side.topic for side in pipeline.sides)
    calls(0, 40)
    planned = plan_only(warehouse)
    # Of what the left side loses, nothing is lost: it was landed before the job died.
    landing_stage.append_raw(warehouse, planned, planned.offsets, pipeline.left)
    until = {topic: ends(admin, topic) for topic in (left, right)}
    forget(admin, left, {0: 3, 1: until[left][1]})
    # Of the right side's first partition all that was planned goes, and more.
    calls(40, 80, sides=(1,))
    end = until[right][0]
    forget(admin, right, {0: end + 1, 1: 2})
    lost, beyond = [f"{right}-0:0-{end}", f"{right}-1:0-2"], f"{right}-0:{end}-{end + 1}"

    def refused(accepted, *ranges):
        with pytest.raises(NeedsOperator, match=rf"{LOST} \d+ records that were never landed, {' '.join(ranges)} \("):
            land(warehouse, accepted)

    refused(lost[:1], *lost)
    # A job that died when the rest was in the tables leaves the loss unsaid, so it is asked for again.
    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "count", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            land(warehouse, lost)
    refused((), *lost)
    assert PAIRED not in Ledger(warehouse).last_batch()
    # The batch is finished without them; what was lost behind it is the next plan's to refuse.
    refused(lost, beyond)
    assert PAIRED in Ledger(warehouse).last_batch()
    landed = row_of(warehouse, LANDED, 1).landed
    assert (landed.lost, landed.offset_gaps) == (end + 2, 0)
    assert landed.planned == landed.landed == sum(known.planned for known in planned.offsets) - end - 2
    run_all(warehouse, [beyond])
    answer = reconcile.main(warehouse)
    assert (answer.offenders, answer.counts["records given up (lost ranges)"]) == ([], end + 3)


def test_records_lost_while_they_are_read_are_told_by_their_range(warehouse, admin, pipeline, calls, monkeypatch):
    topic = pipeline.left.topic
    calls(0, 10)
    end, real = ends(admin, topic)[0], landing_stage.append_raw
    assert end

    def too_late(warehouse, planned, ranges, side):
        if side == pipeline.left:
            forget(admin, topic, {0: end})
        real(warehouse, planned, ranges, side)

    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "append_raw", too_late)
        with pytest.raises(NeedsOperator, match=rf"{LOST} {end} records that were never landed, {topic}-0:0-{end} \("):
            land(warehouse)
    land(warehouse, [f"{topic}-0:0-{end}"])
    assert row_of(warehouse, LANDED, 1).landed.lost == end


# What lag tools see


def test_a_consumer_group_shows_what_was_landed_also_of_new_partitions(warehouse, broker, admin, pipeline, calls, capfd):
    group, grown = f"{pipeline.name}.landed", pipeline.left.topic
    shown = Warehouse(warehouse.root, replace(pipeline, consumer_group=group), warehouse.spark)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    tool = Consumer(settings)

    def committed(places):
        return {
            (at.topic, at.partition): at.offset
            for at in tool.committed([TopicPartition(*place) for place in places], timeout=20)
        }

    calls(0, 10)
    land(warehouse)
    assert committed([(grown, 0)]) == {(grown, 0): -1001}, "off by default"
    admin.create_partitions([NewPartitions(grown, 5)])[grown].result(timeout=20)
    wait_for(lambda: len(admin.list_topics(grown, timeout=20).topics[grown].partitions) == 5)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(5):
        producer.produce(grown, b"{", partition=number)
    assert producer.flush(20) == 0
    land(shown)
    until = {(known.topic, known.partition): known.until_offset for known in row_of(warehouse, LANDED, 2).offsets}
    assert [until[grown, number] for number in (2, 3, 4)] == [1, 1, 1]
    assert committed(until) == until
    assert sum(until.values()) == 25
    # Somebody consumes in that group: Kafka refuses, the batch does not care. Nobody reads the offsets back.
    member = Consumer(settings)
    member.subscribe([grown])
    wait_for(lambda: member.poll(0.2) is not None or member.assignment())
    calls(10, 20)
    assert land(shown)["landed"] == 20
    assert f"warning: consumer group {group} does not show what was landed" in capfd.readouterr().err
    member.close()
    tool.close()
