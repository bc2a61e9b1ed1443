"""What a broker does not answer is given up."""

from __future__ import annotations

import time
from threading import Event

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.broker.patience import given_up_after


def test_a_call_that_ends_in_time_is_as_without():
    done = []
    given_up_after(20, lambda: done.append(1))
    assert done == [1]

    def fenced():
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with pytest.raises(KafkaException) as raised:
        given_up_after(20, fenced)
    assert raised.value.args[0].code() == KafkaError._FENCED


def test_a_call_that_does_not_end_is_given_up():
    back, begun = Event(), time.monotonic()
    with pytest.raises(KafkaException) as raised:
        given_up_after(0.1, lambda: back.wait(60) and None)
    back.set()
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
    assert time.monotonic() - begun < 30
