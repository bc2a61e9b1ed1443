"""The output topic changes, or a publisher dies, in the middle of a publication: every compound once, or a clear refusal."""

from __future__ import annotations

import json
import time
from collections import Counter

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from pyspark.sql.pandas.types import to_arrow_schema

from include.local.broker import create_topics
from spark_jobs import publish_compounds
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka import fencing, publisher
from spark_jobs.kafka.fencing import transactional_id
from spark_jobs.kafka.messages import Message, message_maker, messages_for, reading_of_compounds, size
from spark_jobs.kafka.output_topic import output_topic
from spark_jobs.kafka.positions import PublishRun
from spark_jobs.kafka.settings import VARIABLE, BrokerProblem, kafka_settings, producer_settings
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.stages import publish
from spark_jobs.tables.commit import commit_frame
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHED, PUBLISHING
from spark_jobs.tables.records import PublishedCounts
from spark_jobs.tables.schemas import COMPOUNDS, declared_schema
from tests.conftest import PARTITIONS
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALLS = 60


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def paired(warehouse):
    """paired(sizes): one more batch of compounds that was paired but not published; sizes: number -> bytes of payload."""
    ids = iter(range(1, 10))
    return lambda sizes=None: pair_made_up(warehouse, next(ids), sizes or {})


def pair_made_up(warehouse, batch_id, sizes):
    """What a pair job leaves behind, of events that nobody landed."""
    pipeline = warehouse.pipeline
    names = [field.name for field in declared_schema(pipeline, COMPOUNDS).fields]
    compounds = [
        dict.fromkeys(names)
        | {
            "pair_id": f"{pipeline.left.topic}-0-{batch_id * CALLS + number}",
            "revision": 0,
            "op": "upsert",
            "kind": "left_only",
        }
        | {
            "user1": f"u{number}",
            "user2": "v",
            "ts": number,
            "analytics": f'"{"x" * sizes.get(number, 0)}"',
            "batch_id": batch_id,
        }
        for number in range(CALLS)
    ]
    rows = [tuple(compound[name] for name in names) for compound in compounds]
    frame = warehouse.spark.createDataFrame(rows, declared_schema(pipeline, COMPOUNDS))
    commit_frame(warehouse, COMPOUNDS, frame, COMPOUNDS, batch_id)
    Ledger(warehouse).append(ledger_row(batch_id, PAIRED, pipeline=pipeline, compounds=CALLS))


def plan(warehouse, accepted=None):
    ledger = Ledger(warehouse)
    last = ledger.last_ids()
    rows = ledger.rows(last[PUBLISHED], last[PAIRED])
    todo = [row for row in rows if row.step == PAIRED and row.batch_id > last[PUBLISHED]]
    before = publish.LastPublished.of(row for row in rows if row.batch_id == last[PUBLISHED])
    settings = kafka_settings()
    topic = output_topic(settings, warehouse.pipeline.output_topic)
    begun = [row for row in rows if row.step == PUBLISHING]
    run = publish.plan_run(warehouse, settings, topic, todo, before, begun, publish.Acceptances((accepted,)))
    publish.begin(ledger, settings, run, [row for row in todo if row.batch_id <= run.target], begun)
    return run


def publish_only(warehouse, *partitions, run=None, accepted=None):
    """What a publisher has done that died when only these partitions had their share."""
    run = run or plan(warehouse, accepted)
    batches = range(run.ledger_position + 1, run.target + 1)
    table = reading_of_compounds(warehouse, dict.fromkeys(batches, run.partitions), batches).to_arrow().sort_by("batch_id")
    for partition in partitions:
        mine = [
            batch.filter([number == partition for number in batch.column("output_partition").to_pylist()])
            for batch in table.to_batches()
        ]
        publisher.publish_partition(kafka_settings(), run, partition, messages_for(partition, mine))


def grow(admin, pipeline, partitions):
    topic = pipeline.output_topic
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(timeout=20)
    wait_for_partitions(admin, topic, partitions)


def recreate(admin, broker, pipeline, partitions):
    topic = pipeline.output_topic
    admin.delete_topics([topic])[topic].result(timeout=20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.1)
    create_topics(broker.bootstrap, {topic: partitions}, {"retention.ms": "-1"})
    wait_for_partitions(admin, topic, partitions)


def wait_for_partitions(admin, topic, partitions):
    deadline = time.monotonic() + 20
    while len(admin.list_topics(topic, timeout=20).topics[topic].partitions) != partitions:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def assert_all_once(warehouse, broker):
    compounds = Counter(row["pair_id"] for row in table_rows(warehouse, "compound_events"))
    published = Counter(message["pair-id"] for message in consume(broker.bootstrap, warehouse.pipeline.output_topic))
    assert published == compounds
    assert set(compounds.values()) == {1}


@pytest.mark.parametrize("done", [(0,), pytest.param((0, 1), marks=pytest.mark.long)], ids=str)
def test_a_topic_that_grows_in_the_middle_of_a_publication(done, warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse, *done)
    grow(admin, pipeline, 5)
    # Paired meanwhile, and for nobody to see: it is sent with the new number, behind the half-finished one.
    paired()
    counts = publish_compounds.main(warehouse)
    assert counts["compounds"] == 2 * CALLS
    assert_all_once(warehouse, broker)
    partitions = {row.batch_id: row.output_state.partitions for row in Ledger(warehouse).rows(1, 2) if row.step == PUBLISHED}
    assert partitions == {1: 2, 2: 5}
    paired()
    assert publish_compounds.main(warehouse)["sent"] == CALLS
    assert_all_once(warehouse, broker)


def test_a_topic_that_grows_after_the_last_partition_of_a_run(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse, 0)
    grow(admin, pipeline, 3)
    paired()
    # Finished with two partitions, but killed before the ledger heard of it; then the new ones got their share.
    publish_only(warehouse, 1)
    assert plan(warehouse).partitions == 2
    grow(admin, pipeline, 4)
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


def test_a_publisher_that_counts_on_other_partitions_sends_nothing(warehouse, broker, admin, pipeline, paired):
    paired()
    stale = plan(warehouse)
    grow(admin, pipeline, 3)
    publish_only(warehouse, 0)
    sent = consume(broker.bootstrap, pipeline.output_topic)
    with pytest.raises(JobProblem, match="moved meanwhile, for 3 partitions instead of 2: another publisher"):
        publish_only(warehouse, 0, run=stale)
    assert consume(broker.bootstrap, pipeline.output_topic) == sent


@pytest.mark.parametrize("partitions", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_recreated_topic_is_refused_until_it_is_accepted_by_its_id(partitions, warehouse, broker, admin, pipeline, paired):
    paired()
    publish_compounds.main(warehouse)
    paired()
    publish_only(warehouse, 1)
    recreate(admin, broker, pipeline, partitions)
    new_id = output_topic(kafka_settings(), pipeline.output_topic).topic_id
    for accepted in (None, "AAAAAAAAAAAAAAAAAAAAAA"):
        with pytest.raises(NeedsOperator, match=f"created again .*, now {new_id}.*--accept-recreated-topic {new_id}"):
            publish_compounds.main(warehouse, accepted)
    assert consume(broker.bootstrap, pipeline.output_topic) == []
    publish_compounds.main(warehouse, new_id)
    ids = {row["pair_id"] for row in table_rows(warehouse, "compound_events") if row["batch_id"] == 2}
    assert Counter(message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic)) == Counter(ids)
    paired()
    assert publish_compounds.main(warehouse)["sent"] == CALLS


def test_what_was_acknowledged_before_a_crash_is_still_known(warehouse, broker, pipeline, paired):
    paired()
    publish_only(warehouse, 0, 1)
    paired()
    publish_only(warehouse, 1)
    counts = publish_compounds.main(warehouse)
    assert (counts["batches"], counts["compounds"]) == (2, 2 * CALLS)
    assert counts["sent"] < CALLS
    assert_all_once(warehouse, broker)
    on_topic = Counter(message["partition"] for message in consume(broker.bootstrap, pipeline.output_topic))
    sent = [row.output_state.sent for row in Ledger(warehouse).rows(1, 2) if row.step == PUBLISHED]
    assert [sorted(each) for each in sent] == [[0, 1], [0, 1]]
    assert [sum(each.values()) for each in sent] == [CALLS, CALLS]
    assert {n: sum(each[n] for each in sent) for n in (0, 1)} == on_topic


class Forgetful(fencing.Producer):
    """Loses every tenth message: neither sent nor acknowledged."""

    produced = 0

    def produce(self, *arguments, **options):
        self.produced += 1
        if self.produced % 10:
            super().produce(*arguments, **options)


class Refused(fencing.Producer):
    """Sends, but hears of one message that the broker refused it."""

    def produce(self, *arguments, on_delivery, **options):
        super().produce(
            *arguments, on_delivery=lambda _, message: on_delivery(KafkaError(KafkaError._FAIL), message), **options
        )


def test_records_that_nobody_acknowledged_are_not_published(warehouse, pipeline, paired, monkeypatch):
    paired()
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "Producer", Forgetful)
        publish_only(warehouse, 0, 1)
    for _ in range(2):
        with pytest.raises(
            BrokenInvariant, match=f"{CALLS} compounds are in compound_events, but {pipeline.output_topic} ack"
        ):
            publish_compounds.main(warehouse)
    assert Ledger(warehouse).last_ids()[PUBLISHED] == 0


def test_a_refused_record_undoes_its_transaction_and_is_named_in_the_log(
    warehouse, broker, pipeline, paired, monkeypatch, capfd
):
    paired()
    with monkeypatch.context() as patched:
        patched.setattr(fencing, "Producer", Refused)
        with pytest.raises(JobProblem, match=f"publishing to {pipeline.output_topic}-0 at .* failed"):
            publish_only(warehouse, 0)
    # A log names nobody: no key.
    assert f"not delivered to {pipeline.output_topic}-0: a message of batch 1: " in capfd.readouterr().err
    assert consume(broker.bootstrap, pipeline.output_topic) == []
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


def takes(admin, pipeline, bytes_):
    alter_topic(admin, pipeline, "max.message.bytes", str(bytes_))


def alter_topic(admin, pipeline, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.output_topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


@pytest.mark.parametrize("died", [False, True], ids=["at once", "after a crash"])
def test_a_compound_larger_than_the_topic_takes_is_named_and_the_others_go_out(
    died, warehouse, broker, admin, pipeline, paired
):
    takes(admin, pipeline, 5000)
    # Numbers 7 and 8 are as large as is taken, and a byte more.
    paired()
    (row, *_) = table_rows(warehouse, "compound_events")
    columns = to_arrow_schema(declared_schema(pipeline, COMPOUNDS))
    one = pa.RecordBatch.from_pylist([{**row, "analytics": '""', "user1": "u7", "ts": 7}], columns)
    (message,) = messages_for(0, [message_maker(pipeline, {row["batch_id"]: 1})(one)])
    free = 5000 - size(message)
    free -= len(f"{2 * CALLS}") - len(f"{CALLS}")
    paired({7: free, 8: free + 1, 9: 100_000})
    if died:
        publish_only(warehouse, 0, 1)
    names = sorted(f"{pipeline.left.topic}-0-{2 * CALLS + number}" for number in (8, 9))
    with pytest.raises(
        NeedsOperator, match=rf"too large for {pipeline.output_topic} .*\(compounds: 2\): {', '.join(names)};"
    ):
        publish_compounds.main(warehouse)
    published = Counter(message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic))
    wanted = {row["pair_id"] for row in table_rows(warehouse, "compound_events")} - set(names)
    assert published == Counter(wanted)
    rows = {row.batch_id: row.published for row in Ledger(warehouse).rows(1, 2) if row.step == PUBLISHED}
    assert rows == {
        1: PublishedCounts(compounds=CALLS), 2: PublishedCounts(compounds=CALLS - 2, refused=2),
    }  # fmt: skip
    paired()
    assert publish_compounds.main(warehouse)["sent"] == CALLS


def test_settings_that_break_the_promise_are_refused_before_anything_is_sent(
    warehouse, broker, pipeline, paired, monkeypatch
):
    paired()
    settings = {"bootstrap.servers": broker.bootstrap, "acks": "1"}
    monkeypatch.setenv(VARIABLE, json.dumps(settings))
    with pytest.raises(
        NeedsOperator, match="setting acks=1 of kafka_default is refused: a record that not all replicas have"
    ):
        publish_compounds.main(warehouse)
    monkeypatch.setenv(
        VARIABLE, json.dumps(settings | {"acks": "all", "linger.ms": 5, "compression.type": "zstd", "retries": 3})
    )
    assert publish_compounds.main(warehouse)["sent"] == CALLS


@pytest.mark.parametrize("after", [0, 1_000], ids=["records refused", "position refused"])
def test_a_publisher_that_was_fenced_says_so(after, pipeline, broker):
    run = PublishRun(
        pipeline.name, pipeline.output_topic, "id", False, "table", PARTITIONS, ledger_position=0, target=1, largest=100_000
    )

    def messages():
        yield Message(1, b"a", b"1", [("pair-id", b"x-0-1")])
        for number in range(1_001):
            if number == after:
                later = Producer(producer_settings(kafka_settings(), transactional_id(run.group, 0)))
                later.init_transactions(20)
            if number < 1_000:
                yield Message(1, b"b", b"2", [("pair-id", f"x-0-{number}".encode())])

    with pytest.raises(
        BrokerProblem, match="fenced by another publisher of this pipeline; nothing of the open transaction is"
    ):
        publisher.publish_partition(kafka_settings(), run, 0, messages())
    assert consume(broker.bootstrap, pipeline.output_topic) == []


@pytest.mark.parametrize("finishes", [True, False], ids=["and finishes", "and dies"])
def test_a_fenced_attempt_speaks_when_the_one_that_overtook_it_is_done(finishes, pipeline, broker, monkeypatch):
    """Spark ends the first attempt of a task when the second has reported; what it said before that would be the end of the job."""
    run = PublishRun(
        pipeline.name, pipeline.output_topic, "id", False, "table", PARTITIONS, ledger_position=0, target=1, largest=100_000
    )
    sent = [Message(1, b"a", str(number).encode(), [("pair-id", f"x-0-{number}".encode())]) for number in range(3)]
    monkeypatch.setattr(publisher, "_REPORTED_WITHIN_S" if finishes else "_SILENT_S", 3.0)
    overtaken = []

    def messages():
        yield sent[0]
        if finishes:
            publisher.publish_partition(kafka_settings(), run, 0, sent)
        else:
            Producer(producer_settings(kafka_settings(), transactional_id(run.group, 0))).init_transactions(20)
        overtaken.append(time.monotonic())
        yield from sent[1:]

    with pytest.raises(BrokerProblem, match="fenced by another publisher of this pipeline"):
        publisher.publish_partition(kafka_settings(), run, 0, messages(), speculative=True)
    assert time.monotonic() - overtaken[0] >= 3
    on_topic = [message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic)]
    assert on_topic == (["x-0-0", "x-0-1", "x-0-2"] if finishes else [])
