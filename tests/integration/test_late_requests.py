"""Requests of the publisher that come late, twice, or never: every compound once, and the position always with its records.

Between publisher and broker stands a proxy; what is on the topic and how far the position is, others ask the broker itself.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from include.local.broker import create_topics
from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka import fencing, positions, publisher, retries, transaction
from spark_jobs.kafka.fencing import fence_and_read_positions
from spark_jobs.kafka.messages import Message
from spark_jobs.kafka.positions import PublishRun, next_run
from tests.helpers.kafka_proxy import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    ANSWER_HELD,
    DELAYED,
    END_TXN,
    HELD,
    INIT_PRODUCER_ID,
    LOST,
    PRODUCE,
    REPEATED,
    TXN_OFFSET_COMMIT,
    UNANSWERED,
    Fault,
    KafkaProxy,
    ProxiedBroker,
)

pytestmark = pytest.mark.integration

MESSAGES, TARGETS = 4, (3, 5)
RUNS = 12
# One batch a transaction, and two requests to send it, so that something may come between them.
SMALL = {"linger.ms": 0, "batch.num.messages": 2}
HASTY = {
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 20,
    "socket.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
    "delivery.timeout.ms": 2_500,
}
TRIGGERS = (PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, TXN_OFFSET_COMMIT, END_TXN, INIT_PRODUCER_ID)


@pytest.fixture(scope="module")
def proxy():
    with KafkaProxy() as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory, proxy):
    with ProxiedBroker(tmp_path_factory.mktemp("broker"), proxy) as running:
        yield running


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(publisher, "_RECORDS_A_TRANSACTION", 1)
    for module in (fencing, retries, positions, transaction):
        monkeypatch.setattr(module, "ANSWER_WITHIN_S", 3.0)


class World:
    """A topic with one partition, who publishes to it through the proxy, and who looks at it directly."""

    numbers = count()

    def __init__(self, broker, proxy, admin, reader):
        self.name, self.proxy, self.admin, self.reader = f"w{next(self.numbers)}", proxy, admin, reader
        self.settings = {"bootstrap.servers": proxy.bootstrap} | SMALL | HASTY
        create_topics(broker.bootstrap, {self.name: 1}, {"retention.ms": "-1"})

    def planned(self, target, ledger_position=0):
        return PublishRun(
            self.name,
            self.name,
            "topic",
            False,
            "table",
            1,
            ledger_position=ledger_position,
            target=target,
            largest=1_000_000,
        )

    def run(self, target, ledger_position=0, messages=None):
        """What a run of publish_compounds does with its only partition."""
        whole = self.planned(target, ledger_position)
        run = next_run(whole, fence_and_read_positions(self.settings, whole))
        return publisher.publish_partition(self.settings, run, 0, messages or made_up(run))

    def run_until_done(self, target, ledger_position=0, messages=lambda run: None):
        """Run after run; gives how often. After each of them position and records must belong together."""
        for number in range(1, RUNS + 1):
            with suppress(JobProblem, KafkaException, Stopped):
                self.run(target, ledger_position, messages(self.planned(target, ledger_position)))
                self.check(target)
                return number
            self.check()
        raise AssertionError(f"not published by {RUNS} runs")

    def check(self, until=None):
        """Every batch up to the position is on the topic, each message once, and nothing else; `until`: the position is this."""
        deadline = time.monotonic() + 5
        while (found := (self.position(), self.visible())) != (found[0], self.wanted(found[0])) or until not in (
            None,
            found[0],
        ):
            # A commit is answered before its marks are everywhere.
            assert time.monotonic() < deadline, (
                f"position {found[0]} (wanted: {until}), on the topic {sorted(found[1].items())}"
            )
            time.sleep(0.02)

    def position(self):
        asked = ConsumerGroupTopicPartitions(f"{self.name}.publisher", [TopicPartition(self.name, 0)])
        (answer,) = self.admin.list_consumer_group_offsets([asked], require_stable=False).values()
        return max(answer.result(timeout=20).topic_partitions[0].offset, 0)

    def visible(self):
        self.reader.assign([TopicPartition(self.name, 0, 0)])
        found = Counter()
        while True:
            message = self.reader.poll(20)
            assert message is not None
            if message.error():
                return found
            found[message.value().decode()] += 1

    @staticmethod
    def wanted(position):
        return Counter(f"{batch}-{number}" for batch in range(1, position + 1) for number in range(MESSAGES))


def made_up(run):
    for batch in range(run.ledger_position + 1, run.target + 1):
        for number in range(MESSAGES):
            yield Message(batch, b"key", f"{batch}-{number}".encode(), [("pair-id", f"x-0-{batch}{number}".encode())])


@pytest.fixture(scope="module")
def new_world(broker, proxy):
    direct = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    admin = AdminClient(direct)
    reader = Consumer(
        direct | {"group.id": "truth", "isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False,
                  "fetch.wait.max.ms": 5}
    )  # fmt: skip
    yield lambda: World(broker, proxy, admin, reader)
    reader.close()


@pytest.fixture
def world(new_world):
    return new_world()


def on_the(number, kind, fault):
    """The fault, for the so-manieth request of the kind."""
    seen = Counter()

    def decide(asked):
        seen[asked] += 1
        return fault if (asked, seen[asked]) == (kind, number) else None

    return decide


class Stopped(Exception):
    """Where a job is stopped in the midst of its work."""


def stopped_in(run, batch, world):
    """Stops when half of the batch was sent, and what is late has come."""
    for message in made_up(run):
        if message.value == f"{batch}-{MESSAGES // 2}".encode():
            deadline = time.monotonic() + 10
            while not any(what.startswith("late") for what in world.proxy.log):
                assert time.monotonic() < deadline, world.proxy.log
                time.sleep(0.01)
            raise Stopped
        yield message


# What is known to go wrong


@pytest.mark.parametrize(
    ("what", "number"),
    [(HELD, 1), (REPEATED, 2), *(pytest.param(*case, marks=pytest.mark.long) for case in ((HELD, 2), (REPEATED, 1)))],
)
def test_a_commit_that_comes_in_the_midst_of_the_next_transaction(what, number, world):
    # As in Jepsen's report on Bufstream 0.1.0: it would commit half of the next one's records, without their position.
    world.proxy.begin(on_the(number, END_TXN, Fault(what, late=(PRODUCE, 1))))
    with pytest.raises((Stopped, JobProblem)):
        world.run(3, messages=stopped_in(world.planned(3), number + 1, world))
    assert "late EndTxn" in world.proxy.log
    world.check(number)
    assert world.run_until_done(3) == 1


def test_an_abort_that_comes_in_the_midst_of_the_next_transaction(world):
    def stopping():
        yield from list(made_up(world.planned(1)))[:-1]
        time.sleep(0.2)
        raise Stopped

    # It would take back half of the next one's records, and leave their position.
    world.proxy.begin(on_the(1, END_TXN, Fault(HELD, late=(PRODUCE, 1))))
    with pytest.raises(Stopped):
        world.run(1, messages=stopping())
    world.check(0)
    assert world.run_until_done(3) == 1
    assert "late EndTxn" in world.proxy.log


def test_a_position_that_comes_again_behind_the_next_one(world):
    world.proxy.begin(on_the(1, TXN_OFFSET_COMMIT, Fault(REPEATED, late=(TXN_OFFSET_COMMIT, 2))))
    assert world.run_until_done(2) == 1
    assert "late TxnOffsetCommit" in world.proxy.log


def test_nothing_is_sent_behind_the_first_record_until_the_broker_has_it(world):
    # A broker that does not know the producer would take the second request for its first, had it refused the first for a moment.
    end = {TopicPartition(world.name, 0): OffsetSpec.latest()}
    on_the_log = []

    def watched():
        for message in made_up(world.planned(1)):
            (answer,) = world.admin.list_offsets(end, isolation_level=IsolationLevel.READ_UNCOMMITTED).values()
            on_the_log.append(answer.result(timeout=20).offset)
            yield message

    world.proxy.begin(lambda kind: Fault(DELAYED) if kind == PRODUCE else None)
    world.run(1, messages=watched())
    assert on_the_log[:2] == [0, 1]
    world.check(1)


def test_a_commit_that_nobody_answers_is_told_as_one_that_nobody_knows(world):
    world.proxy.begin(lambda kind: Fault(UNANSWERED) if kind == END_TXN else None)
    with pytest.raises(
        JobProblem, match=r"publishing to .* failed: .*; whether its last transaction is committed is not known"
    ):
        world.run(2)
    # It was.
    world.check(1)
    world.proxy.begin(lambda kind: None)
    assert world.run_until_done(3) == 1


def test_a_commit_whose_answer_comes_when_the_publisher_has_given_up(world, monkeypatch):
    alive = []

    def kept_alive(*given):
        alive.append(fencing.fenced_producer(*given))
        return alive[-1]

    monkeypatch.setattr(transaction, "fenced_producer", kept_alive)
    monkeypatch.setattr(transaction, "ANSWER_WITHIN_S", 0.3)
    monkeypatch.setattr(retries, "ANSWER_WITHIN_S", 0.0)
    # The connection stays open for longer than the publisher waits.
    world.settings["socket.timeout.ms"] = 10_000
    world.proxy.begin(on_the(1, END_TXN, Fault(ANSWER_HELD, late=(PRODUCE, 1))))
    with pytest.raises(JobProblem, match="whether its last transaction is committed is not known"):
        world.run(2)
    assert len(alive) == 1
    # It was. Its answer comes in the midst of the next run's first transaction.
    world.check(1)
    monkeypatch.setattr(transaction, "ANSWER_WITHIN_S", 3.0)
    monkeypatch.setattr(retries, "ANSWER_WITHIN_S", 3.0)
    assert world.run_until_done(3) == 1
    assert world.proxy.log.count("late answer to EndTxn") == 1
    # One for each of the transactions.
    assert len(alive) == 3


def test_a_commit_that_was_not_answered_and_comes_again_in_the_midst_of_the_next_transaction(world):
    # The client asks again by itself; what it asked the second time comes late.
    faults = {1: Fault(ANSWER_HELD), 2: Fault(HELD, late=(PRODUCE, 1))}
    seen = Counter()

    def decide(kind):
        seen[kind] += 1
        return faults.get(seen[kind]) if kind == END_TXN else None

    world.proxy.begin(decide)
    with pytest.raises((Stopped, JobProblem)):
        world.run(3, messages=stopped_in(world.planned(3), 2, world))
    assert "late EndTxn" in world.proxy.log
    world.check(1)
    assert world.run_until_done(3) == 1
    world.proxy.release()
    assert "late answer to EndTxn, to nobody" in world.proxy.log
    world.check(3)


def test_who_stood_still_between_two_transactions_sends_nothing_again(world):
    world.proxy.begin(lambda kind: None)

    def slow():
        for message in made_up(world.planned(4)):
            if message.batch_id == 3 and world.position() < 3:
                # Two more transactions by another publisher, while this one's next has not begun.
                world.run(4)
            yield message

    with pytest.raises(
        JobProblem, match=r"publishing to .* failed|was moved meanwhile, to batch 4, from batch 1: another publisher"
    ):
        world.run(4, messages=slow())
    world.check(4)


# Anything, at random


def random_faults(dice):
    """Mostly of EndTxn, at most so many that it comes to an end."""
    left = [dice.randint(1, 6)]

    def late():
        return (dice.choice(TRIGGERS), dice.randint(1, 4)) if dice.random() < 0.9 else None

    def decide(kind):
        if not left[0] or dice.random() > (0.6 if kind == END_TXN else 0.05):
            return None
        left[0] -= 1
        # The client waits for an answer that is held until it gives up: a second each time, so these are few.
        what = dice.choices((HELD, REPEATED, UNANSWERED, LOST, DELAYED, ANSWER_HELD), (8, 8, 4, 2, 2, 1))[0]
        return Fault(what, late() if what in (HELD, REPEATED, ANSWER_HELD) else None)

    return decide


def stopped_at_random(dice):
    """A job that is stopped twice at most, somewhere, with a moment for what is under way."""
    left = [dice.choice((0, 1, 2))]

    def messages(run):
        for message in made_up(run):
            if left[0] and dice.random() < 0.1:
                left[0] -= 1
                time.sleep(0.03)
                raise Stopped
            yield message

    return messages


def play(world, seed):
    dice = random.Random(seed)
    world.proxy.begin(random_faults(dice))
    messages = stopped_at_random(dice)
    try:
        ledger_position = 0
        for target in TARGETS:
            world.run_until_done(target, ledger_position, messages)
            ledger_position = target
        world.proxy.release()
        world.check(ledger_position)
        # And who comes later finds nothing to send.
        assert world.run(ledger_position, ledger_position=TARGETS[0]).sent == 0
        world.check(ledger_position)
    except BaseException:
        print(f"seed {seed}: {', '.join(world.proxy.log)}")
        raise


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (10, 20, 30))])
def test_late_requests_at_random(first, new_world):
    play_all(new_world, range(first, first + 10))


@pytest.mark.long
def test_late_requests_at_random_by_the_hundreds(new_world):
    play_all(new_world, range(1_000, 1_600))


def play_all(new_world, seeds):
    late = 0
    for seed in seeds:
        world = new_world()
        play(world, seed)
        late += sum(what.startswith("late") for what in world.proxy.log)
    assert late >= len(seeds) / 2, "too few of these came late to prove anything"
