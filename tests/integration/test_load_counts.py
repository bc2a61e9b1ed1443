"""What a load compares in the end, on a real topic: the truth as messages, and each way in which they can differ from it."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from confluent_kafka import Producer

from include.sample.calls import Shares, live, live_traffic
from tests.load.counts import Line, compare

pytestmark = pytest.mark.integration

CALLS = 40
LATER = 2**62


@pytest.fixture
def truth(pipeline, tmp_path):
    """The truth of some calls without rejected events."""
    now = time.time_ns() // 1_000_000
    traffic = live_traffic(pipeline, 1, now, Shares(broken=0, future=0, duplicates=0))
    path = tmp_path / "truth.jsonl"
    path.write_text("".join(f"{line}\n" for line in live(traffic, CALLS, now).truth))
    return path


@pytest.fixture
def messages(truth):
    """(key, value, headers) of each message that the truth demands."""
    made = []
    for line in map(msgspec.json.Decoder(Line).decode, truth.read_bytes().splitlines()):
        for compound in line.compounds:
            value = bytes(compound.value)
            users = [json.loads(value)[name].replace("\\", r"\\").replace("-", r"\-") for name in ("user1", "user2")]
            made.append(
                ["-".join(users), value, {"kind": compound.kind, "op": "upsert", "revision": "0", "pair-id": str(len(made))}]
            )
    return made


@pytest.fixture
def compared(broker, pipeline, truth, messages, tmp_path):
    """Sends the messages and returns the comparison."""

    def of_all(clock=LATER):
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for key, value, headers in messages:
            producer.produce(pipeline.output_topic, value, key, headers=headers)
        assert producer.flush(20) == 0
        return compare([truth], pipeline, {"bootstrap.servers": broker.bootstrap}, str(tmp_path), clock)

    return of_all


def test_the_truth_itself_is_equal(compared, messages):
    found = compared()
    assert found.differences == [] and found.compounds == found.published == len(messages) >= CALLS


def test_another_spelling_of_the_same_value_is_equal(compared, messages):
    for message in messages:
        message[1] = b" " + message[1].replace(b'"ts":', b'"ts" : ')
    assert compared().differences == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda messages: messages.pop(), "lacks 1 ×"),
        (lambda messages: messages.append([*messages[0][:2], messages[0][2] | {"pair-id": "new"}]), "has 1 × too many"),
        (lambda messages: messages.append(messages[0]), "1 messages have the pair-id of another one"),
        (lambda messages: messages[0][2].update(kind="other"), "has 1 × too many: other"),
        (lambda messages: messages[0][2].update(revision="1"), "is a correction"),
        (lambda messages: messages[0][2].update(op="retract"), "is a correction"),
        (lambda messages: messages[0].__setitem__(0, "nobody"), "has the key b'nobody'"),
        (lambda messages: messages[0].__setitem__(1, messages[0][1].replace(b'"ts":1', b'"ts":2')), "lacks 1 ×"),
    ],
    ids=["missing", "again", "same-id", "kind", "revision", "retract", "key", "value"],
)
def test_each_difference_is_named(compared, messages, change, line):
    change(messages)
    assert any(line in found for found in compared().differences)


def test_an_open_session_is_a_difference(compared):
    assert any("still open at the clock 0" in found for found in compared(clock=0).differences)
