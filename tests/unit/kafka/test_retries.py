"""What a broker asks to be repeated is repeated, and nothing else; what it does not answer is given up."""

from __future__ import annotations

import time
from threading import Event
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.kafka import retries
from spark_jobs.kafka.retries import Patience, retry_transient, with_timeout


class Asked:
    """Fails with an error so many times, and counts how often it was asked."""

    def __init__(self, code: int, failures: int) -> None:
        self.code, self.failures, self.times = code, failures, 0

    def __call__(self) -> str:
        self.times += 1
        if self.times <= self.failures:
            raise KafkaException(KafkaError(self.code))
        return "answer"


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_what_is_on_the_move_is_asked_again(code):
    asked = Asked(code, 2)
    assert retry_transient(asked) == "answer"
    assert asked.times == 3


def test_nobody_asks_for_ever(monkeypatch):
    monkeypatch.setattr(retries, "ANSWER_WITHIN_S", 0.15)
    asked = Asked(KafkaError.NOT_LEADER_FOR_PARTITION, 1_000)
    with pytest.raises(KafkaException):
        retry_transient(asked)
    assert 1 < asked.times < 5


def test_any_other_error_is_told_at_once():
    asked = Asked(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
    with pytest.raises(KafkaException):
        retry_transient(asked)
    assert asked.times == 1


def test_a_call_that_ends_in_time_is_as_without():
    done = []
    with_timeout(20, lambda: done.append(1))
    assert done == [1]

    def fenced():
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with pytest.raises(KafkaException) as raised:
        with_timeout(20, fenced)
    assert raised.value.args[0].code() == KafkaError._FENCED


def test_a_call_that_does_not_end_is_given_up():
    back, begun = Event(), time.monotonic()
    with pytest.raises(KafkaException) as raised:
        with_timeout(0.1, lambda: back.wait(60) and None)
    back.set()
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    assert time.monotonic() - begun < 30


def test_patience_lasts_until_there_is_no_progress_and_no_quota(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])

    def is_over_at(moment):
        now[0] = moment
        return patience.is_over()

    patience = Patience(20)
    assert not is_over_at(20)
    patience.renew()
    assert (is_over_at(40), is_over_at(40.1)) == (False, True)
    patience.throttled(SimpleNamespace(throttle_time=0.5, broker_id=1))
    assert capsys.readouterr().err == ""
    patience.throttled(SimpleNamespace(throttle_time=90.0, broker_id=1))
    # An answer that comes in between takes nothing of it away.
    patience.renew()
    assert (is_over_at(150), is_over_at(150.2)) == (False, True)
    patience.throttled(SimpleNamespace(throttle_time=5.0, broker_id=1))
    # Nothing at all for a quarter of an hour.
    now[0] = 1_000.0
    patience.throttled(SimpleNamespace(throttle_time=90.0, broker_id=1))
    assert (is_over_at(960), is_over_at(961)) == (False, True)
    line = "warning: broker 1 throttles this client for a quota, now by 90.0 s: it goes on slowly"
    assert capsys.readouterr().err.splitlines() == [line]
