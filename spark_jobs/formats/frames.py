"""The frame of a schema registry around keys and values of records: which schema a record has, and its bytes without the frame.

A frame is a magic byte with the schema's id: 0x00 and 4 bytes, big-endian, or 0x01 and a GUID of 16 bytes. It stands before the body, or in the
header `__value_schema_id` (of a key: `__key_schema_id`), and then the body is the whole value. The indexes of a Protobuf message follow the id,
wherever that is. The rules are those of confluent-kafka's deserializers (`SchemaId.from_bytes`, `dual_schema_id_deserializer`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HeaderName = Literal["__value_schema_id", "__key_schema_id"]
SchemaKey = int | str
"""An id, or a GUID in lower case with hyphens."""

NONE = -1
_Key = TypeVar("_Key")
_ID_FRAME, _GUID_FRAME = 5, 17
# Nobody has deeper paths: protoc refuses messages that are nested deeper. And an index has 31 bits, so no varint is longer.
_DEEPEST, _LONGEST_VARINT = 32, 5
# Beyond every value. Without an end, Arrow's slices of more than a million rows fail.
_END = 2**31 - 1


@dataclass(frozen=True)
class Frames:
    """What was split, a row for each record.

    `codes`: the position of the record's schema in `keys`, NONE without a valid frame. `bodies`: binary, null where the code is NONE. `told`: what
    follows the id in the header of a record, null where the id is not in a header; None where no record has it there.
    """

    keys: list[SchemaKey]
    codes: np.ndarray
    bodies: pa.Array
    told: pa.Array | None

    def groups(self) -> Iterator[tuple[SchemaKey, np.ndarray]]:
        """Each schema with the indexes of its records, which ascend. Records without a valid frame are in no group."""
        for code, rows in groups_of(self.codes, len(self.keys)):
            yield self.keys[code], rows


@dataclass(frozen=True)
class Messages:
    """Protobuf records without their indexes. `codes`: the position of the record's path in `paths`, NONE without a valid one; then the body is null.

    A path leads to a message type: its index in the file, then in the message around it, and so on.
    """

    paths: list[tuple[int, ...]]
    codes: np.ndarray
    bodies: pa.Array

    def groups(self) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """Each path with the indexes of its records, which ascend. Records without a valid one are in no group."""
        for code, rows in groups_of(self.codes, len(self.paths)):
            yield self.paths[code], rows


def groups_of(codes: np.ndarray, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each code from 0 to `count` - 1 that occurs, with its indexes, which ascend; other codes are left out.

    >>> [(code, rows.tolist()) for code, rows in groups_of(np.array([1, -1, 0, 1]), 2)]
    [(0, [2]), (1, [0, 3])]
    """
    if count == 1 and not (codes != 0).any():
        yield from [(0, np.arange(len(codes)))] if len(codes) else []
        return
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(count + 1))
    for code in range(count):
        if bounds[code] < bounds[code + 1]:
            yield code, order[bounds[code] : bounds[code + 1]]


def split_frames(values: pa.Array, headers: pa.Array | None, header_name: HeaderName) -> Frames:
    """Takes the frames off.

    `values`: binary. `headers`: list<struct<key: string, value: binary>>, as long as `values`, or None. As for the client, the first header of the
    name counts, and a null in it is no header. Its frame, if not valid, is not looked for in the value. A null value has no frame.
    """
    there = _valid(values)
    told_rows, told = _told(headers, header_name)
    kept = there[told_rows]
    told_rows, told = told_rows[kept], told.filter(pa.array(kept))
    before = there.copy()
    before[told_rows] = False
    rows = np.flatnonzero(before)

    keys: dict[SchemaKey, int] = {}
    codes, lengths = np.full(len(values), NONE, np.int32), np.zeros(len(values), np.int64)
    codes[rows], lengths[rows] = _read(values if len(rows) == len(values) else values.take(pa.array(rows)), keys)
    codes[told_rows], told_lengths = _read(told, keys)
    follows = None
    if len(told_rows):
        place = np.full(len(values), NONE)
        place[told_rows] = np.arange(len(told_rows))
        follows = _without(told, told_lengths).take(pa.array(place, mask=place == NONE))
    return Frames(list(keys), codes, _only(_without(values, lengths), codes != NONE), follows)


def split_message_indexes(bodies: pa.Array, told: pa.Array | None) -> Messages:
    """Takes the indexes off Protobuf records: `bodies` and `told` of `Frames`, or the same rows of both.

    They are in `told` where that is not null. A path that is cut off, has a negative index, or more than 32 of them is not valid.
    """
    here = _valid(bodies)
    elsewhere = np.zeros(len(bodies), bool) if told is None else _valid(told) & here
    paths: dict[tuple[int, ...], int] = {}
    codes, lengths = np.full(len(bodies), NONE, np.int32), np.zeros(len(bodies), np.int64)
    rows = np.flatnonzero(here & ~elsewhere)
    codes[rows], lengths[rows] = _read_paths(bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows)), paths)
    if told is not None:
        rows = np.flatnonzero(elsewhere)
        codes[rows], _ = _read_paths(told.take(pa.array(rows)), paths)
    return Messages(list(paths), codes, _only(_without(bodies, lengths), codes != NONE))


def _told(headers: pa.Array | None, name: str) -> tuple[np.ndarray, pa.Array]:
    """The records whose header has an id, by their indexes, and the contents of that header."""
    if headers is None:
        return np.zeros(0, np.int64), pa.array([], pa.binary())
    each = headers.flatten()
    named = np.flatnonzero(pc.equal(pc.struct_field(each, "key"), name).fill_null(False).to_numpy(zero_copy_only=False))
    rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)[named]
    first = np.ones(len(rows), bool)
    first[1:] = rows[1:] != rows[:-1]
    contents = pc.struct_field(each, "value").take(pa.array(named[first]))
    return rows[first][_valid(contents)], contents.drop_null()


def _read(framed: pa.Array, keys: dict[SchemaKey, int]) -> tuple[np.ndarray, np.ndarray]:
    """The code of each frame, and its length (0 without a valid one); adds new schemas to `keys`. No row is null."""
    data, starts, sizes = _places(framed)
    magic = np.full(len(framed), NONE, np.int16)
    magic[sizes > 0] = data[starts[sizes > 0]]
    codes, lengths = np.full(len(framed), NONE, np.int32), np.zeros(len(framed), np.int64)

    rows = np.flatnonzero((magic == 0) & (sizes >= _ID_FRAME))
    lengths[rows] = _ID_FRAME
    ids = np.zeros(len(rows), np.uint32)
    for at in range(1, _ID_FRAME):
        ids = ids << np.uint32(8) | data[starts[rows] + at]
    found = pa.array(ids).dictionary_encode()
    codes[rows] = _numbered(found.dictionary.to_pylist(), keys)[found.indices.to_numpy()]

    rows = np.flatnonzero((magic == 1) & (sizes >= _GUID_FRAME))
    lengths[rows] = _GUID_FRAME
    raw = data[starts[rows, None] + np.arange(1, _GUID_FRAME)]
    guids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_GUID_FRAME - 1), len(rows), [None, pa.py_buffer(raw.tobytes())])
    found = guids.dictionary_encode()
    texts = [str(uuid.UUID(bytes=each)) for each in found.dictionary.to_pylist()]
    codes[rows] = _numbered(texts, keys)[found.indices.to_numpy()]
    return codes, lengths


def _read_paths(framed: pa.Array, paths: dict[tuple[int, ...], int]) -> tuple[np.ndarray, np.ndarray]:
    """The code of each path, and its length (0 without a valid one); adds new ones to `paths`. No row is null."""
    data, starts, sizes = _places(framed)
    codes, lengths = np.full(len(framed), NONE, np.int32), np.zeros(len(framed), np.int64)
    count, index = (np.full(len(framed), 0xFF, np.uint8) for _ in range(2))
    count[sizes > 0] = data[starts[sizes > 0]]
    index[sizes > 1] = data[starts[sizes > 1] + 1]
    # Most are the first message of their file, and nearly all others one of its first 64.
    first, near = count == 0, (count == 2) & (index < 0x80) & (index % 2 == 0)
    if first.any():
        codes[first], lengths[first] = paths.setdefault((0,), len(paths)), 1
    found = pa.array(index[near] >> 1).dictionary_encode()
    codes[near] = _numbered([(one,) for one in found.dictionary.to_pylist()], paths)[found.indices.to_numpy()]
    lengths[near] = 2
    for row in np.flatnonzero(~first & ~near & (sizes > 0)):
        begin = starts[row]
        end = begin + min(sizes[row], (1 + _DEEPEST) * _LONGEST_VARINT)
        path, length = _path(data[begin:end].tobytes())
        if length:
            codes[row], lengths[row] = paths.setdefault(path, len(paths)), length
    return codes, lengths


def _path(raw: bytes) -> tuple[tuple[int, ...], int]:
    r"""The path at the beginning of these bytes, and how many of them it takes; empty if it is not valid.

    >>> _path(b"\x04\x02\x80\x01..."), _path(b"\x00"), _path(b"\x04\x02"), _path(b"\x02\x01")
    (((1, 64), 4), ((0,), 1), ((), 0), ((), 0))
    """
    numbers: list[int] = []
    number, shift = 0, 0
    for at, byte in enumerate(raw):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift == 7 * _LONGEST_VARINT:
                break
            continue
        # Zigzag: an odd number is a negative one.
        if number & 1 or (not numbers and number >> 1 > _DEEPEST):
            break
        numbers.append(number >> 1)
        number, shift = 0, 0
        if len(numbers) == 1 + numbers[0]:
            return tuple(numbers[1:]) or (0,), at + 1
    return (), 0


def _numbered(found: Sequence[_Key], keys: dict[_Key, int]) -> np.ndarray:
    return np.array([keys.setdefault(key, len(keys)) for key in found], np.int32)


def _valid(array: pa.Array) -> np.ndarray:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _places(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of a binary array, and where each row begins and how long it is there."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return np.zeros(0, np.uint8), np.zeros(len(array), np.int64), np.zeros(len(array), np.int64)
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    bounds = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8), bounds[:-1], np.diff(bounds)


def _without(array: pa.Array, lengths: np.ndarray) -> pa.Array:
    """The rows without as many bytes at their beginnings; a null stays one."""
    *others, most = np.unique(lengths) if len(lengths) else [0]
    rest = pc.binary_slice(array, int(most), _END) if most else array
    for length in others:
        rest = pc.if_else(pa.array(lengths == length), pc.binary_slice(array, int(length), _END), rest)
    return rest


def _only(array: pa.Array, kept: np.ndarray) -> pa.Array:
    return array if kept.all() else pc.if_else(pa.array(kept), array, None)
