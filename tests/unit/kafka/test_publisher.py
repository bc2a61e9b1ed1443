"""What the client raises reaches the operator as one line, in whatever form it comes."""

from __future__ import annotations

import ctypes

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.kafka.publisher import _with_exceptions


def raise_bare_error():
    """As the client's C code does: a KafkaError is no exception, and Python's `raise` would refuse it."""
    error = KafkaError(KafkaError._FENCED, "an old epoch", fatal=True)
    raised = ctypes.pythonapi.PyErr_SetObject
    raised.argtypes, raised.restype = [ctypes.py_object, ctypes.py_object], None
    raised(KafkaError, error)


def test_a_bare_fatal_error_becomes_an_exception():
    with pytest.raises(KafkaException) as found:
        _with_exceptions(raise_bare_error)
    assert found.value.args[0].code() == KafkaError._FENCED and found.value.__context__ is None


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._TIMED_OUT)), SystemError("x"), KeyboardInterrupt()])
def test_what_is_an_exception_stays_as_it_is(error):
    def fail():
        raise error

    with pytest.raises(type(error)) as found:
        _with_exceptions(fail)
    assert found.value is error
