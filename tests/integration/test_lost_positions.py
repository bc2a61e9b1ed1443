"""Positions that Kafka has forgotten in the middle of a publication: every compound once, or a clear refusal."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from include.local.broker import LocalBroker, create_topics
from include.local.process import free_port
from spark_jobs import publish_compounds
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.output_topic import output_topic
from spark_jobs.kafka.settings import VARIABLE, kafka_settings
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLISHED
from tests.conftest import PARTITIONS, fresh_pipeline
from tests.helpers.reading import consume, table_rows
from tests.integration import test_publishing
from tests.integration.test_publishing import CALLS, alter_topic, assert_all_once, grow, publish_only, recreate, takes

pytestmark = pytest.mark.integration

admin, paired = test_publishing.admin, test_publishing.paired


def forget(admin, pipeline):
    """What a broker does when the group's offsets expire."""
    group = f"{pipeline.name}.publisher"
    admin.delete_consumer_groups([group])[group].result(timeout=20)


def committed(admin, pipeline):
    group = f"{pipeline.name}.publisher"
    places = [TopicPartition(pipeline.output_topic, number) for number in range(PARTITIONS)]
    # Kafka answers a commit before the group's offsets have its marker. Until then it tells an error instead of a stable offset, and this
    # request is not repeated by the client.
    for _ in range(100):
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)], require_stable=True)
        found = asked[group].result(timeout=20).topic_partitions
        if all(place.error is None for place in found):
            break
        time.sleep(0.1)
    return [place.offset for place in found]


@pytest.mark.parametrize(
    "done", [(), (1,), *(pytest.param(done, marks=pytest.mark.long) for done in ((0,), (0, 1)))], ids=str
)
def test_what_was_sent_is_found_on_the_topic(done, warehouse, broker, admin, pipeline, paired):
    paired()
    publish_compounds.main(warehouse)
    paired()
    paired()
    publish_only(warehouse, *done)
    on_topic = len(consume(broker.bootstrap, pipeline.output_topic))
    forget(admin, pipeline)
    # Paired meanwhile.
    paired()
    assert publish_compounds.main(warehouse)["sent"] == 4 * CALLS - on_topic
    assert_all_once(warehouse, broker)
    recorded = [row.published.compounds for row in Ledger(warehouse).rows(1, 4) if row.step == PUBLISHED]
    assert recorded == [CALLS] * 4
    paired()
    assert publish_compounds.main(warehouse)["sent"] == CALLS


def test_positions_that_are_forgotten_twice_and_a_part_that_is_not(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse, 0)
    forget(admin, pipeline)
    paired()
    # Only one partition goes on behind what was found, and has its position again.
    publish_only(warehouse, 1)
    assert committed(admin, pipeline)[1] == 2
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


def test_a_topic_that_has_grown_meanwhile_is_finished_as_it_was_begun(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse, 0)
    forget(admin, pipeline)
    grow(admin, pipeline, 5)
    paired()
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)
    rows = {row.batch_id: row.output_state.partitions for row in Ledger(warehouse).rows(1, 2) if row.step == PUBLISHED}
    assert rows == {1: 2, 2: 5}


def test_a_topic_that_has_grown_before_anything_was_sent(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse)
    grow(admin, pipeline, 5)
    publish_only(warehouse, 3)
    forget(admin, pipeline)
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


def test_others_messages_are_none_of_a_publisher(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_compounds.main(warehouse)
    paired()
    publish_only(warehouse, 0)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    # Of another topic's event, and of a batch that is published long since.
    for pair_id in ("elsewhere-0-1", f"{pipeline.left.topic}-0-{CALLS}"):
        producer.produce(pipeline.output_topic, b"{}", b"k", 1, headers={"pair-id": pair_id, "revision": "7"})
    assert producer.flush(20) == 0
    forget(admin, pipeline)
    publish_compounds.main(warehouse)
    ours = Counter(m["pair-id"] for m in consume(broker.bootstrap, pipeline.output_topic) if m["revision"] == "0")
    assert ours == Counter(row["pair_id"] for row in table_rows(warehouse, "compound_events"))


def test_what_was_too_large_is_not_missed(warehouse, broker, admin, pipeline, paired):
    takes(admin, pipeline, 5000)
    paired({9: 100_000})
    publish_only(warehouse, 0, 1)
    forget(admin, pipeline)
    with pytest.raises(NeedsOperator, match=rf"too large for {pipeline.output_topic} .*\(compounds: 1\)"):
        publish_compounds.main(warehouse)
    assert Ledger(warehouse).last_ids()[PUBLISHED] == 1
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == CALLS - 1


def test_a_republish_onto_a_recreated_topic(warehouse, broker, admin, pipeline, paired):
    paired()
    publish_compounds.main(warehouse)
    recreate(admin, broker, pipeline, PARTITIONS)
    new_id = output_topic(kafka_settings(), pipeline.output_topic).topic_id
    paired()
    publish_only(warehouse, 1, accepted=new_id)
    forget(admin, pipeline)
    publish_compounds.main(warehouse, new_id)
    ids = {row["pair_id"] for row in table_rows(warehouse, "compound_events") if row["batch_id"] == 2}
    assert Counter(message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic)) == Counter(ids)


def test_behind_an_open_transaction_nothing_is_sent_blindly(warehouse, broker, admin, pipeline, paired):
    paired()
    stranger = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{pipeline.name}-stranger"})
    stranger.init_transactions(20)
    publish_only(warehouse, 0)
    stranger.begin_transaction()
    stranger.produce(pipeline.output_topic, b"{}", b"k", 0)
    assert stranger.flush(20) == 0
    forget(admin, pipeline)
    with pytest.raises(
        JobProblem, match=rf"^{pipeline.output_topic}-0 can be read up to offset \d+ only, but is written up to"
    ):
        publish_compounds.main(warehouse)
    stranger.abort_transaction(20)
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


@pytest.mark.parametrize("why", ["retention has removed messages since", "the topic is compacted"])
def test_what_nobody_can_tell_is_refused_until_it_is_accepted(why, warehouse, broker, admin, pipeline, paired):
    paired()
    publish_only(warehouse, 0)
    if why == "the topic is compacted":
        alter_topic(admin, pipeline, "cleanup.policy", "compact")
    else:
        admin.delete_records([TopicPartition(pipeline.output_topic, 0, 5)])
        time.sleep(1)
    forget(admin, pipeline)
    before = consume(broker.bootstrap, pipeline.output_topic)
    with pytest.raises(
        NeedsOperator, match=rf"on partitions 0 of {pipeline.output_topic} have expired .*: {why}; .*--accept-lost-positions"
    ):
        publish_compounds.main(warehouse)
    assert consume(broker.bootstrap, pipeline.output_topic) == before
    assert publish_compounds.main(warehouse, accepted_lost=True)["sent"] == CALLS
    ids = {message["pair-id"] for message in consume(broker.bootstrap, pipeline.output_topic)}
    assert ids == {row["pair_id"] for row in table_rows(warehouse, "compound_events")}


def test_a_broken_off_transaction_on_a_compacted_topic_needs_nobody(warehouse, broker, admin, pipeline, paired):
    alter_topic(admin, pipeline, "cleanup.policy", "compact")
    paired()
    publish_only(warehouse)
    dead = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{pipeline.name}.publisher-0"})
    dead.init_transactions(20)
    dead.begin_transaction()
    dead.produce(pipeline.output_topic, b"{}", b"k", 0)
    assert dead.flush(20) == 0
    assert publish_compounds.main(warehouse)["sent"] == CALLS
    assert_all_once(warehouse, broker)


class Forgetful(LocalBroker):
    """Forgets the offsets of a group that is idle for a minute."""

    def _configure(self):
        super()._configure()
        with (self.folder / "server.properties").open("a") as settings:
            settings.write("offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n")


@pytest.mark.long
def test_positions_that_really_expire(spark, tmp_path, empty_tables, request, monkeypatch, capfd):
    import shutil

    from spark_jobs.tables.warehouse import Warehouse

    with Forgetful(tmp_path / "broker", free_port()) as broker:
        monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
        pipeline = fresh_pipeline(request.node)
        create_topics(broker.bootstrap, {pipeline.output_topic: PARTITIONS}, {"retention.ms": "-1"})
        shutil.copytree(empty_tables, tmp_path / "warehouse" / pipeline.name)
        warehouse, admin = (
            Warehouse(str(tmp_path / "warehouse"), pipeline, spark),
            AdminClient({"bootstrap.servers": broker.bootstrap}),
        )
        test_publishing.pair_made_up(warehouse, 1, {})
        publish_only(warehouse, 0)
        deadline = time.monotonic() + 180
        while any(offset >= 0 for offset in committed(admin, pipeline)):
            assert time.monotonic() < deadline
            time.sleep(2)
        publish_compounds.main(warehouse)
        assert_all_once(warehouse, broker)
        assert "forgets the positions of a publisher after 1 idle minutes" in capfd.readouterr().err
