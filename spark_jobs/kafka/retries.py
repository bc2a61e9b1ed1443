"""Requests to a broker: repeated where a leader or coordinator is moving, and abandoned where the client would wait without end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

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

T = TypeVar("T")


def is_transient(error: KafkaError) -> bool:
    """Whether a leader or a coordinator is moving, so that the same request succeeds a moment later."""
    return error.retriable() or error.code() in _TRANSIENT


def retry_transient(call: Callable[[], T]) -> T:
    """Repeats the call after transient errors, for ANSWER_WITHIN_S seconds; then raises the last KafkaException."""
    transient = retry_if_exception(lambda error: isinstance(error, KafkaException) and is_transient(error.args[0]))
    return Retrying(retry=transient, stop=stop_after_delay(ANSWER_WITHIN_S), wait=wait_fixed(0.1), reraise=True)(call)


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
