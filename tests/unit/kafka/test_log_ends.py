"""What a broker's answers say of the end of a log. Of a real one: tests/integration/test_log_ends.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import records
from spark_jobs.kafka.log_ends import _cut_at, _is_answer
from spark_jobs.kafka.settings import BrokerProblem

# As librdkafka 2.16 says it.
TRUNCATED = (
    "Partition log truncation detected at offset 10 (leader epoch 0): broker end offset is 5 (offset leader epoch 0). Reset to INVALID.: "
    "Local: Partition log truncation detected (broker 1)"
)


def message(offset=0, code=None, text=""):
    """A message, or the event of that error."""
    error = None if code is None else KafkaError(code, text)
    return SimpleNamespace(topic=lambda: "t", partition=lambda: 0, offset=lambda: offset, error=lambda: error)


@pytest.mark.parametrize(
    ("code", "text", "at"),
    [
        (KafkaError._AUTO_OFFSET_RESET, TRUNCATED, 5),
        # Whatever else it says of it: nothing is known to be the same.
        (KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected, somewhere", 0),
        (KafkaError._AUTO_OFFSET_RESET, "fetch failed due to requested offset not available on the broker", None),
        (KafkaError._PARTITION_EOF, "", None),
        (None, "", None),
    ],
)
def test_where_a_log_was_cut(code, text, at):
    answer = message(10, code, text)
    assert _is_answer(answer, {})
    assert _cut_at(answer.error()) == at


def test_what_is_no_answer():
    settings = {"bootstrap.servers": "b:1"}
    for code in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_LEADER_EPOCH):
        assert not _is_answer(message(code=code), settings)
    with pytest.raises(NeedsOperator, match=r"--operation Read --topic t$"):
        _is_answer(message(code=KafkaError.TOPIC_AUTHORIZATION_FAILED), settings)
    with pytest.raises(BrokerProblem, match=r"^Kafka at b:1 cannot tell the end of t-0: "):
        _is_answer(message(code=KafkaError._UNKNOWN_PARTITION), settings)


class FakeConsumer:
    """Gives these messages, one at a time."""

    def __init__(self, *heard):
        self.heard = list(heard)

    def consume(self, most, _):
        return [self.heard.pop(0)]


def end_at(offset):
    return message(offset, KafkaError._PARTITION_EOF)


@pytest.mark.parametrize(
    ("heard", "offsets"),
    [
        ([message(0), message(1), message(2)], [0, 1, 2]),
        # Offsets without a record: in the middle, at the end, before a later one.
        ([message(0), message(2)], [0, 2]),
        ([message(0), end_at(3)], [0]),
        ([message(0), end_at(9)], [0]),
        ([message(0), message(7)], [0]),
    ],
)
def test_offsets_without_a_record_are_no_end(heard, offsets):
    pieces = records._pieces(FakeConsumer(*heard), 0, 3, whole=True)
    assert [each.offset() for piece in pieces for each in piece] == offsets


@pytest.mark.parametrize("end", [1, 2])
def test_an_end_before_what_is_read_is_refused_only_where_all_is_wanted(end):
    with pytest.raises(ValueError, match=rf"^t-0 ended at offset {end} while it was read up to 3$"):
        list(records._pieces(FakeConsumer(message(0), end_at(end)), 0, 3, whole=True))
    pieces = records._pieces(FakeConsumer(message(0), end_at(end)), 0, 3)
    assert [each.offset() for piece in pieces for each in piece] == [0]


def test_the_driver_tells_it_in_one_line(monkeypatch):
    monkeypatch.setattr(records, "kafka_settings", dict)
    monkeypatch.setattr(records, "unreadable", lambda *_: None)

    def work():
        raise RuntimeError("Task failed: ValueError: t-0 ended at offset 5 while it was read up to 10\n\tat java")

    with pytest.raises(
        BrokerProblem, match=r"^t-0 ended at offset 5 while it was read up to 10: the log was cut, or its leader is new"
    ):
        records.allowed(work, ["t"])
