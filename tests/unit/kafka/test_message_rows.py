"""From rows of compound_events to one sender's messages."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.kafka.message_rows import own_messages, to_messages
from spark_jobs.kafka.output_keys import output_key
from spark_jobs.rules.conservation import BrokenInvariant
from tests.helpers.timeline import CALLS

ROW = {
    "pair_id": "a-0-1", "revision": 0, "op": "upsert", "kind": "pair", "user1": "x", "user2": "y", "ts": 5, "analytics": "1",
    "metrics": "2", "batch_id": 3,
}  # fmt: skip
# As Spark hands the table's rows over.
SCHEMA = pa.schema([(name, pa.string()) for name in ("pair_id", "op", "kind", "user1", "user2", "analytics", "metrics")]
                   + [("revision", pa.int32()), ("ts", pa.int64()), ("batch_id", pa.int64())])  # fmt: skip


def rows(users, slots):
    return list(to_messages(CALLS, slots)([pa.RecordBatch.from_pylist([{**ROW, "user1": user} for user in users], SCHEMA)]))


def messages(given):
    (batch,) = to_messages(CALLS, 1)([pa.RecordBatch.from_pylist(given, SCHEMA)])
    return list(own_messages([batch], 0))


def test_a_message_is_key_value_and_headers():
    (message,) = messages([ROW | {"analytics": None, "metrics": '{"loss":0.10}'}])
    headers = [("pair-id", b"a-0-1"), ("revision", b"0"), ("kind", b"pair"), ("op", b"upsert")]
    value = b'{"user1":"x","user2":"y","ts":5,"analytics":null,"metrics":{"loss":0.10}}'
    assert message == (3, b"x-y", value, headers)


def test_a_retraction_has_no_value():
    gone, here = messages([ROW | {"op": "retract", "revision": 7}, ROW])
    assert (gone.key, gone.value, dict(gone.headers)["revision"]) == (b"x-y", None, b"7")
    assert here.value is not None


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=20))
def test_any_key_comes_back_from_the_json(users):
    for (user1, user2), message in zip(
        users, messages([ROW | {"user1": user1, "user2": user2} for user1, user2 in users]), strict=True
    ):
        assert message.key == output_key(CALLS, (user1, user2))
        assert message.value == spelled_out(user1, user2).encode()
        assert json.loads(message.value) == {"user1": user1, "user2": user2, "ts": 5, "analytics": 1, "metrics": 2}


def spelled_out(user1, user2):
    names = {"user1": user1, "user2": user2, "ts": 5, "analytics": 1, "metrics": 2}
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))


def test_rows_without_a_batch_are_not_messages():
    assert [message.batch_id for message in messages([ROW, ROW | {"batch_id": None}, ROW | {"batch_id": 4}])] == [3, 4]


def test_every_message_goes_to_the_slot_of_its_key():
    users = [f"u{number}" for number in range(50)]
    (batch,) = rows(users, 3)
    slots = batch.column("slot").to_pylist()
    assert set(slots) == {0, 1, 2}
    by_slot = [batch.take([place for place, slot in enumerate(slots) if slot == wanted]) for wanted in range(3)]
    keys = [message.key for slot in range(3) for message in own_messages([by_slot[slot]], slot)]
    assert sorted(keys) == sorted(f"{user}-y".encode() for user in users)


def test_a_message_for_another_partition_is_refused():
    (batch,) = rows([f"u{number}" for number in range(50)], 3)
    with pytest.raises(BrokenInvariant, match=r"a message for partition . came to the sender of 0"):
        list(own_messages([batch], 0))
