"""Marks of records in this process: the same numbers as those that Spark makes of the same rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.uint64]
# Spark's, and those of XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def record_marks(partition: npt.NDArray[np.int32], offset: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`xxhash64(partition, offset)` of each record: XXH64 of the offset's eight bytes, with that of the partition's four as its seed.

    >>> record_marks(np.array([1], np.int32), np.array([2]))
    array([2360248972619621018])
    """
    of_partition = np.full(len(partition), _SEED, np.uint64) + _P5 + np.uint64(4)
    of_partition ^= partition.view(np.uint32).astype(np.uint64) * _P1
    seed = _avalanche(_rotated(of_partition, 23) * _P2 + _P3)
    mark = (seed + _P5 + np.uint64(8)) ^ (_rotated(offset.view(np.uint64) * _P2, 31) * _P1)
    return _avalanche(_rotated(mark, 27) * _P1 + _P4).view(np.int64)


def _rotated(numbers: _Numbers, bits: int) -> _Numbers:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))


def _avalanche(numbers: _Numbers) -> _Numbers:
    numbers = (numbers ^ (numbers >> np.uint64(33))) * _P2
    numbers = (numbers ^ (numbers >> np.uint64(29))) * _P3
    return numbers ^ (numbers >> np.uint64(32))
