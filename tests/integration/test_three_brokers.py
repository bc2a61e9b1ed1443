"""Three brokers, three replicas, two of which have to have a record: leaders that move and brokers that are restarted cost time, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import transaction
from spark_jobs.kafka.open_transactions import partition_of_group
from spark_jobs.kafka.positions import publisher_group
from spark_jobs.kafka.records import Share, Span, read_shares
from spark_jobs.kafka.settings import BrokerProblem, kafka_settings
from spark_jobs.rules.conservation import BrokenInvariant
from tests.conftest import PARTITIONS
from tests.helpers.reading import table_rows
from tests.helpers.three_brokers import ThreeBrokers, wait_for
from tests.integration.test_publishing import assert_all_once, pair_made_up, publish_only

# That a broker goes away and comes back is also shown with one, in test_kafka_faults.py.
pytestmark = [pytest.mark.integration, pytest.mark.long]

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
# As many partitions as LocalBroker gives both.
COORDINATORS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """The cluster, instead of the one broker of all other tests."""
    with ThreeBrokers(tmp_path_factory.mktemp("three")) as running:
        yield running


@pytest.fixture
def pipeline(pipeline, broker):
    """Its topics have three replicas."""
    broker.wait_until_in_sync([pipeline.left.topic, pipeline.right.topic, pipeline.output_topic])
    return pipeline


def test_the_leader_moves_while_a_partition_is_read(broker, pipeline, monkeypatch):
    topic = pipeline.left.topic
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 2_000})
    for number in range(3_000):
        producer.produce(topic, str(number) * 20, partition=0)
    assert producer.flush(20) == 0
    # A little at a time, so that there is a middle.
    slow = kafka_settings() | {"max.partition.fetch.bytes": 1_000, "queued.min.messages": 1}
    leaders, offsets = {broker.leader(topic, 0).number}, []
    for count, piece in enumerate(read_shares(slow, [Share(topic, 0, Span(0, 3_000))])):
        offsets += piece["offset"].to_pylist()
        if count in (1, 3):
            broker.move_leader(topic, 0)
            leaders.add(broker.leader(topic, 0).number)
    assert offsets == list(range(3_000)) and len(leaders) > 1 and count > 3


@pytest.mark.parametrize("at", ["half_sent", "all_sent", "offsets_sent"])
def test_leaders_move_in_a_transaction(at, warehouse, broker, pipeline, monkeypatch):
    """The output partition's, and those of the coordinators of the group and of the transactions."""
    pair_made_up(warehouse, 1, {})
    group, moved = publisher_group(pipeline.name), []

    def move(point):
        if point == f"transaction_{at}" and len(moved) < PARTITIONS:
            partition = len(moved)
            moved.append(partition)
            broker.move_leader(pipeline.output_topic, partition)
            broker.move_leader(GROUPS, partition_of_group(group, COORDINATORS))
            broker.move_leader(TRANSACTIONS, partition_of_group(f"{group}-{partition}", COORDINATORS))

    # The client may come through, or give up: whichever it is, the next run ends with every compound once.
    with monkeypatch.context() as patch, suppress(BrokerProblem):
        patch.setattr(transaction, "fault_point", move)
        publish_only(warehouse, *range(PARTITIONS))
    assert moved
    publish_compounds.main(warehouse)
    assert_all_once(warehouse, broker)


class Traffic:
    """Calls, both sides at once, for as long as the block lasts."""

    def __init__(self, bootstrap, pipeline):
        self.producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
        self.pipeline, self.calls, self.lost = pipeline, 0, []
        # The longest time from a record's timestamp until it was on the topic.
        self.longest_ms = 0
        self._over, self._thread = threading.Event(), threading.Thread(target=self._send, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        assert self.producer.flush(60) == 0 and self.lost == []

    def _send(self):
        while not self._over.wait(0.02):
            now = time.time_ns() // 1_000_000
            for of in self.pipeline.sides:
                body = {"user1": f"u{self.calls}", "user2": "v", "timestamp": now, of.payload: self.calls}
                self.producer.produce(of.topic, json.dumps(body), f"u{self.calls}-v", on_delivery=self._delivered)
            self.calls += 1
            self.producer.poll(0)

    def _delivered(self, error, message):
        if error is not None:
            self.lost.append(error)
            return
        self.longest_ms = max(self.longest_ms, time.time_ns() // 1_000_000 - message.timestamp()[1])


def run_on(warehouse, problems):
    """One batch by all four jobs, as Airflow would try them: what cannot be done now is done by a later run."""
    try:
        land_events.main(warehouse, 1_000_000, ())
        pair_events.main(warehouse)
        publish_compounds.main(warehouse)
        report_quality.main(warehouse)
    except Exception as problem:
        # Also Spark's, where a worker read for 20 seconds in vain. What only an operator can mend is none of these.
        if isinstance(problem, NeedsOperator | BrokenInvariant):
            raise
        problems.append(problem)


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_brokers_are_restarted_in_turn_under_traffic(how, warehouse, broker, pipeline):
    # A producer may have to wait that long for a new leader.
    warehouse = replace(warehouse, pipeline=replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=60_000))
    topics = [side.topic for side in pipeline.sides] + [pipeline.output_topic, GROUPS, TRANSACTIONS]
    published = threading.Event()
    problems, batches = [], 0

    def restart():
        published.wait(120)
        for each in broker.brokers:
            each.stop() if how == "restarted" else each.kill()
            time.sleep(3)
            broker.launch(each)
            broker.wait_until_in_sync(topics)
            time.sleep(2)

    with Traffic(broker.bootstrap, pipeline) as traffic, ThreadPoolExecutor() as threads:
        restarts = threads.submit(restart)
        while not restarts.done():
            run_on(warehouse, problems)
            batches += 1
            # The topics of groups and transactions are there when something was published.
            published.set()
        restarts.result()
    time.sleep(61)
    last = []
    run_on(warehouse, last)
    assert last == []
    # What waited for a leader for longer than the grace would be late by rule.
    assert traffic.longest_ms < warehouse.pipeline.grace_ms, "this machine is too slow for the grace of the test"
    print(f"{traffic.calls} calls, on their topics after {traffic.longest_ms / 1000:.1f} s at most, in {batches} batches")
    print(f"ended early: {sorted(str(each)[:300] for each in problems)}")
    users = Counter({f"u{number}": 1 for number in range(traffic.calls)})
    for table in ("raw_analytics", "raw_metrics"):
        assert Counter(row["user1"] for row in table_rows(warehouse, table)) == users
    assert table_rows(warehouse, "open_events") == table_rows(warehouse, "rejected_events") == []
    compounds = table_rows(warehouse, "compound_events")
    assert Counter((row["user1"], row["kind"]) for row in compounds) == Counter({(user, "pair"): 1 for user in users})
    assert_all_once(warehouse, broker)
    assert not reconcile.main(warehouse).offenders


def test_an_unclean_election_is_refused_and_gone_on_from_by_a_rewind(warehouse, broker, pipeline):
    """The one replica that has the landed records is away when another becomes the leader, and has lost them when it is back."""
    topic = pipeline.left.topic
    warehouse = replace(warehouse, pipeline=replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100))
    broker.allow_unclean_election(topic)
    broker.reassign(topic, 0, [1, 2])
    broker.wait_until_in_sync([topic], 2)
    first, second, _ = broker.brokers
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": 1, "log_level": 0})

    def write(begin, end):
        for number in range(begin, end):
            body = {"user1": f"u{number}", "user2": "v", "timestamp": time.time_ns() // 1_000_000, "analytics": number}
            producer.produce(topic, json.dumps(body), f"u{number}-v", partition=0)
            assert producer.flush(60) == 0
        time.sleep(0.3)

    def land():
        counts = land_events.main(warehouse, 1_000_000, ())
        pair_events.main(warehouse)
        return counts["landed"]

    write(0, 10)
    assert land() == 10
    second.kill()
    wait_for(lambda: broker.replicas_in_sync(topic, 0) == [1], "a replica that is left out")
    write(10, 15)
    assert land() == 5
    first.kill()
    second.launch()
    wait_for(lambda: broker.leader(topic, 0) is second, "an unclean election", 180)
    broker.launch(first)
    wait_for(lambda: broker.replicas_in_sync(topic, 0) == [1, 2], "both replicas")
    # The end alone looks as if nothing had happened.
    write(20, 27)
    with pytest.raises(
        NeedsOperator, match=f"^the log was cut below what was landed: {topic}-0 at offset 10; .*rewind to batch 1"
    ):
        land()
    lost = f"{topic}-0:10-15"
    rewind.main(warehouse, 1, [lost])
    counts = land_events.main(warehouse, 1_000_000, [lost])
    assert (counts["landed"], counts["lost"]) == (7, 5)
    users = Counter(row["user1"] for row in table_rows(warehouse, "raw_analytics"))
    assert users == Counter(f"u{number}" for number in (*range(10), *range(20, 27)))
