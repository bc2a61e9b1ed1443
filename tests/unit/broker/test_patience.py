"""What a broker asks to be repeated is repeated, and nothing else."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.broker import patience
from spark_jobs.broker.patience import patiently


class Asked:
    """Fails with an error so many times, and counts how often it was asked."""

    def __init__(self, code: int, failures: int) -> None:
        self.code, self.failures, self.times = code, failures, 0

    def __call__(self) -> str:
        self.times += 1
        if self.times <= self.failures:
            raise KafkaException(KafkaError(self.code))
        return "answer"


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
def test_what_is_on_the_move_is_asked_again(code):
    asked = Asked(code, 2)
    assert patiently(asked) == "answer"
    assert asked.times == 3


def test_nobody_asks_for_ever(monkeypatch):
    monkeypatch.setattr(patience, "ANSWER_WITHIN_S", 0.15)
    asked = Asked(KafkaError.NOT_LEADER_FOR_PARTITION, 1_000)
    with pytest.raises(KafkaException):
        patiently(asked)
    assert 1 < asked.times < 5


def test_any_other_error_is_told_at_once():
    asked = Asked(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with pytest.raises(KafkaException):
        patiently(asked)
    assert asked.times == 1
