"""Requests to a broker: repeated where a leader or coordinator is moving, and abandoned where the client would wait without end.

A quota slows requests down, and ends none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, ThrottleEvent
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from spark_jobs.faults.problems import warn
from spark_jobs.kafka.settings import ANSWER_WITHIN_S

_TRANSIENT = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    # A broker that has just started, or just become the leader, learns of it a moment later than its clients.
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_WORTH_SAYING_S, _LONGEST_THROTTLED_S = 1.0, 900.0

T = TypeVar("T")


def is_transient(error: KafkaError) -> bool:
    """Whether a leader or a coordinator is moving, so that the same request succeeds a moment later."""
    return error.retriable() or error.code() in _TRANSIENT


def retry_transient(call: Callable[[], T]) -> T:
    """Repeats the call after transient errors, for ANSWER_WITHIN_S seconds; then raises the last KafkaException."""
    transient = retry_if_exception(lambda error: isinstance(error, KafkaException) and is_transient(error.args[0]))
    return Retrying(retry=transient, stop=stop_after_delay(ANSWER_WITHIN_S), wait=wait_fixed(0.1), reraise=True)(call)


class Patience:
    """Over after so many seconds without progress, not counted the time for which a broker throttles the client."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until, self._is_said = seconds, 0.0, False
        self.renew()

    def renew(self) -> None:
        """There was progress."""
        self._progress = time.monotonic()
        self._until = max(self._until, self._progress + self._seconds)

    def throttled(self, event: ThrottleEvent) -> None:
        """The client's `throttle_cb`."""
        # Kafka throttles a client for ever that asks for a record batch larger than its quota.
        until = min(time.monotonic() + event.throttle_time, self._progress + _LONGEST_THROTTLED_S)
        self._until = max(self._until, until + self._seconds)
        if event.throttle_time >= _WORTH_SAYING_S and not self._is_said:
            self._is_said = True
            warn(
                f"broker {event.broker_id} throttles this client for a quota, now by {event.throttle_time:.1f} s: it goes on slowly"
            )

    def is_over(self) -> bool:
        """Whether to give up."""
        return time.monotonic() > self._until


def with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """The call's result, or KafkaException (_TIMED_OUT) after so many seconds: librdkafka ignores its own timeout while its broker is away.

    The call continues in its own thread until the broker is back or the process ends.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    # An executor's threads would keep the process from ending.
    Thread(target=run, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
