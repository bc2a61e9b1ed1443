"""One transaction of one slot: its records and the position behind them, by a producer that never makes another (see fencing.py)."""

from __future__ import annotations

import sys
import time
from collections import Counter
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Delivered

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.kafka.acls import is_refusal
from spark_jobs.kafka.fencing import fenced_producer
from spark_jobs.kafka.messages import BATCH_FRAME, Message
from spark_jobs.kafka.positions import Leg, Position, committed_positions
from spark_jobs.kafka.retries import retry_transient, with_timeout
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, delivery_patience

_SHOWN = 20
_THROWN_AWAY = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class _Deliveries:
    """What becomes of the records. It does not know the producer, or the two would keep each other, and its connections, for long."""

    def __init__(self, where: str, acknowledged: Counter[int]) -> None:
        self.where, self.acknowledged = where, acknowledged
        self.failure: KafkaError | None = None
        self.failures = 0

    def heard(self, batch_id: int, error: KafkaError | None, message: Delivered) -> None:
        """Called by the client for each record."""
        if error is None:
            self.acknowledged[batch_id] += 1
            return
        self.failure = self.failure or error
        self.failures += 1
        if self.failures <= _SHOWN:
            # To the log of the task, as the job's one line has room for one reason only.
            key = (message.key() or b"").decode(errors="replace")
            print(
                f"not delivered to {self.where}: key {key} of batch {batch_id}: {error.str()} ({error.name()})",
                file=sys.stderr,
            )


class Transaction:
    """Fences whoever came before, reads the position (`found`), and can then send and commit once.

    `acknowledged`: batch_id -> records, to which those that the broker acknowledges are added. All methods raise KafkaException.
    """

    def __init__(self, settings: Settings, consumer: Consumer, leg: Leg, partition: int, acknowledged: Counter[int]) -> None:
        self._consumer, self._leg, self._partition = consumer, leg, partition
        self._deliveries = _Deliveries(f"{leg.topic}-{partition}", acknowledged)
        self._patience = delivery_patience(settings)
        # The client fills its batches up to this, and counts their frame on top.
        limited = settings | {"message.max.bytes": max(leg.largest - BATCH_FRAME, 1000)}
        self._producer = fenced_producer(limited, leg.group, leg.topic, partition)
        (self.found,) = committed_positions(consumer, leg.topic, range(partition, partition + 1)).values()
        self.records = 0
        self._batch_id, self._on_delivery = 0, partial(self._deliveries.heard, 0)
        # `ending`: its commit was asked for, and what became of it is not known.
        self._open = self.ending = False

    @property
    def failure(self) -> KafkaError | None:
        """Why the broker did not take a record, the first time."""
        return self._deliveries.failure

    def begin(self) -> None:
        """Before the first record."""
        self._producer.begin_transaction()
        self._open = True
        fault_point("transaction_begun")

    def send(self, message: Message) -> None:
        """Waits where the client's queue is full."""
        if message.batch_id != self._batch_id:
            self._batch_id, self._on_delivery = message.batch_id, partial(self._deliveries.heard, message.batch_id)
        while True:
            try:
                self._producer.produce(
                    self._leg.topic,
                    key=message.key,
                    value=message.value,
                    headers=message.headers,
                    partition=self._partition,
                    on_delivery=self._on_delivery,
                )
            except BufferError:
                # Full: what is under way is delivered or, after its timeout, a failure.
                self._producer.poll(0.1)
                self._raise_failure()
            else:
                break
        self.records += 1
        if self.records % 1000 == 0:
            self._producer.poll(0)
        self._raise_failure()
        if self.records == 1:
            # Alone: a broker without KIP-890 that has forgotten the producer takes any sequence number as its first. If it refused this request for a
            # moment, as while a leader moves, and took the next, it would call this one a repeated one, and the client would believe it.
            self._wait_for_acknowledgements()
            fault_point("transaction_half_sent")

    def deliver(self) -> None:
        """Waits until all that was sent is acknowledged."""
        self._wait_for_acknowledgements()
        fault_point("transaction_all_sent")

    def commit(self, position: Position) -> None:
        """With the position. If this raises, nobody knows whether it is committed until another producer has fenced this one."""
        place = TopicPartition(self._leg.topic, self._partition, position.batch_id, metadata=position.metadata())
        group = self._consumer.consumer_group_metadata()

        def send_offsets() -> None:
            self._producer.send_offsets_to_transaction([place], group, ANSWER_WITHIN_S)

        retry_transient(lambda: with_timeout(ANSWER_WITHIN_S + 1, send_offsets))
        fault_point("transaction_offsets_sent")
        self.ending = True
        retry_transient(lambda: self._producer.commit_transaction(ANSWER_WITHIN_S))
        self._open = self.ending = False
        fault_point("transaction_committed")

    def abort(self, cause: BaseException) -> None:
        """If it is open. Coming late, or after a commit, this can end no other: there is none on its epoch."""
        if not self._open:
            return
        try:
            self._producer.abort_transaction(ANSWER_WITHIN_S)
        except KafkaException as error:
            # Of a transaction that may not begin there is nothing to abort, which the client calls fatal; the cause says more.
            refused = isinstance(cause, KafkaException) and is_refusal(cause.args[0])
            if error.args[0].fatal() and not refused:
                # Here the client says what it is; elsewhere, at times, only that it is fatal.
                raise
            # The broker aborts it by itself when the next producer with this id begins.
            print(f"abort of the open transaction failed: {error.args[0].str()}")

    def _wait_for_acknowledgements(self) -> None:
        """For as long as there are less to wait for."""
        waiting, give_up = len(self._producer), time.monotonic() + self._patience
        while waiting and self.failure is None and time.monotonic() < give_up:
            left = self._producer.flush(1.0)
            if left < waiting:
                waiting, give_up = left, time.monotonic() + self._patience
        self._raise_failure()
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise KafkaException(self._reason(self.failure)) from None

    def _reason(self, failure: KafkaError) -> KafkaError:
        """What failed the transaction, where all that the records say is that they were thrown away with it."""
        if failure.code() in _THROWN_AWAY:
            try:
                # Refused in any transaction, and in one that has failed with the reason.
                self._producer.begin_transaction()
            except KafkaException as error:
                return failure if error.args[0].code() == KafkaError._STATE else error.args[0]
        return failure
