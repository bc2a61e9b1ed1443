"""From rows of rejected_events to dead letters: the record as it came, our headers behind its own, and the partition where a retry sends it, too."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import murmur2

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka import dead_letters
from spark_jobs.kafka.dead_letters import COLUMNS, check_policy, dead_letters_for
from spark_jobs.kafka.messages import Message, fits, name_of, size
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger_rows import LANDED, PLANNED, OffsetRange
from tests.helpers.ledger_rows import ledger_rows

ROW = {
    "reason": "late", "topic": "left", "partition": 1, "offset": 7, "record_timestamp": 5, "key": b"\xff", "value": b"{nope", "batch_id": 3,
    "output_partition": 0, "headers": None, "landed": True,
}  # fmt: skip
OURS = [
    ("__rejected.reason", b"late"), ("__rejected.topic", b"left"), ("__rejected.partition", b"1"), ("__rejected.offset", b"7"),
    ("__rejected.timestamp", b"5"), ("__rejected.batch", b"3"), ("__rejected.pipeline", b"calls"),
]  # fmt: skip


def messages(*rows, partition=0):
    return list(dead_letters_for("calls", partition, [pa.RecordBatch.from_pylist(list(rows), COLUMNS)]))


def test_a_dead_letter_is_the_record_with_our_headers_behind_its_own():
    kept = [{"key": "trace", "value": b"\x00"}, {"key": "trace", "value": None}, {"key": "__rejected.batch", "value": b"1"}]
    own = [("trace", b"\x00"), ("trace", None), ("__rejected.batch", b"1")]
    assert messages(ROW, ROW | {"headers": kept, "key": None, "value": None}) == [
        Message(3, b"\xff", b"{nope", OURS, "left-1-7"), Message(3, None, None, [*own, *OURS], "left-1-7"),
    ]  # fmt: skip


def test_a_row_without_a_batch_only_moves_the_position():
    assert messages(ROW | {"batch_id": None, "landed": None}) == []


def test_without_the_raw_row_nothing_is_sent():
    with pytest.raises(BrokenInvariant, match="batch 3 rejected left-1-7, which is in no raw table"):
        messages(ROW | {"landed": None})


def test_a_dead_letter_of_another_partition_is_not_sent():
    with pytest.raises(BrokenInvariant, match="a message for partition 0 came to the sender of 2"):
        messages(ROW, partition=2)


@pytest.mark.parametrize(
    ("key", "by"), [(b"21", b"21"), (b"foobar", b"foobar"), (b"", b""), (b"\xff\x00", b"\xff\x00"), (None, b"left-1-7")]
)
def test_the_partition_is_that_of_the_key_or_of_the_place(key, by):
    named = {name: ROW[name] for name in dead_letters._READ} | {"key": key}
    rows = pa.RecordBatch.from_pylist([named, named | {"batch_id": 4}], schema=dead_letters._ROWS)
    placed = dead_letters._placer({3: 8, 4: 5})(rows.drop_columns(["output_partition"]))
    # test_messages.py holds this murmur2 against Java's.
    assert placed["output_partition"].to_pylist() == [murmur2(by, 8), murmur2(by, 5)]
    assert placed["key"].to_pylist() == [key, key]


def test_its_size_counts_headers_of_any_length():
    (letter,) = messages(ROW | {"headers": [{"key": "large", "value": b"x" * 5000}], "key": None})
    assert size(letter) > 5000
    assert (fits(letter, size(letter)), fits(letter, size(letter) - 1)) == (True, False)
    assert name_of(letter) == "left-1-7"


def test_its_size_counts_the_bytes_of_a_name_not_its_letters():
    """The broker would refuse the whole transaction, at each try."""
    (letter,) = messages(ROW | {"headers": [{"key": "中" * 5000, "value": b""}]})
    assert size(letter) > 15_000
    assert not fits(letter, 15_000)


LEDGER = [
    row
    for batch_id, first in ((1, 0), (2, 10), (30, 20), (31, 30))
    for row in ledger_rows(batch_id, (PLANNED, LANDED), offsets=(OffsetRange("left", 0, first, first + 10, 99),))
]


@pytest.mark.parametrize(
    ("oldest", "first"),
    [({}, 31), ({("left", 0): 30}, 31), ({("left", 0): 29}, 30), ({("left", 0): 20}, 30), ({("left", 0): 19}, 2),
     ({("left", 0): 0}, 1), ({("left", 0): 30, ("left", 1): 0}, 1)],
)  # fmt: skip
def test_raw_rows_of_events_that_waited_are_looked_for_from_the_batch_that_landed_the_oldest(oldest, first):
    ledger = SimpleNamespace(rows=lambda low, high: [row for row in LEDGER if low <= row.batch_id <= high])
    assert dead_letters._first_landing(ledger, oldest, 31) == first


@pytest.mark.parametrize(("reason", "first"), [("duplicate", 2), ("superseded", 2), ("late", 31), ("retraction", 31)])
def test_events_that_waited_have_their_raw_rows_in_earlier_batches(reason, first, monkeypatch):
    known = SimpleNamespace(rows=lambda low, high: [row for row in LEDGER if low <= row.batch_id <= high])
    monkeypatch.setattr(dead_letters, "Ledger", lambda _: known)
    rows = pa.table({"topic": ["left"], "partition": [0], "offset": [19], "reason": [reason]})
    warehouse = SimpleNamespace(reading=lambda *_, **__: SimpleNamespace(few=lambda: rows))
    assert dead_letters._landed(warehouse, [31]).batches == range(first, 32)


def test_a_compacted_topic_is_refused():
    for compacted in (False, None):
        check_policy("dead", compacted)
    with pytest.raises(NeedsOperator, match=r"the rejected topic dead is compacted: .*; set its cleanup.policy to delete"):
        check_policy("dead", True)
