"""The output partition of a key: Kafka's murmur2, so that compounds land where a Java producer would send them."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import murmur2


def partitions_of(keys: Iterable[bytes], partitions: int) -> list[int]:
    """The partition of each key among `partitions`: (murmur2 & 0x7fffffff) % partitions, as in Kafka's default partitioner.

    >>> partitions_of([b"a-b", b"x-y", b"21"], 4), partitions_of([], 4)
    ([1, 1, 0], [])
    """
    return [murmur2(key, partitions) for key in keys]
