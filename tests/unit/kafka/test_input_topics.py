"""Whether an input topic is the one that was read: by its id, and by a broker's answers about the end of a log.

Of a real log: tests/integration/test_log_ends.py.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.input_topics import _cut_at, _is_answer, check_ids
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.settings import BrokerProblem
from tests.helpers.timeline import CALLS

# As librdkafka 2.16 says it.
TRUNCATED = (
    "Partition log truncation detected at offset 10 (leader epoch 0): broker end offset is 5 (offset leader epoch 0). Reset to INVALID.: "
    "Local: Partition log truncation detected (broker 1)"
)
LEFT, RIGHT = (side.topic for side in CALLS.sides)
OLD, NEW, OTHER = "old_left", "new_left", "right"
FIRST = {LEFT: OLD, RIGHT: OTHER}


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


def now(left, right):
    return TopicsNow(0, {}, {}, {LEFT: left, RIGHT: right})


def test_a_first_batch_takes_any_ids_and_later_ones_keep_them():
    check_ids({}, now(OLD, OTHER))
    check_ids(FIRST, now(OLD, OTHER))


@pytest.mark.parametrize(
    ("left", "right", "refused"),
    [(NEW, OTHER, (LEFT, OLD, NEW)), (OLD, OLD, (RIGHT, OTHER, OLD)), (OTHER, OLD, (LEFT, OLD, OTHER))],
    ids=["left", "right", "exchanged"],
)
def test_another_id_is_refused_with_both(left, right, refused):
    topic, before, after = refused
    line = rf"input topic {topic} was deleted and created again \(id {before}, now {after}\): .* start a new one"
    with pytest.raises(NeedsOperator, match=line):
        check_ids(FIRST, now(left, right))
