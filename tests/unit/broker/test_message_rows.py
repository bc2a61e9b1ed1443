"""From rows of compound_events to one sender's messages."""

import pyarrow as pa
import pytest

from spark_jobs.broker.message_rows import own_messages, to_messages
from spark_jobs.pairing.conservation import BrokenInvariant
from tests.timeline import CALLS

ROW = {
    "pair_id": "a-0-1", "revision": 0, "op": "upsert", "kind": "pair", "user1": "x", "user2": "y", "ts": 5, "analytics": "1",
    "metrics": "2", "batch_id": 3,
}  # fmt: skip


def rows(users, slots):
    return list(to_messages(CALLS, slots)([pa.RecordBatch.from_pylist([{**ROW, "user1": user} for user in users])]))


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
