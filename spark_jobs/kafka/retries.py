"""Repeating what a broker asks to be repeated, and giving up what it does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from spark_jobs.kafka.settings import ANSWER_WITHIN_S

_ON_THE_MOVE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    # A broker that has just become the leader, or come back, hears of it a moment later than its clients.
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)

T = TypeVar("T")


def is_on_the_move(error: KafkaError) -> bool:
    """Whether a leader or a coordinator is moving, so that the same question is answered a moment later."""
    return error.retriable() or error.code() in _ON_THE_MOVE


def patiently(call: Callable[[], T]) -> T:
    """Repeats the call while a leader or a coordinator is moving; raises KafkaException in the end."""
    give_up = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if not is_on_the_move(error.args[0]) or time.monotonic() > give_up:
                raise
        time.sleep(0.1)


def given_up_after(seconds: float, call: Callable[[], None]) -> None:
    """The call, or KafkaException once it has taken so long: with its broker gone, librdkafka waits on, whatever timeout it was given.

    The call goes on in a thread of its own until the broker is back, or the process ends.
    """
    raised: list[KafkaException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except KafkaException as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    error = raised[0] if raised else KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if error is not None:
        raise error
