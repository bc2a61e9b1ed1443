"""Exactly once into Kafka: the records of an output partition and the position behind them in one transaction.

See positions.py for what a position is. A dead or slow predecessor with the same transactional id is fenced by
`init_transactions`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered

from spark_jobs.broker.messages import BATCH_FRAME, Message, fits, pair_id
from spark_jobs.broker.patience import given_up_after, patiently
from spark_jobs.broker.positions import Leg, Position, believe, committed_positions, transactional_id
from spark_jobs.broker.rights import is_refusal, lacked, lacking
from spark_jobs.broker.settings import (
    ANSWER_WITHIN_S,
    BrokerProblem,
    Settings,
    address,
    consumer_settings,
    delivery_patience,
    producer_settings,
)
from spark_jobs.fault_points import fault_point
from spark_jobs.problems import JobProblem

_RECORDS_A_TRANSACTION = 200_000
_SHOWN = 20
_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class SlotReport(NamedTuple):
    """What became of one slot, by batch_id. `sent`: records sent in this run. `read`: compounds the table has for the slot.
    `acknowledged`: records that the broker acknowledged in transactions that it committed, in this run or in an earlier one.
    `refused`: compounds larger than the topic takes, which were left out; `too_large`: the pair_ids of the first of them.
    """

    partition: int
    sent: int
    read: dict[int, int]
    acknowledged: dict[int, int]
    refused: dict[int, int]
    too_large: list[str]


def publish_slot(settings: Settings, leg: Leg, partition: int, messages: Iterable[Message]) -> SlotReport:
    """Sends the slot's messages (by batch_id, ascending) of the leg's batches beyond the position.

    Raises BrokerProblem and other JobProblems.
    """
    try:
        return _publish(settings, leg, partition, messages)
    except (KafkaException, SystemError) as error:
        # The client raises a fatal error in the midst of its callbacks; Python then has an error of its own, caused by it.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(cause, KafkaException):
            raise
        problem = cause.args[0]
        if right := lacked(problem, leg.topic, leg.group, "Write"):
            raise lacking(settings, right) from None
        raise BrokerProblem(
            f"publishing to {leg.topic}-{partition} at {address(settings)} failed: {problem.str()} ({problem.name()}); "
            "nothing of the open transaction is visible, the next run sends it again"
        ) from None


def _publish(settings: Settings, leg: Leg, partition: int, messages: Iterable[Message]) -> SlotReport:
    # The client fills its batches up to this, and counts their frame on top.
    limited = settings | {"message.max.bytes": max(leg.largest - BATCH_FRAME, 1000)}
    producer = Producer(producer_settings(limited, transactional_id(leg.group, partition)))
    # Connects the client. Where it is still about to, it looks for the coordinator only twice a second.
    producer.list_topics(leg.topic, timeout=ANSWER_WITHIN_S)
    patiently(lambda: producer.init_transactions(ANSWER_WITHIN_S))
    consumer = Consumer(consumer_settings(settings, leg.group))
    try:
        (committed,) = committed_positions(consumer, leg.topic, range(partition, partition + 1)).values()
        position = believe(leg, partition, committed)
        if position is not None and position.batch_id > leg.copy and position.slots not in (None, leg.slots):
            raise JobProblem(
                f"the position on {leg.topic}-{partition} of group {leg.group} was moved meanwhile, for {position.slots} "
                f"partitions instead of {leg.slots}: another publisher of this pipeline is at work; stop one of them"
            )
        sender = _Transactions(producer, consumer, leg, partition, position)
        sender.patience = delivery_patience(settings)
        try:
            return sender.send(messages)
        except KafkaException as error:
            # The records went; only who may read a topic may commit offsets on it.
            right = lacked(error.args[0], leg.topic, leg.group, "Read") if sender.failure is None else None
            if right:
                raise lacking(settings, right) from None
            raise
    finally:
        consumer.close()


class _Transactions:
    """Sends whole batches, one transaction for as many as fit; every transaction moves the position with its records."""

    def __init__(self, producer: Producer, consumer: Consumer, leg: Leg, partition: int, position: Position | None) -> None:
        self.producer, self.consumer, self.leg, self.partition = producer, consumer, leg, partition
        self.start = leg.copy if position is None else position.batch_id
        # What earlier runs counted, as far as the ledger does not have it yet.
        before = {} if position is None else position.acknowledged
        self.uncounted = before is None
        self.acknowledged = Counter({number: records for number, records in (before or {}).items() if number > leg.copy})
        self.limits = {} if position is None else dict(position.limits)
        self.refused: Counter[int] = Counter()
        self.too_large: list[str] = []
        self.in_transaction = 0
        self.failure: KafkaError | None = None
        self.failures = 0
        self.patience = ANSWER_WITHIN_S

    def send(self, messages: Iterable[Message]) -> SlotReport:
        """Sends what is beyond the position. On any error the open transaction is aborted."""
        read: Counter[int] = Counter()
        sent, batch_id, acknowledge = 0, self.start, partial(self._delivered, self.start)
        fault_point("publisher_fenced")
        if self.start < self.leg.target:
            self._begin()
        try:
            for message in messages:
                read[message.batch_id] += 1
                if message.batch_id <= self.start:
                    # An earlier version sent these without counting; that they are behind the position is all one knows.
                    self.acknowledged[message.batch_id] += self.uncounted
                    if message.batch_id in self.limits:
                        self._leave_out(message, self.limits[message.batch_id])
                    continue
                if message.batch_id != batch_id:
                    if self.in_transaction >= _RECORDS_A_TRANSACTION:
                        self._commit(batch_id)
                        self._begin()
                    batch_id, acknowledge = message.batch_id, partial(self._delivered, message.batch_id)
                if self._leave_out(message, self.leg.largest):
                    continue
                self._produce(message, acknowledge)
                sent += 1
                if self.in_transaction == 1:
                    fault_point("transaction_half_sent")
            if self.start < self.leg.target:
                self._commit(self.leg.target)
        except BaseException as error:
            self._abort(error)
            raise
        return SlotReport(self.partition, sent, dict(read), dict(self.acknowledged), dict(self.refused), self.too_large)

    def _begin(self) -> None:
        self.producer.begin_transaction()
        fault_point("transaction_begun")

    def _leave_out(self, message: Message, limit: int) -> bool:
        """Whether the message is larger than the limit. One that no broker takes must not keep the others back."""
        if fits(message, limit):
            return False
        self.limits[message.batch_id] = limit
        self.refused[message.batch_id] += 1
        if len(self.too_large) < _SHOWN:
            self.too_large.append(pair_id(message))
        return True

    def _produce(self, message: Message, acknowledge: partial[None]) -> None:
        while True:
            try:
                self.producer.produce(
                    self.leg.topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    partition=self.partition,
                    on_delivery=acknowledge,
                )
            except BufferError:
                # Full: what is under way is delivered or, after its timeout, a failure.
                self.producer.poll(0.1)
                self._raise_failure()
            else:
                break
        self.in_transaction += 1
        if self.in_transaction % 1000 == 0:
            self.producer.poll(0)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise KafkaException(self._reason(self.failure)) from None

    def _reason(self, failure: KafkaError) -> KafkaError:
        """What failed the transaction, where all that the records say is that they were thrown away with it."""
        if failure.code() in _THROWN_AWAY:
            try:
                # Refused in any transaction, and in one that has failed with the reason.
                self.producer.begin_transaction()
            except KafkaException as error:
                return failure if error.args[0].code() == KafkaError._STATE else error.args[0]
        return failure

    def _delivered(self, batch_id: int, error: KafkaError | None, message: Delivered) -> None:
        if error is None:
            self.acknowledged[batch_id] += 1
            return
        self.failure = self.failure or error
        self.failures += 1
        if self.failures <= _SHOWN:
            # To the log of the task, as the job's one line has room for one reason only.
            key = (message.key() or b"").decode(errors="replace")
            where = f"{self.leg.topic}-{self.partition}"
            print(
                f"not delivered to {where}: key {key} of batch {batch_id}: {error.str()} ({error.name()})", file=sys.stderr
            )

    def _commit(self, batch_id: int) -> None:
        # Before the position is written: what was acknowledged becomes part of it.
        self._deliver()
        fault_point("transaction_all_sent")
        leg = self.leg
        limits = {number: limit for number, limit in self.limits.items() if leg.copy < number <= batch_id}
        position = Position(batch_id, leg.table_id, leg.slots, leg.topic_id, self.acknowledged, limits)
        place = TopicPartition(leg.topic, self.partition, batch_id, metadata=position.metadata())
        group = self.consumer.consumer_group_metadata()

        def send_offsets() -> None:
            self.producer.send_offsets_to_transaction([place], group, ANSWER_WITHIN_S)

        patiently(lambda: given_up_after(ANSWER_WITHIN_S + 1, send_offsets))
        fault_point("transaction_offsets_sent")
        patiently(lambda: self.producer.commit_transaction(ANSWER_WITHIN_S))
        fault_point("transaction_committed")
        self.in_transaction = 0

    def _deliver(self) -> None:
        """Waits until all that was produced is acknowledged, for as long as it gets less. Raises KafkaException."""
        waiting, give_up = len(self.producer), time.monotonic() + self.patience
        while waiting and self.failure is None and time.monotonic() < give_up:
            left = self.producer.flush(1.0)
            if left < waiting:
                waiting, give_up = left, time.monotonic() + self.patience
        self._raise_failure()
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _abort(self, cause: BaseException) -> None:
        if self.start >= self.leg.target:
            return
        try:
            self.producer.abort_transaction(ANSWER_WITHIN_S)
        except KafkaException as error:
            # Of a transaction that may not begin there is nothing to abort, which the client calls fatal; the cause says more.
            refused = isinstance(cause, KafkaException) and is_refusal(cause.args[0])
            if error.args[0].fatal() and not refused:
                # Here the client says what it is; elsewhere, at times, only that it is fatal.
                raise
            # The broker aborts it by itself when the next producer with this id begins.
            print(f"abort of the open transaction failed: {error.args[0].str()}")
