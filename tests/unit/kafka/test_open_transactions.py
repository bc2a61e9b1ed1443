"""Where Kafka keeps a group's offsets, and what is told of offsets that wait."""

from __future__ import annotations

import pytest

from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.open_transactions import HeldPartition, Unreadable, check_readable, partition_of_group, total_held


# By Java: Math.abs(name.hashCode()) % 50; of the second the hash is the one number that has no opposite.
@pytest.mark.parametrize(("group", "partition"), [("calls.publisher", 1), ("polygenelubricants", 0)])
def test_the_partition_of_a_group_is_that_of_java(group, partition):
    assert partition_of_group(group, 50) == partition


def test_what_is_held_is_counted_with_the_oldest_moment():
    held = [HeldPartition("a", 0, 5, 3, 2_000), HeldPartition("a", 1, 9, 4, 1_000), HeldPartition("b", 0, 1, 1)]
    assert total_held(held) == (8, 1_000)
    assert total_held(held[2:]) == (1, None)
    assert total_held([]) == (0, None)


def test_a_topic_is_readable_up_to_where_it_was_published_to_or_not():
    now = TopicsNow(0, {}, {("out", 0): 7}, {})
    check_readable(now, {("out", 0): 7})
    with pytest.raises(Unreadable) as raised:
        check_readable(now, {("out", 0): 8})
    assert (raised.value.held, raised.value.until) == (HeldPartition("out", 0, 7, 1), 8)


def test_a_transaction_is_told_with_its_moment_and_the_command_that_ends_it():
    held = HeldPartition("out", 2, 7, 1, 1_700_000_000_000)
    assert held.opened() == " since 2023-11-14 22:13:20 UTC"
    assert HeldPartition("out", 2, 7, 1).opened() == ""
    assert held.remedy() == "kafka-transactions.sh abort --topic out --partition 2 --start-offset 7"
