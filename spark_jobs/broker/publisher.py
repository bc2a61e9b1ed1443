"""Exactly once into Kafka: the records of an output partition and the position behind them in one transaction.

The position of a partition is the last batch_id published to it, kept as the committed offset of group
`<pipeline>.publisher` on the output topic, with the id of the Delta table beside it. A dead or slow predecessor with the
same transactional id is fenced by `init_transactions`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered

from spark_jobs.broker.messages import Message
from spark_jobs.broker.settings import (
    ANSWER_WITHIN_S,
    BrokerProblem,
    Settings,
    address,
    consumer_settings,
    producer_settings,
)
from spark_jobs.fault_points import fault_point
from spark_jobs.problems import NeedsOperator

_RECORDS_A_TRANSACTION = 200_000
_COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)

T = TypeVar("T")


class Slot(NamedTuple):
    """What one output partition is to receive. `copy`: the position as the ledger remembers it; `target`: the last paired batch."""

    pipeline: str
    topic: str
    partition: int
    table_id: str
    copy: int
    target: int

    @property
    def group(self) -> str:
        """The consumer group that holds the position."""
        return f"{self.pipeline}.publisher"


class SlotReport(NamedTuple):
    """`sent`: records sent in this run. `there`: batch_id -> records that were sent in this run
    or lie behind the position, so that an earlier run sent them."""

    partition: int
    sent: int
    there: dict[int, int]


def publish_slot(settings: Settings, slot: Slot, messages: Iterable[Message]) -> SlotReport:
    """Sends the messages (by batch_id, ascending) of batches beyond the position. Raises BrokerProblem or NeedsOperator."""
    try:
        return _publish(settings, slot, messages)
    except KafkaException as error:
        problem = error.args[0]
        raise BrokerProblem(
            f"publishing to {slot.topic}-{slot.partition} at {address(settings)} failed: {problem.str()} ({problem.name()}); "
            "nothing of the open transaction is visible, the next run sends it again"
        ) from None


def _publish(settings: Settings, slot: Slot, messages: Iterable[Message]) -> SlotReport:
    producer = Producer(producer_settings(settings, f"{slot.group}-{slot.partition}"))
    # First of all: it ends a dead predecessor's transaction. Asking for the position before would wait for that one's timeout.
    _patiently(lambda: producer.init_transactions(ANSWER_WITHIN_S))
    consumer = Consumer(consumer_settings(settings, slot.group))
    try:
        position = _position(consumer, slot)
        return _Transactions(producer, consumer, slot, position).send(messages)
    finally:
        consumer.close()


def _patiently(call: Callable[[], T]) -> T:
    """Repeats what the broker asks to be repeated, as when a group's or a transaction's coordinator is moving."""
    give_up = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return call()
        except KafkaException as error:
            problem = error.args[0]
            if not (problem.retriable() or problem.code() in _COORDINATOR_MOVES) or time.monotonic() > give_up:
                raise
        time.sleep(0.1)


def _position(consumer: Consumer, slot: Slot) -> int:
    place = TopicPartition(slot.topic, slot.partition)
    committed = _patiently(lambda: consumer.committed([place], timeout=ANSWER_WITHIN_S))[0]
    if committed.error is not None:
        raise KafkaException(committed.error)
    if committed.offset < 0:
        # Never published, or the group's offsets have expired: the ledger's copy says how far it was.
        return slot.copy
    where = f"{slot.topic}-{slot.partition} of group {slot.group}"
    if committed.metadata != slot.table_id:
        raise NeedsOperator(
            f"the position on {where} belongs to another compound_events table (id {committed.metadata}, now {slot.table_id}): "
            "the table was recreated; restore it, or start a new pipeline under another name"
        )
    if not slot.copy <= committed.offset <= slot.target:
        raise NeedsOperator(
            f"the position on {where} is batch {committed.offset}, but the ledger knows of {slot.copy} published and "
            f"{slot.target} paired batches: one of them was reset; find out which before anything is sent"
        )
    return int(committed.offset)


class _Transactions:
    """Sends whole batches, one transaction for as many as fit; every transaction moves the position with its records."""

    def __init__(self, producer: Producer, consumer: Consumer, slot: Slot, position: int) -> None:
        self.producer, self.consumer, self.slot, self.position = producer, consumer, slot, position
        self.in_transaction = 0
        self.failure: KafkaError | None = None

    def send(self, messages: Iterable[Message]) -> SlotReport:
        """Sends what is beyond the position. On any error the open transaction is aborted."""
        there: Counter[int] = Counter()
        sent, batch_id = 0, self.position
        if self.position < self.slot.target:
            self.producer.begin_transaction()
        try:
            for message in messages:
                there[message.batch_id] += 1
                if message.batch_id <= self.position:
                    continue
                if message.batch_id != batch_id and self.in_transaction >= _RECORDS_A_TRANSACTION:
                    self._commit(batch_id)
                    self.producer.begin_transaction()
                batch_id = message.batch_id
                self._produce(message)
                sent += 1
                if sent == 1:
                    fault_point("publish_half_sent")
            fault_point("publish_before_commit")
            if self.position < self.slot.target:
                self._commit(self.slot.target)
        except BaseException:
            self._abort()
            raise
        return SlotReport(self.slot.partition, sent, dict(there))

    def _produce(self, message: Message) -> None:
        while True:
            try:
                self.producer.produce(
                    self.slot.topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    partition=self.slot.partition,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self.producer.poll(0.1)
            else:
                break
        self.in_transaction += 1
        if self.in_transaction % 1000 == 0:
            self.producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Delivered) -> None:
        self.failure = self.failure or error

    def _commit(self, batch_id: int) -> None:
        place = TopicPartition(self.slot.topic, self.slot.partition, batch_id, metadata=self.slot.table_id)
        group = self.consumer.consumer_group_metadata()
        _patiently(lambda: self.producer.send_offsets_to_transaction([place], group, ANSWER_WITHIN_S))
        self.producer.flush(ANSWER_WITHIN_S)
        if self.failure is not None:
            raise KafkaException(self.failure)
        _patiently(lambda: self.producer.commit_transaction(ANSWER_WITHIN_S))
        self.in_transaction = 0

    def _abort(self) -> None:
        if self.position >= self.slot.target:
            return
        try:
            self.producer.abort_transaction(ANSWER_WITHIN_S)
        except KafkaException as error:
            # The broker aborts it by itself when the next producer with this id begins.
            print(f"abort of the open transaction failed: {error.args[0].str()}")
