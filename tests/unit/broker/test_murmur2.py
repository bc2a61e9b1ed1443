"""Kafka's murmur2 against the values its Java implementation gives."""

import numpy as np
import pytest

from spark_jobs.broker.murmur2 import _hash, partitions_of

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "value"), JAVA.items())
def test_hash(key, value):
    assert _hash(np.frombuffer(key, dtype=np.uint8).reshape(1, -1)).view(np.int32).tolist() == [value]


def test_partitions_of_keys_of_many_lengths():
    keys = [*JAVA, b""]
    expected = [(value & 0x7FFFFFFF) % 7 for value in JAVA.values()] + [(275646681 & 0x7FFFFFFF) % 7]
    assert partitions_of(keys, 7).tolist() == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 10_001])
def test_one_key_goes_where_it_goes_among_many_of_its_length(length):
    key = bytes(place * 7 % 251 for place in range(length))
    assert {*partitions_of([key] * 100, 1_000).tolist()} == {*partitions_of([key], 1_000).tolist()}
