"""Kafka's murmur2, for many keys at once, so that compounds land in the partitions a Java producer would choose."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_SEED, _M = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
# Of so many keys of one length numpy is faster word by word; of fewer, which may be long, Python is, as one step of numpy takes 3 µs.
_MANY = 32


def partitions_of(keys: list[bytes], partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key among `partitions`: (murmur2 & 0x7fffffff) % partitions, as in Kafka's default partitioner.

    >>> partitions_of([b"a-b", b"x-y", b"21"], 4).tolist(), partitions_of([], 4).tolist()
    ([1, 1, 0], [])
    """
    lengths = np.fromiter((len(key) for key in keys), dtype=np.int64, count=len(keys))
    hashes = np.zeros(len(keys), dtype=np.uint32)
    for length in np.unique(lengths).tolist():
        members = np.flatnonzero(lengths == length)
        text = b"".join(keys[member] for member in members)
        hashes[members] = _hash(np.frombuffer(text, dtype=np.uint8).reshape(len(members), length))
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def _hash(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Hashes of keys of one length, a row each. The arithmetic is meant to wrap around at 32 bits."""
    count, length = keys.shape
    h = np.full(count, _SEED ^ np.uint32(length & 0xFFFFFFFF), dtype=np.uint32)
    whole = length // 4 * 4
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4") * _M if whole else np.zeros((count, 0), dtype=np.uint32)
    words = (words ^ (words >> np.uint32(24))) * _M
    if count < _MANY:
        h = np.array([_folded(int(h[0]), memoryview(key)) for key in words], dtype=np.uint32)
    else:
        for word in words.T:
            h = (h * _M) ^ word
    for place in range(length - 1, whole - 1, -1):
        h ^= keys[:, place].astype(np.uint32) << np.uint32(8 * (place - whole))
    if length > whole:
        h *= _M
    h = (h ^ (h >> np.uint32(13))) * _M
    return np.asarray(h ^ (h >> np.uint32(15)), dtype=np.uint32)


def _folded(h: int, words: Iterable[int]) -> int:
    m = int(_M)
    for word in words:
        h = (h * m & 0xFFFFFFFF) ^ word
    return h
