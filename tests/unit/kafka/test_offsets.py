"""What is asked of the broker before the output topic is compared, and what it says while a leader moves."""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import chain, repeat

import pytest
from confluent_kafka import OFFSET_INVALID, IsolationLevel
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from spark_jobs.kafka import offsets


@pytest.mark.parametrize(
    ("ends", "questions"),
    [
        # Committed, then all; the markers come with the second question.
        ([{0: 5}, {0: 9}, {0: 9}, {0: 9}], 4),
        ([{0: 9}, {0: 9}], 2),
    ],
)
def test_a_commit_is_waited_for_until_its_markers_are_there(ends, questions, monkeypatch):
    answers, asked = iter(ends), []
    monkeypatch.setattr(offsets, "partitions_of_topic", lambda *_: [("t", 0)])
    monkeypatch.setattr(offsets, "_list_ends", lambda *given: (asked.append(given[-1]), next(answers))[1])
    offsets.wait_for_markers({"bootstrap.servers": "127.0.0.1:1"}, "t")
    assert asked == [IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED] * (questions // 2)


def test_an_open_transaction_is_not_waited_for_long(monkeypatch):
    answers, asked = chain.from_iterable(repeat([{0: 5}, {0: 9}])), []
    monkeypatch.setattr(offsets, "partitions_of_topic", lambda *_: [("t", 0)])
    monkeypatch.setattr(offsets, "_list_ends", lambda *given: (asked.append(given[-1]), next(answers))[1])
    monkeypatch.setattr(offsets, "_MARKERS_WITHIN_S", 0.2)
    begun = time.monotonic()
    offsets.wait_for_markers({"bootstrap.servers": "127.0.0.1:1"}, "t")
    assert len(asked) > 2 and 0.2 <= time.monotonic() - begun < 2


def test_an_answer_without_an_offset_is_asked_for_again():
    """As an end it would look like a log that was cut."""
    offset_of = iter([OFFSET_INVALID, 7])

    class Admin:
        def list_offsets(self, wanted, **_):
            answer = Future()
            answer.set_result(ListOffsetsResultInfo(next(offset_of), -1, -1))
            return dict.fromkeys(wanted, answer)

    assert offsets._ask_offsets(Admin(), [("t", 0)], OffsetSpec.latest())["t", 0].offset == 7
