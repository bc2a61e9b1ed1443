"""Publishes exactly once into Kafka: the records of an output partition and the position behind them in one transaction.

positions.py says what a position is. Before every transaction the publisher fences earlier ones with the same transactional id (fencing.py);
the position that it then reads must be the one that its own last transaction left.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.acls import missing_right, refused_right
from spark_jobs.kafka.messages import Message, fits, name_of
from spark_jobs.kafka.positions import Position, PublishRun, committed_positions, read_position, trusted_position
from spark_jobs.kafka.routing import ExpectedMessages
from spark_jobs.kafka.settings import BrokerProblem, Settings, address, consumer_settings
from spark_jobs.kafka.transaction import Transaction
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.records import OutputState, PublishedCounts

_RECORDS_A_TRANSACTION = 200_000
_SHOWN = 20
# The client tells of it itself, or hands on what the broker answers.
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
# So long after the position has come to the end, or after the last sign of the other publisher, a fenced attempt speaks.
_REPORTED_WITHIN_S = 5.0
_SILENT_S = 30.0


class PartitionReport(NamedTuple):
    """What became of the messages of one output partition; the dicts are batch_id -> number."""

    partition: int
    sent: int  # records sent in this run
    acknowledged: dict[int, int]  # records acknowledged in committed transactions of this run and earlier ones
    refused: dict[int, int]  # messages larger than the topic takes, which were left out
    too_large: list[str]  # the names of the first of them


def publish_partition(
    settings: Settings, run: PublishRun, partition: int, messages: Iterable[Message], speculative: bool = False
) -> PartitionReport:
    """Sends the partition's messages (ordered by batch_id) of the run's batches beyond the position.

    `speculative`: Spark may run two attempts of this task. The second fences the first, whose problem would end the job; so a fenced attempt
    waits until the other is done, and Spark has ended it. Raises BrokerProblem and other JobProblems.
    """
    with Consumer(consumer_settings(settings, run.group)) as consumer:
        publisher = _PartitionPublisher(settings, consumer, run, partition)
        try:
            return _with_exceptions(lambda: publisher.send(messages))
        except (KafkaException, SystemError) as error:
            # The client raises a fatal error inside its callbacks; Python wraps that in a SystemError.
            cause = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(cause, KafkaException):
                raise
            if speculative and cause.args[0].code() in _FENCED:
                publisher.await_other()
            raise publisher.problem(cause.args[0]) from None


def _with_exceptions(send: Callable[[], PartitionReport]) -> PartitionReport:
    """What `send` returns. A fatal error may come as a bare KafkaError, which is no exception: no clause that names a class catches it."""
    try:
        return send()
    except BaseException:
        raise
    except:  # noqa: E722
        error = sys.exc_info()[1]
    # Out here, for it must not become the context of an exception.
    raise KafkaException(error)


class _PartitionPublisher:
    """Sends whole batches, as many in one transaction as fit; every transaction moves the position with its records."""

    def __init__(self, settings: Settings, consumer: Consumer, run: PublishRun, partition: int) -> None:
        self.settings, self.consumer, self.run, self.partition = settings, consumer, run, partition
        self.start = run.ledger_position
        self.acknowledged: Counter[int] = Counter()
        self.limits: dict[int, int] = {}
        self.refused: Counter[int] = Counter()
        self.too_large: list[str] = []
        self.transaction: Transaction | None = None

    def send(self, messages: Iterable[Message]) -> PartitionReport:
        """Sends what is beyond the position. On any error it aborts the open transaction."""
        transaction = self._fence()
        self._continue_from(transaction.position)
        sent, last = 0, self.start
        fault_point("publisher_fenced")
        try:
            if self.start < self.run.target:
                transaction.begin()
            for batch_id, of_batch in groupby(messages, attrgetter("batch_id")):
                if batch_id <= self.start:
                    # Sent by an earlier run. Only what was left out is counted again.
                    if batch_id in self.limits:
                        deque(self._that_fit(of_batch, self.limits[batch_id]), maxlen=0)
                    continue
                if transaction.records >= _RECORDS_A_TRANSACTION:
                    transaction = self._next_transaction(self._commit(transaction, last))
                last = batch_id
                sent += transaction.send(batch_id, self._that_fit(of_batch, self.run.largest))
            if self.start < self.run.target:
                self._commit(transaction, self.run.target)
        except BaseException as error:
            transaction.abort(error)
            raise
        return PartitionReport(self.partition, sent, dict(self.acknowledged), dict(self.refused), self.too_large)

    def problem(self, error: KafkaError) -> JobProblem:
        """The problem for the operator, with what is known of the last transaction."""
        run, last = self.run, self.transaction
        # If no record failed, the position did, and committing offsets on a topic needs the right to read it.
        operation = "Write" if last is not None and last.deliveries.failure is not None else "Read"
        if right := refused_right(error, run.topic, run.group, operation):
            return missing_right(self.settings, right)
        outcome = "nothing of the open transaction is visible, the next run sends it again"
        if last is not None and last.is_commit_unknown:
            outcome = "whether its last transaction is committed is not known; the next run asks the broker, and sends what is missing"
        is_fenced = error.code() in _FENCED
        reason = "fenced by another publisher of this pipeline" if is_fenced else f"{error.str()} ({error.name()})"
        return BrokerProblem(
            f"publishing to {run.topic}-{self.partition} at {address(self.settings)} failed: {reason}; {outcome}"
        )

    def await_other(self) -> None:
        """Returns a moment after the other publisher has brought the position to the end, or has been silent for long."""
        run, place = self.run, TopicPartition(self.run.topic, self.partition)
        known, give_up = None, time.monotonic() + _SILENT_S
        while time.monotonic() < give_up:
            time.sleep(0.5)
            # The position cannot be read while the other commits.
            with suppress(KafkaException):
                (position,) = committed_positions(
                    self.consumer, run.topic, range(self.partition, self.partition + 1), 5
                ).values()
                if position and position.batch_id >= run.target:
                    time.sleep(_REPORTED_WITHIN_S)
                    return
                seen = position, self.consumer.get_watermark_offsets(place, timeout=5)
                if seen != known:
                    known, give_up = seen, time.monotonic() + _SILENT_S

    def _fence(self) -> Transaction:
        self.transaction = Transaction(self.settings, self.consumer, self.run, self.partition, self.acknowledged)
        return self.transaction

    def _continue_from(self, committed: Position | None) -> None:
        run, position = self.run, trusted_position(self.run, self.partition, committed)
        if position is None:
            return
        if position.batch_id > run.ledger_position and position.partitions != run.partitions:
            raise self._moved(f"for {position.partitions} partitions instead of {run.partitions}")
        self.start, self.limits = position.batch_id, dict(position.limits)
        # The counts of earlier runs for batches that the ledger does not call published yet.
        counts = position.acknowledged.items()
        self.acknowledged.update({number: records for number, records in counts if number > run.ledger_position})

    def _next_transaction(self, left_at: Position) -> Transaction:
        """Begins the next transaction. Another publisher may have overtaken this one before it fences again; then it raises."""
        transaction = self._fence()
        if transaction.position != left_at:
            now = "nowhere" if transaction.position is None else f"to batch {transaction.position.batch_id}"
            raise self._moved(f"{now}, from batch {left_at.batch_id}")
        transaction.begin()
        return transaction

    def _moved(self, how: str) -> JobProblem:
        run = self.run
        return JobProblem(
            f"the position on {run.topic}-{self.partition} of group {run.group} was moved meanwhile, {how}: another publisher of this "
            "pipeline is at work; stop one of them"
        )

    def _that_fit(self, messages: Iterable[Message], limit: int) -> Iterator[Message]:
        """Without those that are larger than the limit. The broker would refuse such a message together with its whole transaction."""
        for message in messages:
            if fits(message, limit):
                yield message
                continue
            self.limits[message.batch_id] = limit
            self.refused[message.batch_id] += 1
            if len(self.too_large) < _SHOWN:
                self.too_large.append(name_of(message))

    def _commit(self, transaction: Transaction, batch_id: int) -> Position:
        # First, because the position contains the acknowledged counts.
        transaction.deliver()
        run = self.run
        limits = {number: limit for number, limit in self.limits.items() if run.ledger_position < number <= batch_id}
        position = Position(batch_id, run.table_id, run.partitions, run.topic_id, dict(self.acknowledged), limits)
        transaction.commit(position)
        return read_position(batch_id, position.metadata())


def check_there(paired: Iterable[LedgerRow], rows: Mapping[int, int]) -> None:
    """Raises BrokenInvariant unless compound_events has every paired compound. `rows`: batch_id -> its rows there. Call before anything is sent."""
    for row in paired:
        if (found := rows.get(row.batch_id, 0)) != row.paired.compounds:
            raise BrokenInvariant(
                f"batch {row.batch_id}: {row.paired.compounds} compounds were paired, but {found} are in compound_events: nothing was "
                "sent; was the table changed by hand?"
            )


def check_acknowledged(topic: str, expected: Mapping[int, ExpectedMessages], reports: list[PartitionReport]) -> None:
    """Raises BrokenInvariant unless the broker acknowledged every expected message that was not refused. `expected`: by batch_id."""
    for batch_id, wanted in expected.items():
        acknowledged = sum(report.acknowledged.get(batch_id, 0) for report in reports)
        refused = sum(report.refused.get(batch_id, 0) for report in reports)
        if acknowledged + refused != sum(wanted):
            raise BrokenInvariant(
                f"batch {batch_id}: {sum(wanted)} compounds are in compound_events, but {topic} acknowledged {acknowledged}: "
                "reconcile lists those that are missing or there twice"
            )


def published_record(
    batch_id: int, run: PublishRun, expected: ExpectedMessages, reports: list[PartitionReport], ends: dict[int, int]
) -> tuple[PublishedCounts, OutputState]:
    """What the ledger keeps of a published batch.

    `ends`: partition -> end (exclusive) behind all batches of the run; the report reads up to there.
    """
    state, refused = output_state(batch_id, run, reports, ends)
    compounds = sum(state.sent.values()) - expected.withdrawn
    return PublishedCounts(compounds=compounds, refused=refused, withdrawn=expected.withdrawn), state


def output_state(
    batch_id: int, run: PublishRun, reports: list[PartitionReport], ends: dict[int, int]
) -> tuple[OutputState, int]:
    """How a published batch left its topic, and how many of its messages were refused. `ends`: as for `published_record`."""
    acknowledged = {report.partition: report.acknowledged.get(batch_id, 0) for report in reports}
    refused = sum(report.refused.get(batch_id, 0) for report in reports)
    sent = {number: records for number, records in sorted(acknowledged.items()) if records}
    return OutputState(run.topic_id, run.partitions, ends=ends, sent=sent, position=run.target), refused
