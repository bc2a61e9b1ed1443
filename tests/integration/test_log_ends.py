"""Logs that lost their end, and partitions that begin above 0: told, refused, and gone on from only by an operator's word.

Of a real broker: it is stopped, a partition's log is cut, and it is started again, under a new leader epoch as in production.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from include.local.broker import LocalBroker
from include.local.process import free_port
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.corrections import unfinished
from spark_jobs.corrections.rewind import dry_run
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.input_topics import cut_since
from spark_jobs.kafka.offsets import ask_broker, wait_for_markers
from spark_jobs.kafka.records import Share, Span, read_shares
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.stages import land as landing_stage
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PLANNED, OffsetRange
from spark_jobs.tables.records import REWIND
from tests.helpers.all_stages import land
from tests.helpers.cut_logs import cut_log
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration


class SwiftBroker(LocalBroker):
    """Looks every fifth of a second for what it can compact, not every 15 seconds."""

    def _configure(self):
        super()._configure()
        with (self.folder / "server.properties").open("a") as settings:
            settings.write("log.cleaner.backoff.ms=200\n")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of these tests' own, which they may stop and cut."""
    with SwiftBroker(tmp_path_factory.mktemp("broker"), free_port()) as running:
        yield running


@pytest.fixture
def pipeline(pipeline):
    """Sessions are over soon."""
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100)


@pytest.fixture
def write(broker, pipeline):
    """write(first, last, sides): a side of each of these calls, each a batch of its own, into partition 0; over when this returns."""

    def send(first, last, sides=(0, 1), partition=0):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(first, last):
            now = time.time_ns() // 1_000_000
            for of in (pipeline.sides[side] for side in sides):
                body = {"user1": f"u{number}", "user2": "v", "timestamp": now, of.payload: number}
                producer.produce(of.topic, json.dumps(body), f"u{number}-v", partition=partition)
                assert producer.flush(20) == 0
        time.sleep(0.3)

    return send


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def forget(admin, topic, partition, until):
    """What retention does."""
    (removed,) = admin.delete_records([TopicPartition(topic, partition, until)]).values()
    removed.result(timeout=20)


def plan_only(warehouse, most=1_000_000):
    ledger = Ledger(warehouse)
    return landing_stage.plan_batch(warehouse, ledger, unfinished.finish_batch(warehouse, ledger), most)


def go_on(warehouse):
    """The other three jobs of the batch."""
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return report_quality.main(warehouse)


def steps(warehouse):
    return [row["step"] for row in table_rows(warehouse, "batch_ledger")]


def raw_users(warehouse, table="raw_analytics"):
    """Offset -> user1, of partition 0."""
    rows = [row for row in table_rows(warehouse, table) if row["partition"] == 0]
    assert len({row["offset"] for row in rows}) == len(rows)
    return {row["offset"]: row["user1"] for row in sorted(rows, key=lambda row: row["offset"])}


def landed_row(warehouse, batch_id):
    return next(row for row in Ledger(warehouse).rows(batch_id, batch_id) if row.step == LANDED)


def assert_consumers_have_the_compounds(warehouse, broker):
    """Of each pair_id the message with the largest revision is the last row of compound_events."""
    last = {}
    for row in sorted(table_rows(warehouse, "compound_events"), key=lambda row: row["revision"]):
        last[row["pair_id"]] = (row["revision"], row["op"], row["user1"])
    seen = {}
    for message in sorted(
        consume(broker.bootstrap, warehouse.pipeline.output_topic), key=lambda message: int(message["revision"])
    ):
        user = message["value"]["user1"] if message["value"] else last[message["pair-id"]][2]
        seen[message["pair-id"]] = (int(message["revision"]), message["op"], user)
    assert seen == last


# A log that ends before the plan


@pytest.mark.long
@pytest.mark.parametrize("when", ["before the remedy", "after the remedy"])
def test_a_log_that_was_cut_after_the_plan_is_refused_and_then_landed_without(warehouse, broker, pipeline, write, when):
    topic = pipeline.left.topic
    write(0, 10)
    plan_only(warehouse)
    cut_log(broker, topic, 0, 5)
    if when == "before the remedy":
        write(20, 28, sides=(0,))
    lost = f"{topic}-0:5-10"
    line = rf"5 records that were never landed, {lost} \(the log was cut at its end\): .* run once with accept_lost_range = {lost}$"
    for accepted in ((), (), [f"{topic}-0:6-10"]):
        with pytest.raises(NeedsOperator, match=line):
            land_events.main(warehouse, 1_000_000, accepted)
    assert (steps(warehouse), table_rows(warehouse, "raw_analytics")) == ([PLANNED], [])
    land_events.main(warehouse, 1_000_000, [lost])
    first = landed_row(warehouse, 1)
    assert (first.landed.lost, first.landed.offset_gaps, first.landed.landed) == (5, 0, 15)
    if when == "after the remedy":
        write(20, 28, sides=(0,))
    go_on(warehouse)
    land(warehouse)
    # Every offset once, and the new records where the old ones were.
    now = [*range(5), *range(20, 28)]
    assert raw_users(warehouse) == {offset: f"u{user}" for offset, user in enumerate(now)}
    go_on(warehouse)
    assert land(warehouse)["lost"] == 0
    answer = reconcile.main(warehouse)
    assert (answer.offenders, answer.counts["records given up (lost ranges)"]) == ([], 5)
    assert_consumers_have_the_compounds(warehouse, broker)
    # For ever: the ledger's row, the page of the batch, its metrics.
    (of_left,) = (at for at in first.offsets if at.cut)
    assert (of_left.topic, of_left.until_offset, of_left.cut_from, of_left.cut) == (topic, 5, 5, 5)
    assert f'<td class="number">{lost}</td>' in (pages_folder(warehouse.root, pipeline.name) / "batch-1.html").read_text()
    (metrics,) = (row["metrics"] for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == 1)
    assert dict(metrics)["lost"] == 5


@pytest.mark.parametrize("writes_on", [pytest.param(False, marks=pytest.mark.long), True], ids=["ends there", "written on"])
def test_a_log_that_is_cut_while_it_is_read_is_told_by_its_range(warehouse, broker, pipeline, write, monkeypatch, writes_on):
    topic = pipeline.left.topic
    write(0, 10)
    real = landing_stage.append_raw

    def too_late(warehouse, planned, ranges, side):
        if side == pipeline.left:
            cut_log(broker, topic, 0, 5)
        real(warehouse, planned, ranges, side)
        if side == pipeline.left and writes_on:
            pytest.fail("five records were taken for ten")

    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "append_raw", too_late)
        # The other side may be read while its broker is away.
        with pytest.raises(NeedsOperator, match=rf"{topic}-0:5-10 \(the log was cut at its end\)"):
            land(warehouse)
    assert raw_users(warehouse) == {}
    if writes_on:
        write(20, 28, sides=(0,))
    land_events.main(warehouse, 1_000_000, [f"{topic}-0:5-10"])
    assert landed_row(warehouse, 1).landed.lost == 5


def test_the_reader_tells_an_end_before_the_plan_from_offsets_without_a_record(broker, pipeline, write):
    topic = pipeline.left.topic
    write(0, 10, sides=(0,))
    cut_log(broker, topic, 0, 5)
    with pytest.raises(ValueError, match=f"^{topic}-0 ended at offset 5 while it was read up to 10$"):
        list(read_shares(kafka_settings(), [Share(topic, 0, Span(0, 10))]))
    assert sum(piece.num_rows for piece in read_shares(kafka_settings(), [Share(topic, 0, Span(0, 10))], "earliest")) == 5
    assert sum(piece.num_rows for piece in read_shares(kafka_settings(), [Share(topic, 0, Span(0, 5))])) == 5


@pytest.mark.long
def test_a_job_that_died_behind_an_accepted_end_asks_for_it_again(warehouse, broker, pipeline, write, monkeypatch):
    topic = pipeline.left.topic
    write(0, 10)
    plan_only(warehouse)
    cut_log(broker, topic, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(landing_stage, "count", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            land_events.main(warehouse, 1_000_000, [f"{topic}-0:5-10"])
    # By now there is more than was planned; five of it are not in the tables.
    write(20, 28, sides=(0,))
    with pytest.raises(NeedsOperator, match=f"{topic}-0:5-10"):
        land(warehouse)
    land_events.main(warehouse, 1_000_000, [f"{topic}-0:5-10"])
    assert raw_users(warehouse) == {offset: f"u{user}" for offset, user in enumerate([*range(5), *range(20, 28)])}
    go_on(warehouse)
    assert reconcile.main(warehouse).offenders == []


def test_an_end_that_no_batch_had_planned_is_told_as_well(warehouse, broker, pipeline, write):
    topic = pipeline.left.topic
    write(0, 10, sides=(0,))
    land_events.main(warehouse, 4)
    pair_events.main(warehouse)
    cut_log(broker, topic, 0, 7)
    write(20, 30, sides=(0,))
    with pytest.raises(NeedsOperator, match=f"3 records that were never landed, {topic}-0:7-10"):
        land(warehouse)
    assert land_events.main(warehouse, 1_000_000, [f"{topic}-0:7-10"])["lost"] == 3
    assert raw_users(warehouse) == {offset: f"u{user}" for offset, user in enumerate([*range(7), *range(20, 30)])}


# Offsets without a record at the end of what was planned


def test_a_transaction_that_was_aborted_at_the_end_leaves_gaps(warehouse, broker, pipeline, write):
    topic = pipeline.left.topic
    write(0, 3, sides=(0,))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    for _ in range(4):
        producer.produce(topic, b"{}", partition=0)
    producer.flush(20)
    producer.abort_transaction(20)
    wait_for_markers(kafka_settings(), topic)
    counts = land(warehouse)
    # Four records that nobody may see, and the marker.
    assert (counts["planned"], counts["landed"], counts["offset_gaps"], counts["lost"]) == (8, 3, 5, 0)
    go_on(warehouse)
    assert reconcile.main(warehouse).offenders == []


def test_what_was_compacted_away_at_the_end_of_a_plan_leaves_gaps(warehouse, broker, admin, pipeline):
    topic = pipeline.left.topic
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "200",
    }
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def one(key, value):
        producer.produce(topic, value, key, partition=0)
        assert producer.flush(20) == 0

    one("first", b"{}")
    for _ in range(5):
        one("again", b"{}")
    plan = plan_only(warehouse)
    assert next(at for at in plan.offsets if (at.topic, at.partition) == (topic, 0)).until_offset == 6

    def left():
        time.sleep(0.5)
        # Each new record makes the one before it old, and its segment ready.
        one("again", b"{}")
        return sum(piece.num_rows for piece in read_shares(kafka_settings(), [Share(topic, 0, Span(0, 6))]))

    deadline = time.monotonic() + 60
    while left() > 1:
        assert time.monotonic() < deadline, "nothing was compacted"
    planned = Ledger(warehouse).last_batch()[PLANNED]
    counts = landing_stage.land_batch(warehouse, Ledger(warehouse), planned).landed
    assert (counts.planned, counts.landed, counts.offset_gaps, counts.lost) == (6, 1, 5, 0)


# A log that was cut below what was landed


@pytest.mark.parametrize("writes_on", [pytest.param(False, marks=pytest.mark.long), True], ids=["ends there", "written on"])
def test_a_log_that_was_cut_below_what_was_landed_is_refused_until_it_is_rewound(
    warehouse, broker, pipeline, write, writes_on
):
    topic = pipeline.left.topic
    write(0, 3)
    land(warehouse)
    go_on(warehouse)
    write(3, 10)
    land(warehouse)
    go_on(warehouse)
    cut_log(broker, topic, 0, 5)
    if writes_on:
        # The end alone looks as if nothing had happened.
        write(20, 28, sides=(0,))
        assert ask_broker(kafka_settings(), [topic]).end[topic, 0] == 13
    line = rf"^the log was cut below what was landed: {topic}-0 at offset 5; .*: rewind to batch 1, or start a new pipeline"
    before = raw_users(warehouse)
    for _ in range(2):
        with pytest.raises(NeedsOperator, match=line):
            land(warehouse)
    assert raw_users(warehouse) == before
    lost = f"{topic}-0:5-10"
    assert f"{topic}-0:3-10  the broker no longer has {lost}" in dry_run(warehouse, 1)
    with pytest.raises(NeedsOperator, match=f"the broker no longer has {lost}, and the raw tables would give it up"):
        rewind.main(warehouse, 1)
    rewind.main(warehouse, 1, [lost])
    with pytest.raises(NeedsOperator, match=f"5 records that were never landed, {lost}"):
        land(warehouse)
    assert land_events.main(warehouse, 1_000_000, [lost])["lost"] == 5
    if not writes_on:
        go_on(warehouse)
        write(20, 28, sides=(0,))
        land(warehouse)
    assert raw_users(warehouse) == {offset: f"u{user}" for offset, user in enumerate([*range(5), *range(20, 28)])}
    go_on(warehouse)
    time.sleep(0.3)
    land(warehouse)
    go_on(warehouse)
    answer = reconcile.main(warehouse)
    assert (answer.offenders, answer.counts["records given up (lost ranges)"]) == ([], 5)
    assert_consumers_have_the_compounds(warehouse, broker)


@pytest.mark.long
def test_a_log_that_was_cut_below_what_was_landed_after_the_next_plan_is_refused(warehouse, broker, pipeline, write):
    topic = pipeline.left.topic
    write(0, 10)
    land(warehouse)
    pair_events.main(warehouse)
    write(10, 12)
    plan_only(warehouse)
    cut_log(broker, topic, 0, 5)
    write(20, 28, sides=(0,))
    for _ in range(2):
        with pytest.raises(NeedsOperator, match=f"cut below what was landed: {topic}-0 at offset 5; .* rewind to batch 0,"):
            land(warehouse)
    rewind.main(warehouse, 0, [f"{topic}-0:5-12", f"{topic}-0:5-10"])
    assert Ledger(warehouse).last_batch()[PLANNED].kind == REWIND


def test_a_broker_that_is_only_restarted_has_cut_nothing(warehouse, broker, pipeline, write):
    write(0, 10)
    land(warehouse)
    pair_events.main(warehouse)
    broker.kill()
    broker.start()
    write(10, 12)
    assert land(warehouse)["landed"] == 4


def test_what_a_partition_says_of_its_epochs(broker, admin, pipeline, write):
    topic = pipeline.left.topic
    write(0, 10, sides=(0,))
    now = ask_broker(kafka_settings(), [topic])

    def cut(end, epoch):
        return cut_since(kafka_settings(), [OffsetRange(topic, 0, 0, 0, end, epoch=epoch)])

    epoch = now.epochs[topic, 0]
    assert cut(10, epoch) == cut(3, epoch) == cut(10, -1) == {}
    cut_log(broker, topic, 0, 5)
    assert (cut(10, epoch), cut(5, epoch)) == ({(topic, 0): 5}, {})
    write(10, 20, sides=(0,))
    assert (cut(10, epoch), cut(6, epoch), cut(5, epoch), cut(15, ask_broker(kafka_settings(), [topic]).epochs[topic, 0])) == (
        {(topic, 0): 5}, {(topic, 0): 5}, {}, {},
    )  # fmt: skip
    # What retention takes is no cut, and where it took the place of one nothing is left to tell.
    forget(admin, topic, 0, 12)
    assert cut(10, epoch) == cut(5, epoch) == {}


# Partitions that begin above 0


def test_a_partition_that_begins_above_0_says_so_and_one_that_comes_later_has_lost_its_beginning(
    warehouse, admin, pipeline, write, capsys
):
    left, right = (side.topic for side in pipeline.sides)
    write(0, 7)
    write(0, 3, sides=(1,), partition=1)
    forget(admin, left, 0, 4)
    # Of this one nothing is left.
    forget(admin, right, 1, 3)
    counts = land(warehouse)
    began = {f"began_{left}-0": 4, f"began_{right}-1": 3}
    assert {name: at for name, at in counts.items() if name.startswith("began_")} == began
    assert (counts["landed"], counts["planned"], counts["lost"], counts["gone_at_start"]) == (10, 10, 0, 7)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " began at " in line] == [
        f"{place} began at {at}: older records were gone before this pipeline" for place, at in ((f"{left}-0", 4), (f"{right}-1", 3))
    ]  # fmt: skip
    go_on(warehouse)
    page = (pages_folder(warehouse.root, pipeline.name) / "batch-1.html").read_text()
    assert f"When the pipeline began with them, older records were gone: {left}-0 began at 4, {right}-1 began at 3." in page
    (metrics,) = (dict(row["metrics"]) for row in table_rows(warehouse, "quality_metrics"))
    assert (metrics["gone_at_start"], metrics["lost"], metrics["continuity_difference"]) == (7, 0, 0)

    # One that comes later and has lost its beginning, beside one that has lost what came since.
    admin.create_partitions([NewPartitions(left, 3)])[left].result(timeout=20)
    while len(admin.list_topics(left, timeout=20).topics[left].partitions) < 3:
        time.sleep(0.05)
    write(10, 15, sides=(0,), partition=2)
    write(10, 15, sides=(1,))
    forget(admin, left, 2, 2)
    forget(admin, right, 0, 9)
    lost = [f"{left}-2:0-2", f"{right}-0:7-9"]
    for accepted in ((), lost[:1], lost[1:]):
        with pytest.raises(NeedsOperator, match=f"4 records that were never landed, {' '.join(lost)} "):
            land_events.main(warehouse, 1_000_000, accepted)
    counts = land_events.main(warehouse, 1_000_000, lost)
    assert (counts["lost"], counts["landed"], counts.get("gone_at_start", 0)) == (4, 6, 0)
    assert "began at" not in capsys.readouterr().out
    go_on(warehouse)
    metrics = {row["batch_id"]: dict(row["metrics"]) for row in table_rows(warehouse, "quality_metrics")}
    assert (metrics[2]["lost"], metrics[2]["gone_at_start"], metrics[2]["continuity_difference"]) == (4, 0, 0)
    answer = reconcile.main(warehouse)
    told = ("records given up (lost ranges)", "records that were gone when the pipeline began")
    assert (answer.offenders, [answer.counts[what] for what in told]) == ([], [4, 7])

    # Back before the first batch: where the pipeline began it begins again, and what was lost is lost again.
    rewind.main(warehouse, 0, [f"{right}-0:0-9"])
    lost = [f"{left}-2:0-2", f"{right}-0:0-9"]
    with pytest.raises(NeedsOperator, match=f"11 records that were never landed, {' '.join(lost)} "):
        land(warehouse)
    assert land_events.main(warehouse, 1_000_000, lost)["lost"] == 11
    planned = Ledger(warehouse).last_batch()[PLANNED]
    assert {f"began_{at.topic}-{at.partition}": at.began for at in planned.offsets if at.began} == began
    assert [at.from_offset for at in planned.offsets] == [4, 0, 2, 9, 3]
