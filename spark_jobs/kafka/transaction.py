"""One transaction of one output partition: its records and the position behind them, by a producer of its own (see fencing.py)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as DeliveredMessage

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.kafka.acls import refused_right
from spark_jobs.kafka.fencing import fenced_producer
from spark_jobs.kafka.messages import BATCH_FRAME, Message
from spark_jobs.kafka.positions import Position, PublishRun, committed_positions
from spark_jobs.kafka.retries import Patience, retry_transient, with_timeout
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, delivery_timeout_s

_SHOWN = 20
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class _Deliveries:
    """Counts what becomes of the records. It has no reference to the producer, whose memory and connections a cycle would keep for long."""

    def __init__(self, place: str, acknowledged: Counter[int]) -> None:
        self.place, self._acknowledged = place, acknowledged
        self.failure: KafkaError | None = None
        """The first error with which the broker refused a record."""
        self.failures = 0

    def of_batch(self, batch_id: int) -> Callable[[KafkaError | None, DeliveredMessage], None]:
        """What the client has to call for each record of the batch."""
        acknowledged = self._acknowledged

        # A tenth of the time of sending, as short as it is.
        def delivered(error: KafkaError | None, _: DeliveredMessage) -> None:
            if error is None:
                acknowledged[batch_id] += 1
            else:
                self._failed(batch_id, error)

        return delivered

    def _failed(self, batch_id: int, error: KafkaError) -> None:
        self.failure = self.failure or error
        self.failures += 1
        if self.failures <= _SHOWN:
            # To the log of the task, because the job's one line has room for one reason only.
            # Without its key, which names somebody whom no erasure could take from a log. The client hands over no headers here.
            print(
                f"not delivered to {self.place}: a message of batch {batch_id}: {error.str()} ({error.name()})",
                file=sys.stderr,
            )


class Transaction:
    """Fences earlier publishers, reads the position, and can then send and commit once. All methods raise KafkaException.

    `acknowledged`: batch_id -> records; the records that the broker acknowledges are added to it.
    """

    def __init__(
        self, settings: Settings, consumer: Consumer, run: PublishRun, partition: int, acknowledged: Counter[int]
    ) -> None:
        self._consumer, self._run, self._partition = consumer, run, partition
        self.deliveries = _Deliveries(f"{run.topic}-{partition}", acknowledged)
        self._patience = Patience(delivery_timeout_s(settings))
        # The client fills its batches up to this limit and does not count their frame.
        limits = {"message.max.bytes": max(run.largest - BATCH_FRAME, 1000), "throttle_cb": self._patience.throttled}
        self._producer = fenced_producer(settings | limits, run.slots, run.topic, partition)
        (self.position,) = committed_positions(consumer, run.topic, range(partition, partition + 1)).values()
        self.records = 0
        self._open = False
        self.is_commit_unknown = False
        """It asked for the commit and has no answer yet."""

    def begin(self) -> None:
        """Call before the first record."""
        self._producer.begin_transaction()
        self._open = True
        fault_point("transaction_begun")

    def send(self, batch_id: int, messages: Iterable[Message]) -> int:
        """Queues the messages of a batch; waits while the client's queue is full. Returns how many they were."""
        topic, partition, delivered = self._run.topic, self._partition, self.deliveries.of_batch(batch_id)
        before, produce = self.records, self._producer.produce
        for _, key, value, headers, _ in messages:
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery=delivered, headers=headers)
                    break
                except BufferError:
                    # Each queued record is delivered or, after its timeout, a failure.
                    self._producer.poll(0.1)
                    self._raise_failure()
            self.records += 1
            if self.records % 1000 == 0:
                self._producer.poll(0)
                self._raise_failure()
            if self.records == 1:
                # The first request travels alone. A broker without KIP-890 that has forgotten the producer takes any sequence number as its first.
                # If it refused this request, as while a leader moves, and took the next, it would call the repeated one a duplicate, and the record
                # be lost.
                self._wait_for_acknowledgements()
                fault_point("transaction_half_sent")
        return self.records - before

    def deliver(self) -> None:
        """Waits until the broker has acknowledged all records."""
        self._wait_for_acknowledgements()
        fault_point("transaction_all_sent")

    def commit(self, position: Position) -> None:
        """Commits the records and the position. If it raises, the outcome is unknown until another producer has fenced this one."""
        place = TopicPartition(self._run.topic, self._partition, position.batch_id, metadata=position.metadata())
        group = self._consumer.consumer_group_metadata()
        send_offsets = partial(self._producer.send_offsets_to_transaction, [place], group, ANSWER_WITHIN_S)
        retry_transient(lambda: with_timeout(ANSWER_WITHIN_S + 1, send_offsets))
        fault_point("transaction_offsets_sent")
        self.is_commit_unknown = True
        retry_transient(lambda: self._producer.commit_transaction(ANSWER_WITHIN_S))
        self._open = self.is_commit_unknown = False
        fault_point("transaction_committed")

    def abort(self, cause: BaseException) -> None:
        """Aborts the transaction if it is open. A late request can end no other transaction, because its epoch has no other."""
        if not self._open:
            return
        try:
            self._producer.abort_transaction(ANSWER_WITHIN_S)
        except KafkaException as error:
            # The client calls it fatal to abort a transaction that it had no right to begin; the cause then says more.
            refused = isinstance(cause, KafkaException) and refused_right(
                cause.args[0], self._run.topic, self._run.group, "Write"
            )
            if error.args[0].fatal() and not refused:
                # This error names the reason; the cause at times only says that it is fatal.
                raise
            # The broker aborts it when the next producer with this id begins.
            print(f"abort of the open transaction failed: {error.args[0].str()}")

    def _wait_for_acknowledgements(self) -> None:
        """Waits for as long as the number of unacknowledged records falls."""
        waiting = len(self._producer)
        self._patience.renew()
        while waiting and self.deliveries.failure is None and not self._patience.is_over():
            left = self._producer.flush(1.0)
            if left < waiting:
                waiting = left
                self._patience.renew()
        self._raise_failure()
        if waiting:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _raise_failure(self) -> None:
        """Raises the first error of a record, or why the transaction failed, where that is only that it was purged with it."""
        reason = self.deliveries.failure
        if reason is None:
            return
        if reason.code() in _PURGED:
            try:
                # An open transaction refuses it as a wrong state, a failed one with the reason.
                self._producer.begin_transaction()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    reason = error.args[0]
        raise KafkaException(reason) from None
