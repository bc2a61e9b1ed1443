"""Kafka's murmur2 against the values its Java implementation gives."""

from spark_jobs.kafka.murmur2 import partitions_of

JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}


def test_a_key_goes_where_java_sends_it():
    for partitions in (1, 7, 12, 2**31 - 1):
        assert partitions_of(JAVA, partitions) == [(value & 0x7FFFFFFF) % partitions for value in JAVA.values()]


def by_the_book(key):
    """The hash byte by byte, as the Java client has it: of a key as long as any."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for place in range(0, whole, 4):
        k = int.from_bytes(key[place : place + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> 24) * m & 0xFFFFFFFF)
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def test_a_key_of_any_length():
    keys = [bytes(place * 7 % 251 for place in range(length)) for length in (0, 1, 2, 3, 4, 7, 8, 10_001, 100_002)]
    assert partitions_of(keys, 1_000) == [(by_the_book(key) & 0x7FFFFFFF) % 1_000 for key in keys]
    assert [by_the_book(key) for key in JAVA] == [value & 0xFFFFFFFF for value in JAVA.values()]
