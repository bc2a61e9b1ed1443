"""Where reading ends: at offsets without a record, at the end of a partition, and at one that comes too early."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import records
from spark_jobs.kafka.retries import Patience
from spark_jobs.kafka.settings import BrokerProblem
from tests.helpers.timeline import CALLS


def message(offset=0, code=None, text=""):
    """A message, or the event of that error."""
    error = None if code is None else KafkaError(code, text)
    return SimpleNamespace(topic=lambda: "t", partition=lambda: 0, offset=lambda: offset, error=lambda: error)


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
    pieces = records._pieces(FakeConsumer(*heard), 0, 3, Patience(1.0), whole=True)
    assert [each.offset() for piece in pieces for each in piece] == offsets


@pytest.mark.parametrize("end", [1, 2])
def test_an_end_before_what_is_read_is_refused_only_where_all_is_wanted(end):
    with pytest.raises(ValueError, match=rf"^t-0 ended at offset {end} while it was read up to 3$"):
        list(records._pieces(FakeConsumer(message(0), end_at(end)), 0, 3, Patience(1.0), whole=True))
    pieces = records._pieces(FakeConsumer(message(0), end_at(end)), 0, 3, Patience(1.0))
    assert [each.offset() for piece in pieces for each in piece] == [0]


def test_the_driver_tells_it_in_one_line(monkeypatch):
    monkeypatch.setenv("PAIRING_KAFKA", '{"bootstrap.servers": "b:1"}')
    monkeypatch.setattr(records, "unreadable_topic", lambda *_: None)

    def work():
        raise RuntimeError("Task failed: ValueError: t-0 ended at offset 5 while it was read up to 10\n\tat java")

    with pytest.raises(
        BrokerProblem, match=r"^t-0 ended at offset 5 while it was read up to 10: the log was cut, or its leader is new"
    ):
        records.translate_read_errors(work, CALLS, ["t"])


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([], []),
        ([4], [[4]]),
        # Up to the limit, inclusive.
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([1, 1, 9, 1, 1], [[1, 1], [9, 1], [1]]),
        # One that is longer than the limit, or than a task, has a task of its own.
        ([3, 25, 3], [[3], [20], [5, 3]]),
    ],
)
def test_short_spans_share_a_task_and_long_ones_are_cut(lengths, parts, monkeypatch):
    monkeypatch.setattr(records, "OFFSETS_TOGETHER", 10)
    monkeypatch.setattr(records, "OFFSETS_A_TASK", 20)
    found = records.shares({("t", number): records.Span(5, 5 + length) for number, length in enumerate(lengths)})
    assert [[share.span.until - share.span.first for share in part] for part in found] == parts
    assert {(share.partition, share.span.first) for part in found for share in part} >= {(n, 5) for n in range(len(lengths))}


def test_spans_of_two_topics_share_no_task():
    spans = {("a", 0): records.Span(0, 1), ("b", 0): records.Span(0, 1)}
    assert [[share.topic for share in part] for part in records.shares(spans)] == [["a"], ["b"]]


def test_the_end_of_another_partition_does_not_count():
    at_end = message(0, KafkaError._PARTITION_EOF)
    consumer = FakeConsumer(at_end, message(0), message(1))
    assert [each[0].offset() for each in records._pieces(consumer, 0, 2, Patience(1), partition=1)] == [0, 1]


class Throttled(FakeConsumer):
    """Is throttled for two seconds, and gets nothing for one; its patience lasts for a tenth of one."""

    def __init__(self, patience, *heard):
        super().__init__(*heard)
        self.patience, self.since = patience, None

    def consume(self, most, within_s):
        if self.since is None:
            self.since = time.monotonic()
            self.patience.throttled(SimpleNamespace(throttle_time=2.0, broker_id=1))
        if time.monotonic() < self.since + 1:
            time.sleep(within_s)
            return []
        return super().consume(most, within_s)


def test_a_quota_is_no_silence():
    patience = Patience(0.1)
    consumer = Throttled(patience, message(0), message(1), message(2))
    assert [each.offset() for piece in records._pieces(consumer, 0, 3, patience) for each in piece] == [0, 1, 2]


def test_silence_is_given_up():
    patience = Patience(0.1)
    consumer = SimpleNamespace(consume=lambda _, within_s: time.sleep(within_s) or [])
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        list(records._pieces(consumer, 0, 3, patience))


class DeafConsumer:
    """A consumer whose broker does not answer, as the client has it: one error about its connection, then nothing."""

    def __init__(self, settings):
        self.settings = settings

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def assign(self, _):
        self.settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION, self.settings["client.id"]))

    def consume(self, _, within_s):
        time.sleep(within_s)
        return []


@pytest.mark.parametrize(
    ("told", "kind", "line"),
    [
        (
            "Failed to acquire SASL OAUTHBEARER token: invalid_client",
            NeedsOperator,
            r"^no token for Kafka at b:1 \(invalid_client\)",
        ),
        ("Failed to acquire SASL OAUTHBEARER token: no route", BrokerProblem, r"^no token for Kafka at b:1 \(no route\)"),
        ("SASL authentication error", NeedsOperator, "^Kafka at b:1 refuses the connection"),
    ],
)
def test_a_worker_without_an_answer_says_why(told, kind, line, monkeypatch):
    monkeypatch.setattr(records, "ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr(records, "Consumer", DeafConsumer)
    share = records.Share("t", 0, records.Span(0, 3))
    with pytest.raises(kind, match=line):
        list(records.read_shares({"bootstrap.servers": "b:1", "client.id": told}, [share]))
