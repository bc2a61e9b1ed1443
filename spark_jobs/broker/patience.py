"""Repeating what a broker asks to be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from spark_jobs.broker.settings import ANSWER_WITHIN_S

_ON_THE_MOVE = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
)

T = TypeVar("T")


def patiently(call: Callable[[], T]) -> T:
    """Repeats the call while a leader or a coordinator is moving; raises KafkaException in the end."""
    give_up = time.monotonic() + ANSWER_WITHIN_S
    while True:
        try:
            return call()
        except KafkaException as error:
            problem = error.args[0]
            if not (problem.retriable() or problem.code() in _ON_THE_MOVE) or time.monotonic() > give_up:
                raise
        time.sleep(0.1)
