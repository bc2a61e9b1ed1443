"""Exactly once into Kafka: the records of an output partition and the position behind them in one transaction.

See positions.py for what a position is. A dead or slow predecessor with the same transactional id is fenced before every transaction
(fencing.py), and the position then read must be what the transaction before has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.acls import lacked, lacking
from spark_jobs.kafka.messages import Message, fits, pair_id
from spark_jobs.kafka.positions import Leg, Position, believe, read_position
from spark_jobs.kafka.settings import BrokerProblem, Settings, address, consumer_settings
from spark_jobs.kafka.transaction import Transaction

_RECORDS_A_TRANSACTION = 200_000
_SHOWN = 20


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
    consumer = Consumer(consumer_settings(settings, leg.group))
    slot = _Slot(settings, consumer, leg, partition)
    try:
        return slot.send(messages)
    except (KafkaException, SystemError) as error:
        # The client raises a fatal error in the midst of its callbacks; Python then has an error of its own, caused by it.
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if not isinstance(cause, KafkaException):
            raise
        problem = cause.args[0]
        # Where the records went, it is the position: only who may read a topic may commit offsets on it.
        if right := lacked(problem, leg.topic, leg.group, "Write" if slot.records_failed() else "Read"):
            raise lacking(settings, right) from None
        raise BrokerProblem(
            f"publishing to {leg.topic}-{partition} at {address(settings)} failed: {problem.str()} ({problem.name()}); {slot.outcome()}"
        ) from None
    finally:
        consumer.close()


class _Slot:
    """Sends whole batches, one transaction for as many as fit; every transaction moves the position with its records."""

    def __init__(self, settings: Settings, consumer: Consumer, leg: Leg, partition: int) -> None:
        self.settings, self.consumer, self.leg, self.partition = settings, consumer, leg, partition
        self.start = leg.copy
        self.acknowledged: Counter[int] = Counter()
        self.limits: dict[int, int] = {}
        self.refused: Counter[int] = Counter()
        self.too_large: list[str] = []
        self.transaction: Transaction | None = None

    def send(self, messages: Iterable[Message]) -> SlotReport:
        """Sends what is beyond the position. On any error the open transaction is aborted."""
        read: Counter[int] = Counter()
        transaction = self._fence()
        self._go_on_from(transaction.found)
        sent, batch_id = 0, self.start
        fault_point("publisher_fenced")
        try:
            if self.start < self.leg.target:
                transaction.begin()
            for message in messages:
                read[message.batch_id] += 1
                if message.batch_id <= self.start:
                    if message.batch_id in self.limits:
                        self._leave_out(message, self.limits[message.batch_id])
                    continue
                if message.batch_id != batch_id:
                    if transaction.records >= _RECORDS_A_TRANSACTION:
                        transaction = self._after(self._commit(transaction, batch_id))
                    batch_id = message.batch_id
                if self._leave_out(message, self.leg.largest):
                    continue
                transaction.send(message)
                sent += 1
            if self.start < self.leg.target:
                self._commit(transaction, self.leg.target)
        except BaseException as error:
            transaction.abort(error)
            raise
        return SlotReport(self.partition, sent, dict(read), dict(self.acknowledged), dict(self.refused), self.too_large)

    def records_failed(self) -> bool:
        """Whether the broker refused records of the last transaction."""
        return self.transaction is not None and self.transaction.failure is not None

    def outcome(self) -> str:
        """What is known of the last transaction after an error."""
        if self.transaction is not None and self.transaction.ending:
            return "whether its last transaction is committed is not known; the next run asks the broker, and sends what is missing"
        return "nothing of the open transaction is visible, the next run sends it again"

    def _fence(self) -> Transaction:
        self.transaction = Transaction(self.settings, self.consumer, self.leg, self.partition, self.acknowledged)
        return self.transaction

    def _go_on_from(self, committed: Position | None) -> None:
        leg, position = self.leg, believe(self.leg, self.partition, committed)
        if position is None:
            return
        if position.batch_id > leg.copy and position.slots != leg.slots:
            raise self._moved(f"for {position.slots} partitions instead of {leg.slots}")
        self.start, self.limits = position.batch_id, dict(position.limits)
        # What earlier runs counted, as far as the ledger does not have it yet.
        counted = position.acknowledged.items()
        self.acknowledged.update({number: records for number, records in counted if number > leg.copy})

    def _after(self, left_at: Position) -> Transaction:
        """The next transaction. Before it has fenced the others, one that stood still here may have been overtaken by them."""
        transaction = self._fence()
        if transaction.found != left_at:
            now = "nowhere" if transaction.found is None else f"to batch {transaction.found.batch_id}"
            raise self._moved(f"{now}, from batch {left_at.batch_id}")
        transaction.begin()
        return transaction

    def _moved(self, how: str) -> JobProblem:
        leg = self.leg
        return JobProblem(
            f"the position on {leg.topic}-{self.partition} of group {leg.group} was moved meanwhile, {how}: another publisher of this "
            "pipeline is at work; stop one of them"
        )

    def _leave_out(self, message: Message, limit: int) -> bool:
        """Whether the message is larger than the limit. One that no broker takes must not keep the others back."""
        if fits(message, limit):
            return False
        self.limits[message.batch_id] = limit
        self.refused[message.batch_id] += 1
        if len(self.too_large) < _SHOWN:
            self.too_large.append(pair_id(message))
        return True

    def _commit(self, transaction: Transaction, batch_id: int) -> Position:
        # Before the position is written: what was acknowledged becomes part of it.
        transaction.deliver()
        leg = self.leg
        limits = {number: limit for number, limit in self.limits.items() if leg.copy < number <= batch_id}
        position = Position(batch_id, leg.table_id, leg.slots, leg.topic_id, dict(self.acknowledged), limits)
        transaction.commit(position)
        return read_position(batch_id, position.metadata())
