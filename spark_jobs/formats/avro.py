"""Bodies in Avro (bare: without a registry's frame) as JSON texts.

    null, boolean, string     as they are
    int, long                 the number, every digit; also with a logical type: a date is the days, a timestamp the milliseconds …
    float, double             see `json_text`
    enum                      the symbol, a string
    bytes, fixed              a string of the code points 0 to 255, one a byte; so is a duration
    decimal                   a number with each digit of its scale: 12.340
    uuid                      a string
    record                    an object, its fields in the order of the schema
    map                       an object, its entries in the order of the wire; a key that occurs twice stays twice
    array                     an array
    union                     the value, without its type

A body is decoded by pyruhvro, many at a time, or by fastavro, alone. Both give the same text, so what becomes of a body does not depend on
those around it. pyruhvro refuses all bodies of a call if one is bad, and cannot read every type (`avro_plain.can_decode_in_bulk`).
Bytes behind the value are no fault, as for Confluent's deserializers. Bodies are from strangers: lengths and counts are not believed, and
those that end the stack or the memory of fastavro cannot occur in the plain schema (`avro_plain`). A body whose text is far longer than
itself is no message (`_longest_text`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import schemaless_reader
from pyruhvro import deserialize_array

from spark_jobs.faults.problems import warn
from spark_jobs.formats.avro_columns import check_texts, column_texts
from spark_jobs.formats.avro_plain import alone_schema, bulk_schema, can_decode_in_bulk
from spark_jobs.formats.avro_schema import read_schema, unit_of
from spark_jobs.formats.avro_values import value_text
from spark_jobs.formats.wanted import Tree

# Bodies in one call, so that their columns fit into the processor's caches; and in one call of those that failed.
_AT_ONCE, _FEW = 10_000, 200
# Bytes of texts that are made at once; and that one column of texts can hold.
_TEXT_AT_ONCE, _TEXT_AT_MOST = 2**27, 2**31 - 1


class AvroBodies:
    """Bodies of one schema."""

    def __init__(self, schema: str, named: Sequence[str] = (), wanted: Tree | None = None) -> None:
        """`schema`: the writer's; `named`: those it refers to, each after those that it refers to itself. `wanted`: only these fields have
        to be in the texts, at any depth of records; None: all. Below an array or a map everything is.

        Raises ValueError, in one line, if it is no Avro schema, or one whose bodies cannot be read safely.
        """
        self._node = read_schema(schema, named)
        self._wanted = wanted
        self._bulk = json.dumps(bulk_schema(self._node)) if can_decode_in_bulk(self._node) else None
        self._alone = alone_schema(self._node)
        self._text = value_text(self._node, wanted)

    def to_json(self, bodies: pa.Array) -> pa.Array:
        """The JSON text (string) of each body (binary); null where it is null, or no message of the schema.

        A column holds 2 GB. Texts that do not fit behind those before them are null.
        """
        texts, left = [], _TEXT_AT_MOST
        for begin in range(0, len(bodies), _AT_ONCE):
            some = bodies[begin : begin + _AT_ONCE]
            values: list[bytes] = some.drop_null().to_numpy(zero_copy_only=False).tolist()
            parts = []
            for part in self._texts(values):
                parts.append(_fitting(part, left))
                left -= _size(parts[-1])
            piece = pa.concat_arrays([pa.nulls(0, pa.string()), *parts])
            if some.null_count:
                # The running number of each body that is there.
                numbers = iter(range(len(values)))
                piece = piece.take(
                    pa.array([next(numbers) if there else None for there in some.is_valid().to_pylist()], pa.int32())
                )
            texts.append(piece)
        return pa.concat_arrays([pa.nulls(0, pa.string()), *texts])

    def timestamp_unit(self, path: Sequence[str]) -> str | None:
        """As `avro_schema.unit_of`."""
        return unit_of(self._node, path)

    def json_path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Where the field is in the texts: at its path."""
        return path

    def _texts(self, bodies: list[bytes]) -> Iterator[pa.Array]:
        """The texts, in pieces."""
        is_much = self._bulk is not None and self._bound(bodies) > _TEXT_AT_ONCE
        texts = None if is_much else self._bulk_texts(bodies)
        if texts is not None:
            yield texts
        elif self._bulk is None or len(bodies) == 1 or (len(bodies) <= _FEW and not is_much):
            yield from self._texts_alone(bodies)
        else:
            some = len(bodies) // 2 if is_much else _FEW
            for begin in range(0, len(bodies), some):
                yield from self._texts(bodies[begin : begin + some])

    def _bound(self, bodies: list[bytes]) -> int:
        """More bytes than all texts have."""
        bound = self._node.bound
        return len(bodies) * bound.fixed + sum(map(len, bodies)) * bound.per_byte

    def _bulk_texts(self, bodies: list[bytes]) -> pa.Array | None:
        """None if a body is bad, or the schema cannot be decoded in bulk."""
        if self._bulk is None:
            return None
        try:
            (column,) = deserialize_array(bodies, self._bulk).columns
            check_texts(self._node, column)
            # A message may be null as a whole.
            texts = pc.fill_null(column_texts(self._node, column, self._wanted), "null")
            return _without_long(texts, bodies)
        except ValueError:
            return None
        # A panic of Rust. Its class cannot be imported.
        except BaseException as problem:
            if type(problem).__name__ != "PanicException":
                raise
            self._bulk = None
            warn(f"pyruhvro fails on an Avro schema; its records are decoded one by one, several times slower: {problem}")
            return None

    def _texts_alone(self, bodies: list[bytes]) -> Iterator[pa.Array]:
        texts: list[str | None] = []
        size = 0
        for body in bodies:
            texts.append(self._text_alone(body))
            size += len(texts[-1] or "")
            if size > _TEXT_AT_ONCE:
                yield pa.array(texts, pa.string())
                texts, size = [], 0
        yield pa.array(texts, pa.string())

    def _text_alone(self, body: bytes) -> str | None:
        most = _longest_text(len(body))
        try:
            value: Any = schemaless_reader(BytesIO(body), self._alone, None)
            text = self._text(value["f0"], most)
            return text if len(text.encode()) <= most else None
        # What fastavro and the rendering raise for bytes that are no message, UnicodeDecodeError being a ValueError.
        except (EOFError, ValueError, IndexError, OverflowError):
            return None


def _longest_text(size: int) -> int:
    """The most bytes of the text of a body of so many bytes.

    By a schema with long names, one byte can be a text of megabytes. Real records are below this: a byte is a null with its field's name.
    """
    return min(2**14 + 1000 * size, 2**26)


def _without_long(texts: pa.Array, bodies: list[bytes]) -> pa.Array:
    sizes = pc.binary_length(texts)
    if (pc.max(sizes).as_py() or 0) <= _longest_text(0):
        return texts
    is_fit = pc.less_equal(sizes, pa.array([_longest_text(len(body)) for body in bodies], pa.int32()))
    return texts if pc.all(is_fit).as_py() else _only(texts, is_fit)


def _fitting(texts: pa.Array, left: int) -> pa.Array:
    """The texts that are in the first `left` bytes of all."""
    if _size(texts) <= left:
        return texts
    sizes = pc.cumulative_sum(pc.cast(pc.fill_null(pc.binary_length(texts), 0), pa.int64()))
    return _only(texts, pc.less_equal(sizes, left))


def _only(texts: pa.Array, where: pa.Array) -> pa.Array:
    # if_else would keep the bytes of the others.
    return texts.take(pc.if_else(where, pa.array(range(len(texts)), pa.int32()), None))


def _size(texts: pa.Array) -> int:
    return pc.sum(pc.binary_length(texts)).as_py() or 0
