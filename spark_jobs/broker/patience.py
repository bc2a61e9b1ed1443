"""Repeating what a broker asks to be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from spark_jobs.broker.settings import ANSWER_WITHIN_S

_COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)

T = TypeVar("T")


def patiently(call: Callable[[], T]) -> T:
    """Repeats the call, as when a group's or a transaction's coordinator is moving. Raises KafkaException in the end."""
    give_up = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return call()
        except KafkaException as error:
            problem = error.args[0]
            if not (problem.retriable() or problem.code() in _COORDINATOR_MOVES) or time.monotonic() > give_up:
                raise
        time.sleep(0.1)
